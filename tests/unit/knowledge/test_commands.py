"""`linckia search` and `linckia ingest`: their requests and their output."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from kernel.cli.__main__ import main
from proto.control.address import hold
from proto.control.terminal import Bars
from proto.errors import Failure, Kind
from proto.operation import Params
from proto.ops import load
from services.knowledge.operations.notes import (
    KnowledgeIngest,
    KnowledgeIngestResult,
    Problem,
    SearchDocuments,
    SearchDocumentsResult,
    SearchHit,
    SearchMetadata,
)

HIT = SearchHit(
    id="sea-stars", score=0.65432, preview="Sea stars", source="hybrid",
    snippet="# Sea stars\n\nLinckia grows\nback any arm " + "it loses " * 40, context="Sea stars (lines 3-9)",
)  # fmt: skip


def found(*hits: SearchHit, degraded: Sequence[str] = ()) -> SearchDocumentsResult:
    metadata = SearchMetadata(
        query="", sonar_enabled=False, intent=None, analysis=None, stages=[], degraded=list(degraded)
    )
    return SearchDocumentsResult(results=list(hits), metadata=metadata)


class Kernel:
    """The kernel's end of a control socket: what commands ask, as their operations read it, and the answers."""

    def __init__(self, data_dir: Path) -> None:
        self.asked: list[Params[object]] = []
        self.answers: list[msgspec.Struct] = []
        self.data_dir = data_dir
        self._table = load()

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as lines:
                for line in lines:
                    request = msgspec.json.decode(line)
                    self.asked.append(self._table[request["call"]].parse(request["params"]))
                    answer = self.answers.pop(0)
                    name = "failure" if isinstance(answer, Failure) else "result"
                    lines.write(msgspec.json.encode({name: answer}) + b"\n")
                    lines.flush()


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    made = Kernel(tmp_path)
    with hold(tmp_path) as listener:
        thread = threading.Thread(target=made.serve, args=(listener,), daemon=True)
        thread.start()
        yield made
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def run(kernel: Kernel, *argv: str) -> int:
    return main([*argv, "--data", str(kernel.data_dir)])


def test_search_prints_scores_lines_and_passages(kernel: Kernel, capsys: pytest.CaptureFixture[str]) -> None:
    kernel.answers = [found(HIT, degraded=["vector: embed is down"])]
    assert run(kernel, "search", "lost", "arms", "--tag", "a", "--tag", "b", "--since", "2026-01-01") == 0
    assert kernel.asked == [SearchDocuments(query="lost arms", limit=10, since="2026-01-01", tags=["a", "b"])]
    out, err = capsys.readouterr()
    header, row = out.splitlines()
    assert header.split() == ["SCORE", "NOTE", "WHERE", "PASSAGE"]
    assert row.startswith("0.654  sea-stars  Sea stars (lines 3-9)  # Sea stars Linckia grows back any arm it loses")
    assert row.endswith("…")
    assert err == "linckia search: vector: embed is down\n"


def test_search_says_when_nothing_was_found_and_gives_json(kernel: Kernel, capsys: pytest.CaptureFixture[str]) -> None:
    kernel.answers = [found(), found()]
    assert run(kernel, "search", "x") == 0
    assert capsys.readouterr() == ("", "linckia search: nothing was found\n")
    assert run(kernel, "search", "x", "--json") == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=SearchDocumentsResult) == found()
    assert run(kernel, "search", "x", "--limit", "0") == 2
    assert "--limit is 0" in capsys.readouterr().err


def test_ingest_continues_after_a_crash_and_names_failed_notes(
    kernel: Kernel, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("proto.control.terminal.time.sleep", waits.append)
    failed = [Problem(path="/n/b.md", reason="cannot be read")]
    kernel.answers = [
        Failure(kind=Kind.UNAVAILABLE, message="it is being started", retry_after_ms=200),
        KnowledgeIngestResult(notes=5, indexed=3, failed=failed, failed_count=1, vectors_waiting=2),
    ]
    assert run(kernel, "ingest", "/n", "--no-vectors") == 1
    assert kernel.asked == [KnowledgeIngest(paths=["/n"], vectors=False)] * 2
    assert waits == [0.2]
    out, err = capsys.readouterr()
    assert out.startswith("5 notes indexed, 3 of them now, in ")
    assert out.endswith("notes/s); 1 failed; 2 passages without vectors yet\n")
    assert err == "linckia ingest: /n/b.md: cannot be read\n"


def test_ingest_of_a_folder_that_is_no_root_fails_at_once(kernel: Kernel, capsys: pytest.CaptureFixture[str]) -> None:
    kernel.answers = [Failure(kind=Kind.INVALID_PARAMS, message="/etc is not below a root")]
    assert run(kernel, "ingest", "/etc") == 1
    assert "/etc is not below a root" in capsys.readouterr().err


def test_each_count_has_its_own_progress_bar() -> None:
    with (bars := Bars(shown=True)):
        for done in range(3):
            bars.show({"done": done, "total": 4, "message": "notes"})
        bars.show({"done": 2, "total": 4, "message": "notes: waits, the search is not available"})
        bars.show({"done": 1, "total": 9, "message": "vectors"})
        counted = [(task.description, task.completed, task.total, task.fields["said"]) for task in bars.progress.tasks]
    assert counted == [("notes", 2, 4, "waits, the search is not available"), ("vectors", 1, 9, "")]
