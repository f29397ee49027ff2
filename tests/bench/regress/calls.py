"""The calls that are measured one by one: their arguments, and what the right answer is."""

from __future__ import annotations

import itertools
import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.regress.kernels import DOCUMENTS, Failed, Kernel, result_of
from tests.system.support.workloads import NOTES, turn

BLOCK = 40
"""Calls of a block that are timed, after `WARM` that are not."""
WARM = 2


@dataclass(frozen=True)
class Call:
    """A call that can be made any number of times.

    Attributes:
        arguments: of the call with this number, for a kernel with this root.
        right: whether the result is the right one; other answers end the measurement.
        prepare: makes what the calls with these numbers need; it is not timed.
        path: an HTTP route instead of the tool.
    """

    name: str
    tool: str
    arguments: Callable[[Path, int], dict[str, Any]]
    right: Callable[[Any], bool]
    prepare: Callable[[Kernel, range], None] | None = None
    path: str = ""

    def body(self, kernel: Kernel, number: int, key: str) -> bytes:
        arguments = self.arguments(kernel.root, number)
        return json.dumps(arguments).encode() if self.path else kernel.body(self.tool, arguments, key)


@dataclass
class Blocks:
    """Blocks of one call on one kernel, with numbers that go on from one to the next."""

    call: Call
    kernel: Kernel
    keyed: bool = False
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(0, WARM + BLOCK))

    def measure(self) -> list[float]:
        """Return the milliseconds of each call of a block. Raises Failed."""
        first = next(self.numbers)
        numbers = range(first, first + WARM + BLOCK)
        self.kernel.reconnect()
        if self.call.prepare is not None:
            self.call.prepare(self.kernel, numbers)
        taken = []
        for number in numbers:
            body = self.call.body(self.kernel, number, uuid.uuid4().hex if self.keyed else "")
            start = time.perf_counter()
            answer = self.kernel.http.ask(body, self.call.path)
            taken.append((time.perf_counter() - start) * 1000)
            result = _parsed(answer) if self.call.path else result_of(answer)
            if not self.call.right(result):
                raise Failed(f"wrong answer: {json.dumps(result)[:200]}")
        return taken[WARM:]


def _parsed(answer: bytes) -> Any:
    try:
        return json.loads(answer)
    except ValueError:
        raise Failed(f"no JSON: {answer[:200]!r}") from None


def _make_deleted(kernel: Kernel, numbers: range) -> None:
    for number in numbers:
        (kernel.root / "deleted" / f"{number}.txt").write_text(f"{number}\n")


def _delete(kernel: Kernel, numbers: range) -> None:
    _make_deleted(kernel, numbers)
    paths = [str(kernel.root / "deleted" / f"{number}.txt") for number in numbers]
    if kernel.call("files_delete", {"paths": paths})["succeeded"] != len(paths):
        raise Failed("the files to restore could not be deleted")


def _untag(kernel: Kernel, numbers: range) -> None:
    (kernel.root / "tagged.md").write_text("# Tagged\n")


def _to_and_fro(one: str, other: str) -> Callable[[Path, int], list[dict[str, str]]]:
    """Return the relocation from one path to the other, and with the next number the one back."""

    def relocation(root: Path, number: int) -> list[dict[str, str]]:
        here, there = (one, other) if number % 2 == 0 else (other, one)
        return [{"from": str(root / here), "to": str(root / there)}]

    return relocation


_rename = _to_and_fro("moved/old.txt", "moved/new.txt")
_move = _to_and_fro("moved/from/a.txt", "moved/to/a.txt")


def _done(result: Any) -> bool:
    return bool(result["succeeded"] == 1)


CALLS = (
    Call(
        "yaml_get",
        "yaml_get",
        lambda root, n: {"file": str(root / "settings.yaml"), "path": "server.host"},
        lambda result: bool(result["text"] == "example.org"),
    ),
    Call(
        "yaml_set",
        "yaml_set",
        lambda root, n: {"file": str(root / "values.yaml"), "path": "a", "value": str(n + 1)},
        lambda result: bool(result["changed"]),
    ),
    Call(
        "files_edit",
        "files_edit",
        lambda root, n: {"path": str(root / "edited.txt"), "edits": [{"lines": "1", "new": str(n)}]},
        lambda result: bool(result["changed"]),
    ),
    Call(
        "notes_write",
        "notes_write",
        lambda root, n: {"path": str(root / "written.md"), "content": f"# {n}\n", "overwrite": True},
        lambda result: bool(result["changed"]),
    ),
    Call(
        "notes_tag",
        "notes_tag",
        lambda root, n: {"file_path": str(root / "tagged.md"), "tags": [f"tag-{n}"]},
        lambda result: bool(result["tags"]),
        _untag,
    ),
    Call(
        "add a document",
        "execute",
        lambda root, n: {
            "operations": [{"op": "add", "params": {"name": f"added-{n % 100}", "content": f"added text {n}"}}]
        },
        _done,
    ),
    Call(
        "files_delete",
        "files_delete",
        lambda root, n: {"paths": [str(root / "deleted" / f"{n}.txt")]},
        _done,
        _make_deleted,
    ),
    Call(
        "trash_restore",
        "trash_restore",
        lambda root, n: {"paths": [str(root / "deleted" / f"{n}.txt")]},
        _done,
        _delete,
    ),
    Call("files_move", "files_move", lambda root, n: {"moves": _move(root, n)}, _done),
    Call("files_rename", "files_rename", lambda root, n: {"renames": _rename(root, n)}, _done),
    Call(
        "remember",
        "remember",
        lambda root, n: {"text": f"Shelf {n} carries box {n * 7919 % 1000}", "scope": f"project:{n % 50}"},
        lambda result: bool(result["id"]),
    ),
    Call(
        "sets_create",
        "sets_create",
        lambda root, n: {"name": f"set {n}"},
        lambda result: bool(result["name"]),
    ),
    Call(
        "preferences_set",
        "preferences_set",
        lambda root, n: {"preferences": {"a": n}},
        lambda result: "a" in result["preferences"],
    ),
    Call(
        "POST /v1/ingest",
        "",
        lambda root, n: dict(json.loads(turn([{"role": "user", "content": f"question {n}"}], f"answer {n}"))),
        lambda result: bool(result == {"status": "accepted"}),
        path="/v1/ingest",
    ),
    Call(
        "notes_search",
        "notes_search",
        lambda root, n: {"query": f"note number {n % NOTES}", "limit": 5},
        lambda result: bool(result["results"]),
    ),
    Call(
        "query with a get step",
        "query",
        lambda root, n: {"steps": [{"op": "get", "params": {"name": f"document-{n % DOCUMENTS}"}}]},
        lambda result: bool(result["hash"]),
    ),
    Call(
        "notes_read",
        "notes_read",
        lambda root, n: {"id": f"note-{n % NOTES}"},
        lambda result: "note number" in result["text"],
    ),
    Call(
        "recall",
        "recall",
        lambda root, n: {"query": f"which letter is in drawer {n % DOCUMENTS}"},
        lambda result: bool(result["count"]),
    ),
    Call(
        "navigate",
        "navigate",
        lambda root, n: {"path": str(root), "limit": 20},
        lambda result: len(result["entries"]) == 20,
    ),
    Call(
        "disk_top_files",
        "disk_top_files",
        lambda root, n: {"path": str(root), "limit": 20},
        lambda result: len(result["entries"]) == 20,
    ),
)

KEYED = ("yaml_set", "notes_write")
"""Calls that are also compared with themselves: with an idempotency key and without."""
