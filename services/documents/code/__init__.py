"""Definitions and uses in code, and the relations between documents and their symbols."""
