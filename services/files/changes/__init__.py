"""Renames, moves, deletions and the trash."""
