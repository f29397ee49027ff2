"""Markdown notes: indexed from their folders, searched, read, linked and tagged."""
