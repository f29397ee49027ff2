"""Stored data: documents, collections, backups."""
