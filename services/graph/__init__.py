"""Nodes and typed edges of all corpora."""
