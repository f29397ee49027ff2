"""Backups of a data directory: `moment` freezes it, `target` stores it, `making` and `restoring` combine these.

A target is a folder or an archive, or a place (`places`) with encrypted objects (`sealed`), which may be remote. This
is not a supervised service and has no manifest: a command-line process, with or without a kernel, imports it by name
(`kernel.cli.care.backup.Backups`). Everything here blocks.
"""

from services.backup.making import backup
from services.backup.restoring import restore
from services.backup.streaming import continuous
from services.backup.target import key, snapshots, verify

__all__ = ["backup", "continuous", "key", "restore", "snapshots", "verify"]
