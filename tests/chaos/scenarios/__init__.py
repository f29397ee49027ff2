"""The scenarios of `duplicates`: for each changing operation, a call and what exactly one call does.

Importing the package registers all of them.
"""

from tests.chaos.scenarios import collections, documents, files, index, memory, mounts, notes, tasks, transcripts, yaml

__all__ = [
    "collections", "documents", "files", "index", "memory", "mounts", "notes", "tasks", "transcripts", "yaml",
]  # fmt: skip
