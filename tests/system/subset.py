"""`linckia` with some of the services: a kernel of all of them takes six seconds of a core to start, one of these two.

    python -m tests.system.subset SERVICE,… ARGUMENT…

The others are switched off as `transcripts` may be in any system (`enabled` in its settings), with their operations.
"""

from __future__ import annotations

import os
import sys

from msgspec import structs

from kernel import catalog
from kernel.cli.__main__ import main

if __name__ == "__main__":
    wanted = sys.argv.pop(1).split(",")
    catalog.ENTRIES = tuple(structs.replace(entry, optional=True) for entry in catalog.ENTRIES)
    names = {entry.service for entry in catalog.ENTRIES}
    assert names.issuperset(wanted), f"there is no service {set(wanted) - names}"
    os.environ.update({f"LINCKIA_SERVICES__{name.upper()}__ENABLED": "false" for name in names.difference(wanted)})
    sys.exit(main(sys.argv[1:]))
