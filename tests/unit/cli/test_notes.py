"""`linckia search` and `linckia ingest`: their requests and their output."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kernel.cli.__main__ import main
from proto.control import terminal
from proto.control.client import CallFailed
from proto.control.terminal import Bars

HIT = {
    "id": "sea-stars", "score": 0.65432, "preview": "Sea stars", "source": "hybrid",
    "snippet": "# Sea stars\n\nLinckia grows\nback any arm " + "it loses " * 40, "context": "Sea stars (lines 3-9)",
}  # fmt: skip


class Kernel:
    """What the commands ask, and the answers they get."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        self.answers: list[Any] = []

    def __call__(self, *_: object) -> Kernel:
        return self

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None: ...

    def call(
        self, name: str, params: Mapping[str, Any], *, on_progress: Callable[[dict[str, Any]], None] | None = None
    ) -> Any:
        self.asked.append((name, params))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(terminal, "Client", kernel)
    return kernel


def test_search_prints_scores_lines_and_passages(kernel: Kernel, capsys: pytest.CaptureFixture[str]) -> None:
    kernel.answers = [{"results": [HIT], "metadata": {"degraded": ["vector: embed is down"]}}]
    assert main(["search", "lost", "arms", "--tag", "a", "--tag", "b", "--since", "2026-01-01"]) == 0
    assert kernel.asked == [
        ("search_documents", {"query": "lost arms", "limit": 10, "since": "2026-01-01", "tags": ["a", "b"]})
    ]  # fmt: skip
    out, err = capsys.readouterr()
    header, row = out.splitlines()
    assert header.split() == ["SCORE", "NOTE", "WHERE", "PASSAGE"]
    assert row.startswith("0.654  sea-stars  Sea stars (lines 3-9)  # Sea stars Linckia grows back any arm it loses")
    assert row.endswith("…")
    assert err == "linckia search: vector: embed is down\n"


def test_search_says_when_nothing_was_found_and_gives_json(kernel: Kernel, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = {"results": [], "metadata": {"degraded": []}}
    kernel.answers = [nothing, nothing]
    assert main(["search", "x"]) == 0
    assert capsys.readouterr() == ("", "linckia search: nothing was found\n")
    assert main(["search", "x", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == nothing
    assert main(["search", "x", "--limit", "0"]) == 2
    assert "--limit is 0" in capsys.readouterr().err


def test_ingest_continues_after_a_crash_and_names_failed_notes(
    kernel: Kernel, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("proto.control.terminal.time.sleep", waits.append)
    failed = [{"path": "/n/b.md", "reason": "cannot be read"}]
    kernel.answers = [
        CallFailed({"kind": "unavailable", "message": "it is being started", "retry_after_ms": 200}),
        {"notes": 5, "indexed": 3, "failed": failed, "failed_count": 1, "vectors_waiting": 2},
    ]
    assert main(["ingest", "/n", "--no-vectors"]) == 1
    assert kernel.asked == [("knowledge_ingest", {"paths": ["/n"], "vectors": False})] * 2
    assert waits == [0.2]
    out, err = capsys.readouterr()
    assert out.startswith("5 notes indexed, 3 of them now, in ")
    assert out.endswith("notes/s); 1 failed; 2 passages without vectors yet\n")
    assert err == "linckia ingest: /n/b.md: cannot be read\n"


def test_ingest_of_a_folder_that_is_no_root_fails_at_once(kernel: Kernel, capsys: pytest.CaptureFixture[str]) -> None:
    kernel.answers = [CallFailed({"kind": "invalid_params", "message": "/etc is not below a root"})]
    assert main(["ingest", "/etc"]) == 1
    assert "/etc is not below a root" in capsys.readouterr().err


def test_each_count_has_its_own_progress_bar() -> None:
    with (bars := Bars(shown=True)):
        for done in range(3):
            bars.show({"done": done, "total": 4, "message": "notes"})
        bars.show({"done": 2, "total": 4, "message": "notes: waits, the search is not available"})
        bars.show({"done": 1, "total": 9, "message": "vectors"})
        counted = [(task.description, task.completed, task.total, task.fields["said"]) for task in bars.progress.tasks]
    assert counted == [("notes", 2, 4, "waits, the search is not available"), ("vectors", 1, 9, "")]
