"""Backups of a data directory: `moment` holds it still, `target` keeps it, `making` and `restoring` join these.

It is no supervised service and has no manifest: a process of the command line, with or without a kernel, imports it by
its name (`proto.backup.Backups`).  All of it blocks.
"""

from linckia.services.backup.making import backup
from linckia.services.backup.restoring import restore
from linckia.services.backup.target import snapshots

__all__ = ["backup", "restore", "snapshots"]
