"""Mounted servers as processes: their words, their ends, and storms."""
