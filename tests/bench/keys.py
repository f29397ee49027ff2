"""What an idempotency key costs a call: the same changes with and without keys, in turn, by one client over stdio.

    scripts/bench keys [--calls N]

Prints the median of each operation with and without a key, in ms, and the ratio. The limit is 1.1.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proto.mcp import KEY as META
from tests.system.cli.clients import StdioClient, stdio_client
from tests.system.running import running

LIMIT = 1.1
SERVICES = ("front", "yaml", "files", "watch", "documents", "retrieve", "memory", "transcripts", "knowledge", "graph")

Arguments = Callable[[Path, int], dict[str, Any]]

CALLS: dict[str, Arguments] = {
    "yaml_set": lambda root, n: {"file": str(root / "a.yaml"), "path": "a", "value": str(n)},
    "files_edit": lambda root, n: {"path": str(root / "a.txt"), "edits": [{"lines": "1", "new": str(n)}]},
    "notes_write": lambda root, n: {"path": str(root / "a.md"), "content": f"# {n}\n", "overwrite": True},
    "sets_create": lambda root, n: {"name": f"set {n}"},
    "preferences_set": lambda root, n: {"preferences": {"a": n}},
    "remember": lambda root, n: {"text": f"The lighthouse number {n} is at {uuid.uuid4().hex}."},
}
"""A call of each way in which keys are stored, with arguments that make it change something."""


def timed(client: StdioClient, number: int, name: str, arguments: dict[str, Any], key: str) -> float:
    """Return the duration of a call in ms."""
    meta = {META: key} if key else {}
    began = time.perf_counter()
    answer = client.request(number, "tools/call", name=name, arguments=arguments, _meta=meta)
    took = time.perf_counter() - began
    assert not answer["result"]["isError"], answer
    return took * 1000


def main() -> int:
    """Print the table. Returns 1 if a key costs more than the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--calls", type=int, default=300, help="calls of each operation, with and without key")
    count = parser.parse_args().calls
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="linckia-keys-") as made:
        root = Path(made, "root")
        root.mkdir()
        (root / "a.yaml").write_text("a: 0\n")
        (root / "a.txt").write_text("a\nb\n")
        (root / "a.md").write_text("# a\n")
        data = Path(made, "data")
        with (
            running(data, [root], services=SERVICES),
            stdio_client(data, str(root), services=",".join(SERVICES)) as client,
        ):
            client.initialize()
            number = 10
            for name, arguments in CALLS.items():
                took: dict[bool, list[float]] = {False: [], True: []}
                for n in range(2 * count + 20):
                    number += 1
                    keyed = n % 2 == 1
                    one = timed(client, number, name, arguments(root, number), uuid.uuid4().hex if keyed else "")
                    if n >= 20:
                        took[keyed].append(one)
                bare, with_key = statistics.median(took[False]), statistics.median(took[True])
                worst = max(worst, with_key / bare)
                print(
                    f"{name:26} {bare:7.2f} ms  with a key {with_key:7.2f} ms  ratio {with_key / bare:.3f}", flush=True
                )
    print(f"worst ratio {worst:.3f}; limit {LIMIT}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
