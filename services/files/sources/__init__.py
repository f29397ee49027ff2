"""Folders that are followed or scanned under a name."""
