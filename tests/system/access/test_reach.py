"""`linckia serve ~`: what Linckia lives on lies below the root, and no operation reaches it; and roots that are only
read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proto.control.client import CallFailed
from tests.system.cli.clients import stdio_client
from tests.system.running import REPOSITORY, RunningKernel, running, wait_until

SETTINGS = 'deny = ["{home}/vault", "*.pem"]\n\n[services.files]\ntrash = true\n'
BROWSER = "server:\n  host: 127.0.0.1\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home").resolve()
    data = home / ".local" / "linckia"
    (data / "prompts").mkdir(parents=True)
    (data / "linckia.toml").write_text(SETTINGS.format(home=home))
    (data / "config.yaml").write_text(BROWSER)
    (data / "prompts" / "own.md").write_text("# Own zebra\n")
    (home / "vault").mkdir()
    (home / "vault" / "keys.yaml").write_text("key: zebra\n")
    (home / "vault" / "note.md").write_text("# Zebra\n")
    (home / "a.pem").write_text("zebra")
    (home / "note.md").write_text("# Okapi\n")
    (home / "data-link").symlink_to(data)
    (home / "key.yaml").symlink_to(home / "vault" / "keys.yaml")
    return home


@pytest.fixture(scope="module")
def kernel(home: Path) -> Iterator[RunningKernel]:
    services = ("documents", "files", "graph", "knowledge", "media", "retrieve", "watch", "yaml")
    with running(home / ".local" / "linckia", [home], services=services) as started:
        started.call("documents_add", {"content": 'roots = ["/"]\n', "name": "linckia.toml", "collection": "evil"})
        started.call(
            "documents_add", {"content": "x", "name": ".local/linckia/services/graph/graph.db", "collection": "evil"}
        )
        started.call("index", {"root": str(home), "async": False, "force": True}, timeout_s=60)
        started.call("knowledge_ingest", {"vectors": False}, timeout_s=60)
        yield started


ATTACKS: list[tuple[str, dict[str, Any]]] = [
    ("documents_restore", {"collection": "evil", "output_directory": "DATA", "overwrite": True}),
    ("documents_restore", {"collection": "evil", "output_directory": "HOME/data-link", "overwrite": True}),
    ("documents_get", {"name": "linckia.toml", "outputPath": "DATA/linckia.toml"}),
    ("documents_get", {"name": "linckia.toml", "outputPath": "HOME/vault/../.local/linckia/services/graph/graph.db"}),
    ("documents_add", {"path": "DATA/linckia.toml"}),
    ("documents_add", {"path": "DATA", "recursive": True}),
    ("documents_add", {"path": "HOME/a.pem"}),
    ("yaml_set", {"file": "DATA/config.yaml", "path": "server.host", "value": "0.0.0.0"}),
    ("yaml_get", {"file": "HOME/data-link/config.yaml", "path": "server.host"}),
    ("yaml_get", {"file": "key.yaml", "path": "key"}),
    ("media_content", {"path": "DATA/services/graph/graph.db", "offset": 0, "limit": 100}),
    ("media_content", {"path": "DATA/logs/kernel.log", "offset": 0, "limit": 100}),
    ("media_content", {"path": "HOME/a.pem", "offset": 0, "limit": 100}),
    ("notes_tag", {"file_path": "DATA/prompts/own.md", "tags": ["evil"]}),
    ("notes_tag", {"file_path": "vault/note.md", "tags": ["evil"]}),
    ("notes_write", {"path": "DATA/prompts/own.md", "content": "evil", "overwrite": True}),
    ("notes_write", {"path": "vault/new/note.md", "content": "evil"}),
    ("notes_edit", {"path": "HOME/vault/note.md", "append": "evil"}),
    ("notes_rename", {"path": "note.md", "to": "vault/note.md"}),
    ("knowledge_ingest", {"paths": ["DATA/prompts"]}),
    ("index", {"root": "DATA"}),
    ("navigate", {"path": "DATA"}),
    ("navigate", {"path": "HOME/data-link"}),
    ("inspect", {"path": "HOME/vault/keys.yaml"}),
    ("watch_subscribe", {"name": "evil", "paths": ["DATA"]}),
]


@pytest.mark.parametrize(("name", "params"), ATTACKS)
def test_no_operation_reaches_linckia_s_own_folders(
    kernel: RunningKernel, home: Path, name: str, params: dict[str, Any]
) -> None:
    asked = json.loads(json.dumps(params).replace("DATA", str(kernel.data_dir)).replace("HOME", str(home)))
    with pytest.raises(CallFailed) as refused:
        kernel.call(name, asked)
    assert refused.value.failure["kind"] == "forbidden"
    assert "may not be reached" in refused.value.failure["message"]
    assert (kernel.data_dir / "linckia.toml").read_text() == SETTINGS.format(home=home)
    assert (kernel.data_dir / "config.yaml").read_text() == BROWSER
    assert (kernel.data_dir / "services" / "graph" / "graph.db").read_bytes().startswith(b"SQLite format 3")


def test_restoring_next_to_linckia_s_folders_leaves_them_alone(kernel: RunningKernel, home: Path) -> None:
    restored = kernel.call(
        "documents_restore", {"collection": "evil", "output_directory": str(home), "overwrite": True}
    )
    reasons = {each["path"]: each["reason"] for each in restored["files"]}
    assert "may not be reached" in reasons[".local/linckia/services/graph/graph.db"]
    assert (home / "linckia.toml").read_text() == 'roots = ["/"]\n'
    (home / "linckia.toml").unlink()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (".local/linckia/linckia.toml", "stolen"), (".local", "elsewhere"), ("note.md", ".local/linckia/config.yaml2"),
        ("vault", "open"), ("a.pem", "a.txt"),
    ],
)  # fmt: skip
def test_nothing_is_moved_into_or_out_of_linckia_s_folders(
    kernel: RunningKernel, home: Path, source: str, target: str
) -> None:
    moved = kernel.call("files_move", {"moves": [{"from": str(home / source), "to": str(home / target)}]})
    assert (moved["succeeded"], "may not be reached" in moved["results"][0]["error"]) == (0, True)
    assert (home / source).exists()
    if target != ".local/linckia/config.yaml2":
        deleted = kernel.call("files_delete", {"paths": [str(home / source)], "force": True})
        assert (deleted["succeeded"], "may not be reached" in deleted["results"][0]["error"]) == (0, True)


def test_trash_is_not_restored_into_linckia_s_folders(kernel: RunningKernel, home: Path) -> None:
    (home / "gone.toml").write_text('roots = ["/"]')
    (thrown,) = kernel.call("files_delete", {"paths": [str(home / "gone.toml")]})["results"]
    target = str(kernel.data_dir / "prompts" / "evil.md")
    came = kernel.call("trash_restore", {"items": [{"trashId": thrown["trashId"], "to": target}]})
    assert "may not be reached" in came["results"][0]["error"]
    assert not Path(target).exists()


def test_nothing_in_linckia_s_folders_is_found(kernel: RunningKernel, home: Path) -> None:
    listed = kernel.call("navigate", {"path": str(home)})["entries"]
    assert {entry["name"] for entry in listed} == {".local", "data-link", "key.yaml", "note.md"}
    assert kernel.call("navigate", {"path": str(home / ".local")})["entries"] == []
    assert kernel.call("notes_status")["notes"] == 1
    kernel.call("documents_add", {"path": str(home), "recursive": True, "no_ignore": True})
    held = [document["path"] for document in kernel.call("documents_list", {})["documents"]]
    assert [path for path in held if path.startswith(str(home))] == [str(home / "note.md")]


def test_later_files_in_linckia_s_folders_are_not_found_either(kernel: RunningKernel, home: Path) -> None:
    (home / "vault" / "later.md").write_text("# Later\n")
    (kernel.data_dir / "later.md").write_text("# Later\n")
    (home / "seen.md").write_text("# Seen\n")
    until_notes(kernel, 2)
    kernel.call("knowledge_ingest", {"vectors": False}, timeout_s=60)
    assert kernel.call("notes_status")["notes"] == 2
    # Restore the state that the other tests expect.
    (home / "seen.md").unlink()
    until_notes(kernel, 1)


def until_notes(kernel: RunningKernel, count: int) -> None:
    wait_until(lambda: kernel.call("notes_status")["notes"] == count, said=lambda: kernel.call("notes_status"))


def test_root_that_is_only_read_is_not_written(tmp_path: Path) -> None:
    read, write, data = tmp_path / "read", tmp_path / "write", tmp_path / "data"
    for folder in (read, write, data):
        folder.mkdir()
    for folder in (read, write):
        (folder / "note.md").write_text("# Note\n")
        (folder / "f.yaml").write_text("a: 1\n")
    (data / "linckia.toml").write_text(f'roots = [{{path = "{read}", mode = "read"}}, "{write}"]\n')
    with running(data, services=("documents", "files", "knowledge", "retrieve", "yaml")) as kernel:
        assert kernel.status()["read_only_roots"] == [str(read)]
        kernel.call("documents_add", {"content": "x", "name": "x", "collection": "all"})
        for name, params in (
            ("yaml_set", {"file": "ROOT/f.yaml", "path": "a", "value": "2"}),
            ("notes_tag", {"file_path": "ROOT/note.md", "tags": ["t"]}),
            ("notes_write", {"path": "ROOT/new.md", "content": "x"}),
            ("notes_edit", {"path": "ROOT/note.md", "append": "x"}),
            ("documents_restore", {"collection": "all", "output_directory": "ROOT/out"}),
            ("documents_get", {"name": "x", "outputPath": "ROOT/x"}),
        ):
            with pytest.raises(CallFailed, match=f"the root {read} is read-only") as refused:
                kernel.call(name, json.loads(json.dumps(params).replace("ROOT", str(read))))
            assert refused.value.failure["kind"] == "forbidden"
            kernel.call(name, json.loads(json.dumps(params).replace("ROOT", str(write))))
        moved = kernel.call("files_move", {"moves": [{"from": str(read / "note.md"), "to": str(write / "n.md")}]})
        assert "is read-only" in moved["results"][0]["error"]
        assert "1" in json.dumps(kernel.call("yaml_get", {"file": str(read / "f.yaml"), "path": "a"}))
        # Who asks for a session that changes nothing gets no other.
        joined = subprocess.run(
            [sys.executable, "-m", "kernel.cli", "stdio", "--read-only", "--data", str(data)],
            stdin=subprocess.DEVNULL, capture_output=True, cwd=REPOSITORY, text=True, check=False,
        )  # fmt: skip
        assert (joined.returncode, "is not read-only" in joined.stderr) == (1, True)
    assert sorted(path.name for path in read.iterdir()) == ["f.yaml", "note.md"]


def test_a_read_only_kernel_refuses_all_changes_by_clients(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "f.yaml").write_text("a: 1\n")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("yaml_get", {"file": "f.yaml", "path": "a"}),
        ("yaml_set", {"file": "f.yaml", "path": "a", "value": "2"}),
        ("execute", {"operations": [{"op": "add", "params": {"content": "x", "name": "x"}}]}),
    ]
    with stdio_client(tmp_path / "data", str(root), "--read-only", services="documents,yaml") as client:
        client.initialize()
        answers = [client.request(1, "tools/call", name=name, arguments=arguments) for name, arguments in calls]
        assert client.leave() == 0
    assert not answers[0]["result"].get("isError")
    assert all("read-only" in json.dumps(answer) for answer in answers[1:]), answers
    assert (root / "f.yaml").read_text() == "a: 1\n"
