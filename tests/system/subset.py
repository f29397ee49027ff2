"""`linckia` with some of the services, and with the front: to start all of them takes six seconds of a core.

    python -m tests.system.subset SERVICE,… ARGUMENT…

The others are switched off as `transcripts` may be in any system (`enabled` in its settings), with their operations,
and zygotes do not load their modules. A kernel that `stdio` starts has the same services. The front has a zygote only
where it is named: that is for the second front on, and takes as long to load as the first.
"""

from __future__ import annotations

import os
import sys

from msgspec import structs

from kernel.cli import stdio
from kernel.cli.__main__ import main
from kernel.configure import catalog
from proto.wire.front import SERVICE as FRONT


def run() -> None:
    """`linckia` with the services that the first argument names."""
    named = sys.argv.pop(1).split(",")
    wanted = {FRONT, *named}
    entries = tuple(
        structs.replace(entry, manifest=structs.replace(entry.manifest, optional=True)) for entry in catalog.ENTRIES
    )
    if FRONT not in named:
        front = next(entry for entry in entries if entry.service == FRONT)
        alone = structs.replace(front, spec=structs.replace(front.spec, zygote=None))
        entries = tuple(alone if entry is front else entry for entry in entries)
    setattr(catalog, "ENTRIES", entries)  # noqa: B010  # its type says how many they are
    names = {entry.service for entry in entries}
    assert names.issuperset(wanted), f"there is no service {set(wanted) - names}"
    setattr(stdio, "SERVE", (sys.executable, "-m", "tests.system.subset", ",".join(named), "serve"))  # noqa: B010
    os.environ.update({f"LINCKIA_SERVICES__{name.upper()}__ENABLED": "false" for name in names.difference(wanted)})
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
