"""The data directory: the version of Linckia that it belongs to, and what a backup does with its files.

An older version refuses the data of a newer one before any service opens a store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from kernel import VERSION
from kernel.configure import manifests
from proto.backup import FILE, STAGING, Program
from proto.control.address import CannotHold
from proto.host.durable import replace_file
from proto.manifest import Keep, Manifest
from proto.stores import Stores

FORMAT: Final = sum(store.schema for each in manifests.built_in() for store in each.manifest.stores)
"""Sum of the schema versions of all stores, so that it grows with each of them."""

OWN: Final = (
    ("token", Keep.SOURCE),
    ("tokens.json", Keep.SOURCE),
    ("session.key", Keep.SOURCE),
    ("mandates.key", Keep.SOURCE),
    ("page.key", Keep.SOURCE),
    ("backup.key", Keep.SOURCE),
    ("backup.key.*.new", Keep.PASSING),
    ("linckia.toml", Keep.SOURCE),
    ("config.yaml", Keep.SOURCE),
    ("prompts", Keep.SOURCE),
    ("mcp/bundles/.lock", Keep.PASSING),
    ("mcp/bundles/*.new", Keep.PASSING),
    # Bundles cannot be made again: nobody knows where they came from.
    ("mcp/bundles/[0-9a-f]*", Keep.SOURCE),
    ("mcp/*.*", Keep.SOURCE),
    ("audit", Keep.SOURCE),
    # Turns that the recording proxy has not delivered yet.
    ("proxy/spool/*.json", Keep.SOURCE),
    ("proxy/spool/*.part", Keep.PASSING),
    ("format.json", Keep.SOURCE),
    ("format.new", Keep.PASSING),
    ("kernel.lock", Keep.PASSING),
    ("kernel.sock", Keep.PASSING),
    ("http.port*", Keep.PASSING),
    (f"{FILE}*", Keep.PASSING),
    ("trends.*", Keep.PASSING),
    ("history*", Keep.PASSING),
    ("timeline.*", Keep.PASSING),
    (STAGING, Keep.PASSING),
    ("token*.new", Keep.PASSING),
    ("logs", Keep.PASSING),
    ("services/*/tmp", Keep.PASSING),
    # Damaged stores set aside for inspection; their successors have everything that could be read.
    ("services/*.damaged-*", Keep.PASSING),
    ("services/*.before-v*", Keep.PASSING),
    # Left by a move to a server, whose copy is the one in use.
    ("services/*.before-postgres", Keep.PASSING),
    ("services/*.moving", Keep.PASSING),
)
"""Files that belong to the kernel, or that every service may have."""


def program(packages: Iterable[str] = ()) -> Program:
    """Describe this version of Linckia, with the services of `packages`, to the backup. Raises ConfigError."""
    patterns = (pattern for each in manifests.served(packages) for pattern in _patterns(each.manifest))
    return Program(VERSION, FORMAT, Stores([*OWN, *patterns]))


def _patterns(manifest: Manifest) -> Iterator[tuple[str, Keep]]:
    """Yield the patterns of a service's stores; each process of a pool has its own folder."""
    folders = [manifest.name] if manifest.pool is None else [manifest.name, f"{manifest.name}-*"]
    for store in manifest.stores:
        for folder in folders:
            yield f"services/{folder}/{store.path}".rstrip("/"), store.keep


def claim(data_dir: Path) -> None:
    """Record that `data_dir` has this version's stores. The caller must hold it.

    Raises CannotHold: it has a newer version's stores, or the record cannot be read or written.
    """
    note = data_dir / "format.json"
    own = {"format": FORMAT, "linckia": VERSION}
    try:
        found = json.loads(note.read_bytes()) if note.exists() else {"format": 0}
        number = int(found["format"])
        if number < FORMAT:
            replace_file(note, json.dumps(own).encode() + b"\n")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CannotHold(
            f"cannot read or write {note} ({error}); free disk space, fix its permissions, or restore it from a backup"
        ) from None
    if number > FORMAT:
        raise CannotHold(
            f"{data_dir} was written by Linckia {found.get('linckia')} (data format {number}); this is Linckia "
            f"{VERSION}, which reads up to {FORMAT}: start that version, or name another data directory with --data"
        )
