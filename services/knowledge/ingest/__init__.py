"""Keeping the index in step with the folders."""
