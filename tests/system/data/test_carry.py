"""`linckia export` and `import` on real kernels: nothing is lost, nothing differs, and once more changes nothing."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from proto.control.client import CallFailed
from tests.system.cli.clients import command
from tests.system.running import RunningKernel, running

SERVICES = ["documents", "transcripts", "files", "retrieve", "watch", "memory"]


def linckia(data: Path, *arguments: str, code: int = 0) -> str:
    """What the command says, on both streams."""
    done = command(data, *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def post(kernel: RunningKernel, said: list[str], reply: str, system: str = "") -> str:
    """Record a conversation; return the hash of its reply."""
    messages = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(said)]
    request = {"model": "claude-x", "max_tokens": 9, "messages": messages, **({"system": system} if system else {})}
    response = {
        "type": "message", "role": "assistant", "model": "claude-x", "stop_reason": "end_turn",
        "content": [{"type": "thinking", "thinking": "…", "signature": "s"}, {"type": "text", "text": reply}],
        "usage": {"input_tokens": 3, "output_tokens": 2},
    }  # fmt: skip
    turn = {"provider": "anthropic", "project": "p", "request": request, "response": response}
    body = base64.b64encode(json.dumps(turn).encode()).decode()
    return str(kernel.call("transcript_ingest", {"body": body})["head_hash"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningKernel, Path]]:
    """A kernel with something of everything, and its root."""
    root = tmp_path_factory.mktemp("root")
    (root / "a.txt").write_text("as it was")
    (root / "large.bin").write_bytes(os.urandom(2_500_000))
    (root / "same.bin").write_bytes(b"same")
    with running(tmp_path_factory.mktemp("data"), [root], services=SERVICES) as kernel:
        _documents(kernel, root)
        _transcripts(kernel)
        _files(kernel, root)
        _collections(kernel)
        for text in ("Erik works at Siemens", "Erik works at Bosch", "erik works at bosch!"):
            kernel.call("remember", {"text": text, "tags": ["people"], "source": text[:6]})
        yield kernel, root


def _documents(kernel: RunningKernel, root: Path) -> None:
    kernel.call("documents_add", {"path": str(root), "collection": "c", "tags": ["x", "ä"], "snapshot_label": "one"})
    # Only the snapshot holds the earlier text.
    (root / "a.txt").write_text("as it is")
    kernel.call("documents_add", {"path": str(root)})
    session = kernel.call("documents_session_start", {"label": "work"})["session_id"]
    # An empty folder, so that nothing is added of its own accord.
    (root / "watched").mkdir()
    kernel.call("documents_session_watch", {"session_id": session, "root": str(root / "watched")})
    for name in ("same", "../../etc/odd\nname", "." * 3):
        kernel.call("documents_add", {"name": name, "content": "same", "metadata": {"n": 1, "b": True, "a": None}})


def _transcripts(kernel: RunningKernel) -> None:
    first = post(kernel, ["Which animal grows back an arm?"], "A sea star.", system="Be brief.")
    post(kernel, ["Which animal grows back an arm?", "A sea star.", "Which one?"], "Linckia.")
    post(kernel, ["Which animal grows back an arm?", "A sea star.", "How long?"], "A year.")
    kernel.call("chats_delete", {"hash": first})
    kernel.call("chats_delete", {"hash": post(kernel, ["a secret"], "kept"), "bar": True})
    post(kernel, ["Another one"], "Yes.", system="Be brief.")


def _files(kernel: RunningKernel, root: Path) -> None:
    kernel.call("index", {"root": str(root), "async": False})
    for name in ("above", "below"):
        kernel.call("sets_create", {"name": name, "description": f"{name} it"})
    kernel.call("sets_add_child", {"parent": "above", "child": "below"})
    paths = [str(root / "a.txt"), str(root / "large.bin")]
    kernel.call("sets_modify", {"name": "below", "operation": "add", "paths": paths})
    kernel.call("queries_create", {"name": "texts", "query": {"extension": "txt", "min_size": 1}})
    kernel.call("sources_create", {"name": "root", "type": "manual", "path": str(root)})
    sources = [{"type": "query", "config": {"query": "texts"}}]
    outcomes = [{"type": "selection_set", "selectionSetName": "above"}]
    conditions = {"type": "size", "minSize": 1}
    kernel.call("plans_create", {"name": "p", "sources": sources, "outcomes": outcomes, "conditions": conditions})
    kernel.call("plans_execute", {"name": "p"})
    while kernel.call("plans_get", {"name": "p"})["executions"][0]["status"] == "running":
        time.sleep(0.01)
    kernel.call("plans_update", {"name": "p", "status": "paused"})


def _collections(kernel: RunningKernel) -> None:
    kernel.call("collections_create", {"collection": "texts"})
    kernel.call("collections_create", {"collection": "vectors", "dimensions": 3})
    kernel.call("collections_create", {"collection": "empty"})
    texts = [{"id": f"t{n}", "text": f"ticket {n}\n\n" * 300, "payload": {"n": n, "open": True}} for n in range(3)]
    kernel.call("collections_upsert", {"collection": "texts", "documents": texts})
    vectors = [{"id": f"v{n}", "vector": [n + 0.1, -1, 7e3], "text": "named" if n else ""} for n in range(150)]
    kernel.call("collections_upsert", {"collection": "vectors", "documents": vectors})


def test_export_import_export_gives_the_same_bytes(made: tuple[RunningKernel, Path], tmp_path: Path) -> None:
    kernel, root = made
    one, again, cut = tmp_path / "one", tmp_path / "again", tmp_path / "cut"
    # What an export that was cut short left.
    (tmp_path / "one.partial" / "documents").mkdir(parents=True)
    (tmp_path / "one.partial" / "export.json").write_text("{}")
    linckia(kernel.data_dir, "export", str(one))
    linckia(kernel.data_dir, "export", str(again))
    assert contents(one) == contents(again)
    lines = [
        json.loads(line) for file in one.glob("transcripts/2*/*.jsonl") for line in file.read_text().split("\n") if line
    ]
    assert {line["content"][0]["text"] for line in lines if "gone" not in line} >= {"Linckia.", "A year."}
    assert sum("gone" in line for line in lines) == 1
    assert "a secret" in str(lines)
    assert "kept" not in str(lines)
    (lost,) = (file for file in one.glob("documents/contents/*/*") if file.read_bytes() == b"as it was")
    assert lost.name == sha256(b"as it was").hexdigest()

    # An import that is cut short: the export has lost contents, and some of the conversations.
    shutil.copytree(one, cut)
    (cut / lost.relative_to(one)).unlink()
    shutil.rmtree(next(cut.glob("transcripts/2*")))
    # Exports had a folder for each content once.
    for file in one.glob("documents/contents/*/*"):
        content = file.read_bytes()
        file.unlink()
        file.mkdir()
        (file / "name.txt").write_bytes(content)
    with running(tmp_path / "data", [root], services=SERVICES) as other:
        with pytest.raises(CallFailed):
            other.call("transcript_restore", {"turns": [{**lines[0], "model": "forged"}]})
        assert "is not stored" in linckia(tmp_path / "data", "import", str(cut), code=1)
        linckia(tmp_path / "data", "import", str(one))
        assert linckia(tmp_path / "data", "import", str(one)).count(" 0 new rows") == 2
        linckia(tmp_path / "data", "export", str(tmp_path / "two"))
        assert contents(tmp_path / "two") == contents(again)
        assert [run["status"] for run in other.call("plans_get", {"name": "p"})["executions"]] == ["completed"]
        nearest = other.call("collections_search", {"collection": "vectors", "vector": [149.1, -1, 7e3], "limit": 1})
        assert [hit["id"] for hit in nearest["hits"]] == ["v149"]
        # It is not data alone: it is found, restored, and kept out.
        (snapshot,) = (s for s in other.call("documents_snapshots")["snapshots"] if s["label"] == "one")
        out = root / "restored"
        other.call("documents_restore", {"snapshot_id": snapshot["id"], "output_directory": str(out)})
        assert (out / "a.txt").read_text() == "as it was"
        shutil.rmtree(out)
        assert other.call("documents_grep", {"pattern": "as it is"})["matches"]
        reply = post(other, ["a secret"], "kept")
        assert other.call("transcript_node", {"hash": reply}) is None


def test_invalid_exports_are_refused_and_nothing_is_overwritten(
    made: tuple[RunningKernel, Path], tmp_path: Path
) -> None:
    kernel, _ = made
    sets = kernel.call("sets_list")["resource_sets"]
    (tmp_path / "mine").write_text("mine")
    assert "already exists" in linckia(kernel.data_dir, "export", str(tmp_path), code=1)
    assert "is not a Linckia export" in linckia(kernel.data_dir, "import", str(tmp_path), code=2)
    (tmp_path / "export.json").write_text('{"linckia_export": 2}')
    assert "has format 2; this version of Linckia reads 1" in linckia(kernel.data_dir, "import", str(tmp_path), code=1)
    (tmp_path / "export.json").write_text('{"linckia_export": 1}')
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "sets.jsonl").write_text('{"name": "new"}\n{"na\n')
    assert "sets.jsonl, line 2" in linckia(kernel.data_dir, "import", str(tmp_path), code=1)
    (tmp_path / "files" / "sets.jsonl").write_text("[1]\n")
    assert "does not match its README.md" in linckia(kernel.data_dir, "import", str(tmp_path), code=1)
    assert kernel.call("sets_list")["resource_sets"] == sets
    assert (tmp_path / "mine").read_text() == "mine"


def _node(db: sqlite3.Connection, hash_: str, parent: str | None, bucket: dict[str, Any], **more: Any) -> None:
    row = {"hash": hash_, "parent_hash": parent, "bucket": json.dumps(bucket), "content": "[]", **more}
    db.execute(f"INSERT INTO nodes({', '.join(row)}) VALUES({', '.join('?' * len(row))})", tuple(row.values()))


def _bucket(role: str, said: str) -> dict[str, Any]:
    content = [{"type": "text", "text": said}]
    return {"type": "message", "role": role, "content": content, "model": "m", "provider": "openai"}


def test_the_conversations_of_tapes(made: tuple[RunningKernel, Path], tmp_path: Path) -> None:
    kernel, _ = made
    columns = "hash TEXT PRIMARY KEY, bucket TEXT, content TEXT, stop_reason TEXT, prompt_tokens INTEGER, project TEXT"
    file = tmp_path / "tapes.sqlite"
    with contextlib.closing(sqlite3.connect(file)) as db:
        db.execute(f"CREATE TABLE nodes({columns}, created_at DATETIME, parent_hash TEXT)")
        at = {"created_at": "2026-02-03 04:05:06.123456789+00:00"}
        _node(db, "c3", "b2", _bucket("user", "a branch from tapes"), **at)
        _node(db, "b2", "a1", _bucket("assistant", "an answer"), stop_reason="stop", prompt_tokens=7, **at)
        _node(db, "d4", "b2", _bucket("user", "another branch"), project="site", **at)
        _node(db, "a1", None, _bucket("user", "a question for tapes"), **at)
        db.commit()
    assert "4 turns are stored" in linckia(kernel.data_dir, "import", "--from", "tapes", str(file))
    turns = kernel.call("transcript_stats")
    assert "4 turns are stored" in linckia(kernel.data_dir, "import", "--from", "tapes", str(file))
    assert kernel.call("transcript_stats") == turns
    found = [history["messages"] for history in kernel.call("transcript_histories", {"limit": 2})["histories"]]
    assert {message["content"][0]["text"] for message in found[0]} | {found[1][-1]["content"][0]["text"]} == {
        "a question for tapes", "an answer", "a branch from tapes", "another branch"
    }  # fmt: skip
    assert (found[0][1]["stop_reason"], found[0][1]["usage"]) == ("stop", {"prompt_tokens": 7})
    with contextlib.closing(sqlite3.connect(tmp_path / "first.sqlite")) as db:
        db.execute("CREATE TABLE nodes(hash TEXT PRIMARY KEY, parent_hash TEXT, content TEXT, created_at DATETIME)")
        row = ("e5", json.dumps(_bucket("user", "the first schema")), "2026-01-26 10:00:00")
        db.execute("INSERT INTO nodes(hash, content, created_at) VALUES(?, ?, ?)", row)
        db.commit()
    assert "1 turns are stored" in linckia(kernel.data_dir, "import", "--from", "tapes", str(tmp_path / "first.sqlite"))
    (tmp_path / "no.sqlite").write_text("no database at all, whatever its name says")
    said = linckia(kernel.data_dir, "import", "--from", "tapes", str(tmp_path / "no.sqlite"), code=1)
    assert "cannot be read as a database of tapes" in said


SPACE_BROWSER = """
CREATE TABLE resource_sets(id INTEGER PRIMARY KEY, name TEXT, description TEXT);
CREATE TABLE resource_set_entries(set_id INTEGER, entry_path TEXT);
CREATE TABLE resource_set_edges(parent_id INTEGER, child_id INTEGER);
CREATE TABLE queries(name TEXT, description TEXT, query_type TEXT, query_json TEXT);
CREATE TABLE sources(name TEXT, type TEXT, root_path TEXT, config_json TEXT, enabled INTEGER);
CREATE TABLE plans(name TEXT, description TEXT, mode TEXT, status TEXT, "trigger" TEXT, sources_json TEXT,
    conditions_json TEXT, outcomes_json TEXT);
INSERT INTO resource_sets VALUES(1, 'old', NULL), (2, 'older', 'two');
INSERT INTO resource_set_edges VALUES(1, 2);
INSERT INTO queries VALUES('big', NULL, 'file_filter', '{"minSize": 10, "extensions": ["bin"], "sortBy": "size"}'),
    ('script', NULL, 'custom_script', '{}');
INSERT INTO plans VALUES('sort', 'd', 'oneshot', 'disabled', 'manual',
    '[{"type": "query", "source_ref": "big"}, {"type": "selection_set", "source_ref": "old"}]',
    '{"type": "size", "minSize": 1}',
    '[{"tool": "sets_modify", "arguments": {"name": "old", "operation": "add", "paths": ["{{entry.path}}"]}}]'),
    ('hook', '', 'oneshot', 'active', 'on_add', '[]', NULL, '[]');
"""


def test_the_sets_and_plans_of_the_space_browser(made: tuple[RunningKernel, Path], tmp_path: Path) -> None:
    kernel, root = made
    file = tmp_path / "disk.db"
    # Not in the index yet.
    (root / "more").mkdir()
    (root / "more" / "b.bin").write_bytes(b"b" * 20)
    with contextlib.closing(sqlite3.connect(file)) as db:
        db.executescript(SPACE_BROWSER)
        paths = [str(root / "more" / "b.bin"), str(root / "gone.bin")]
        db.executemany("INSERT INTO resource_set_entries VALUES(2, ?)", ((path,) for path in paths))
        db.execute("INSERT INTO sources VALUES('s', 'live', ?, '{\"debounce_ms\": 50}', 0)", (str(root),))
        db.execute("INSERT INTO sources VALUES('t', 'live', '/nowhere/else', NULL, 0)")
        db.commit()
    said = linckia(kernel.data_dir, "import", "--from", "space-browser", str(file), code=1)
    for left in ("'script' is left out", "'hook' is left out", "source 't' is left out", "1 entries of resource sets"):
        assert left in said
    older = kernel.call("sets_get", {"name": "older", "include_entries": True})
    assert (older["parents"], [entry["path"] for entry in older["entries"]]) == (["old"], paths[:1])
    assert kernel.call("sources_get", {"name": "s"})["debounce_ms"] == 50
    assert kernel.call("plans_get", {"name": "sort"})["status"] == "disabled"
    assert kernel.call("queries_execute", {"name": "big"})["entries"][0]["path"].endswith(".bin")
    before = kernel.call("sets_list")
    assert "0 were created, 0 entries" in linckia(
        kernel.data_dir, "import", "--from", "space-browser", str(file), code=1
    )
    assert kernel.call("sets_list")["total"] == before["total"]
