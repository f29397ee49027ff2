"""The tokens of twenty answers as services give them, and as models get them: without members that say nothing.

Both are of the same calls of a kernel over this repository's documentation: the command line gets whole results, and
steps on the surface `all` the others. A token is four characters of compact JSON.

    scripts/bench noise
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.parts.wire import Stdio
from tests.bench.surfaces import size
from tests.system.running import REPOSITORY, RunningKernel, polls, running


def calls(root: Path, document: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the calls: three in four find, get or list something."""
    guide = str(root / "guide.md")
    yield "documents_grep", {"pattern": "kernel", "limit": 20}
    yield "documents_grep", {"pattern": "restart", "context": 1, "limit": 10}
    yield "documents_grep", {"pattern": "backup", "count": True}
    yield "documents_search", {"query": "restore a backup", "limit": 5}
    yield "documents_search", {"query": "which tool finds a file", "limit": 10}
    yield "documents_get", {"hash": document}
    yield "documents_get", {"hash": document, "include_content": True}
    yield "documents_list", {"limit": 20}
    yield "documents_collections", {}
    yield "documents_status", {}
    yield "files_grep", {"pattern": "kernel", "path": str(root), "limit": 20}
    yield "files_read", {"path": guide, "lines": "1-20"}
    yield "files_browse", {"path": str(root)}
    yield "files_inspect", {"path": guide}
    yield "disk_top_files", {"path": str(root), "limit": 10}
    yield "jobs_list", {}
    yield "notes_search", {"query": "how a service is restarted"}
    yield "notes_links", {"id": "index"}
    yield "notes_status", {}
    yield "kernel_status", {}


def main() -> None:
    argparse.ArgumentParser(prog="scripts/bench noise", description=__doc__.splitlines()[0]).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root, data = Path(folder) / "root", Path(folder) / "data"
        root.mkdir()
        for source in (REPOSITORY / "docs").glob("*.md"):
            (root / source.name).write_bytes(source.read_bytes())
        (root / "guide.md").write_bytes((REPOSITORY / "README.md").read_bytes())
        with running(data, [root]) as kernel:
            client = Stdio([sys.executable, "-P", "-m", "kernel.cli", "stdio", "--data", str(data), "--surface", "all"])
            report(kernel, client, root)
            client.close()


def report(kernel: RunningKernel, client: Stdio, root: Path) -> None:
    def told(name: str, arguments: dict[str, Any]) -> Any:
        step = {"steps": [{"op": name, "params": arguments}], "max_tokens": 100_000}
        params = {"name": "ops_query", "arguments": step}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        result = json.loads(client.exchange(json.dumps(message).encode()))["result"]
        if result["isError"]:
            raise AssertionError(f"{name} failed: {result}")
        return result["structuredContent"]

    kernel.call("files_index", {"path": str(root)})
    for note in sorted(root.glob("*.md")):
        added = kernel.call("documents_add", {"path": str(note)})
    kernel.call("memory_add", {"text": "The office closes at five."})
    for _ in polls(120):
        if not kernel.call("documents_search", {"query": "kernel"})["degraded"]:
            break
    totals = [0, 0]
    print(f"{'call':24}{'whole':>8}{'sent':>8}{'less':>8}")
    for name, arguments in calls(root, added["hash"]):
        sizes = [size(kernel.call(name, arguments)), size(told(name, arguments))]
        totals = [a + b for a, b in zip(totals, sizes, strict=True)]
        print(f"{name:24}{sizes[0]:8}{sizes[1]:8}{1 - sizes[1] / max(sizes[0], 1):8.0%}")
    print(f"{'together':24}{totals[0]:8}{totals[1]:8}{1 - totals[1] / totals[0]:8.0%}")


if __name__ == "__main__":
    main()
