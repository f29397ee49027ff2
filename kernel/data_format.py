"""Which version of Linckia the data directory is of: an older one refuses it before any service touches a store."""

from __future__ import annotations

import json
from pathlib import Path

from linckia.kernel import VERSION
from linckia.kernel.control.address import CannotHold
from linckia.proto.durable import replace_file

FORMAT = 32
"""The versions of all stores' schemas, added up: it rises with each of them."""


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
