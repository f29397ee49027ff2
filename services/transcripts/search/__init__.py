"""Telling the search what was said, and asking it."""
