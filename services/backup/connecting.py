"""Opens remote places by their addresses; the packages for them are imported only then."""

from __future__ import annotations

import urllib.parse

from proto.backup import BackupFailed
from proto.host import extras
from services.backup.places import Place


def connected(to: str, endpoint: str) -> Place:
    """Open a place by its URL. Raises BackupFailed."""
    try:
        url = urllib.parse.urlsplit(to)
        host, _ = url.hostname, url.port
    except ValueError as error:
        raise BackupFailed(f"this is not the address of a place for backups: {error}") from None
    if url.password is not None:
        raise BackupFailed(f"an address contains no password, which others could read; {host} needs an SSH key")
    if not host or url.query or url.fragment:
        raise BackupFailed("write sftp://[user@]host[:port]/path or s3://bucket/prefix")
    try:
        if url.scheme == "sftp":
            from services.backup.sftp import Sftp

            return Sftp(to, url)
        if url.scheme == "s3":
            from services.backup.s3 import S3

            return S3(to, url.netloc, url.path.strip("/"), endpoint)
    except ModuleNotFoundError as error:
        install = extras.command_for(extras.REMOTE)
        raise BackupFailed(f"backups to {url.scheme}:// need {error.name}; install it with: {install}") from None
    raise BackupFailed(f"{url.scheme}:// is no place for backups; write sftp://[user@]host[:port]/path or s3://bucket")
