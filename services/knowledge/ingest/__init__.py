"""Keeping the index in sync with the folders."""
