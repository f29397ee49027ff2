"""The data directory: which version of Linckia it is of, and what its files are to a backup.

An older version refuses a newer one's data before any service touches a store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from linckia.kernel import VERSION, manifests
from linckia.proto.backup import FILE, STAGING, Program
from linckia.proto.control.address import CannotHold
from linckia.proto.durable import replace_file
from linckia.proto.manifest import Keep, Manifest
from linckia.proto.stores import Stores

FORMAT: Final = sum(store.schema for each in manifests.of_system() for store in each.manifest.stores)
"""The versions of all stores' schemas, added up: it rises with each of them."""

OWN: Final = (
    ("token", Keep.SOURCE),
    ("tokens.json", Keep.SOURCE),
    ("session.key", Keep.SOURCE),
    ("mandates.key", Keep.SOURCE),
    ("linckia.toml", Keep.SOURCE),
    ("config.yaml", Keep.SOURCE),
    ("prompts", Keep.SOURCE),
    ("audit", Keep.SOURCE),
    # Turns that the recording proxy has not handed over yet.
    ("proxy/spool/*.json", Keep.SOURCE),
    ("proxy/spool/*.part", Keep.PASSING),
    ("format.json", Keep.SOURCE),
    ("format.new", Keep.PASSING),
    ("kernel.lock", Keep.PASSING),
    ("kernel.sock", Keep.PASSING),
    (f"{FILE}*", Keep.PASSING),
    ("trends.*", Keep.PASSING),
    (STAGING, Keep.PASSING),
    ("token*.new", Keep.PASSING),
    ("logs", Keep.PASSING),
    ("services/*/tmp", Keep.PASSING),
    # Put aside, to be examined; what could be read of it is in its successor.
    ("services/*.damaged-*", Keep.PASSING),
    ("services/*.before-v*", Keep.PASSING),
)
"""Files of the kernel, and of every service."""


def program(packages: Iterable[str] = ()) -> Program:
    """This Linckia, with the services of `packages`, to a backup.  Raises ConfigError."""
    patterns = (pattern for each in manifests.served(packages) for pattern in _patterns(each.manifest))
    return Program(VERSION, FORMAT, Stores([*OWN, *patterns]))


def _patterns(manifest: Manifest) -> Iterator[tuple[str, Keep]]:
    """Each process of a pool has a folder."""
    folders = [manifest.name] if manifest.pool is None else [manifest.name, f"{manifest.name}-*"]
    for store in manifest.stores:
        for folder in folders:
            yield f"services/{folder}/{store.path}".rstrip("/"), store.keep


def claim(data_dir: Path) -> None:
    """Note that this version's stores are in `data_dir`. The caller holds it.

    Raises CannotHold: a newer version's are, or the note cannot be read or written.
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
            f"cannot read or write {note} ({error}); make room, see to its permissions, or put it back from a backup"
        ) from None
    if number > FORMAT:
        raise CannotHold(
            f"{data_dir} was written by Linckia {found.get('linckia')} (data format {number}); this is Linckia "
            f"{VERSION}, which reads up to {FORMAT}: start that version, or name another data directory with --data"
        )
