"""Backups of a data directory: `moment` freezes it, `target` stores it, `making` and `restoring` combine these.

This is not a supervised service and has no manifest: a command-line process, with or without a kernel, imports it by
name (`proto.backup.Backups`). Everything here blocks.
"""

from services.backup.making import backup
from services.backup.restoring import restore
from services.backup.target import snapshots

__all__ = ["backup", "restore", "snapshots"]
