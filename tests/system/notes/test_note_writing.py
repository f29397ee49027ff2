"""Notes written through a real client on a real kernel: with kills, as steps, and within what a token allows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.access.tokens import HttpClient, create
from tests.system.cli.clients import command
from tests.system.notes.note_writing import SERVICES, audit, torment
from tests.system.running import HTTP, RunningKernel, running, wait_until

KILLS = 10


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("writing")
    for name in ("notes", "other"):
        (folder / name).mkdir()
    roots = [folder / "notes", folder / "other"]
    with running(folder / "data", roots, options=HTTP, services=SERVICES, token=True) as started:
        yield started


async def test_kills_during_writes_tear_no_note_and_lose_no_acknowledged_write(
    kernel: RunningKernel, pytestconfig: pytest.Config
) -> None:
    root = kernel.data_dir.parent / "notes"
    seen = await torment(kernel, root, 200 if pytestconfig.option.all else KILLS)
    assert seen.wrong == []
    assert seen.acknowledged > seen.kills
    assert seen.renamed
    assert audit(kernel, root) == []


def test_a_token_of_one_root_writes_there_and_one_that_reads_nowhere(kernel: RunningKernel) -> None:
    other = kernel.data_dir.parent / "other"
    (other / "a.md").write_text("a\n")
    limited = HttpClient(kernel, create(kernel, "limited", "--root", str(other)))
    reader = HttpClient(kernel, create(kernel, "reader", "--read-only"))
    outside = str(kernel.data_dir.parent / "notes/x.md")
    for client, path, said in (
        (limited, outside, "outside the roots"),
        (reader, str(other / "a.md"), "may only read"),
    ):
        for name, more in (("notes_write", {"content": "x", "overwrite": True}), ("notes_edit", {"append": "x"})):
            assert said in client.tool(name, {"path": path, **more}).text
    assert "is limited to" in limited.tool("notes_rename", {"path": "a.md", "to": "b.md"}).text
    assert "Node not found" in limited.tool("notes_edit", {"id": "linking0", "append": "x"}).text
    done = limited.tool("notes_edit", {"path": "a.md", "append": "b"}).json["result"]
    assert done["structuredContent"]["changed"]
    assert ((other / "a.md").read_text(), Path(outside).exists()) == ("a\nb\n", False)


def test_a_note_is_written_in_steps_and_each_is_audited(kernel: RunningKernel) -> None:
    own = HttpClient(kernel, kernel.status()["token"])
    root = kernel.data_dir.parent / "notes"
    written = {"path": f"{root}/step.md", "content": "# S\n\none\n", "front_matter": {"n": 1}}
    steps = [
        {"op": "notes_write", "params": written},
        {"op": "notes_edit", "params": {"id": "step", "append": "two"}},
        {"op": "notes_rename", "params": {"id": "step", "to": f"{root}/stride.md"}},
    ]
    answer = own.tool("execute", {"operations": steps})
    path = root / "stride.md"
    assert path.read_text() == "---\nn: 1\n---\n# S\n\none\ntwo\n", answer.text

    def audited() -> set[tuple[str, str]]:
        shown = command(kernel.data_dir, "audit", "--operation", "notes_*", "--json").stdout.splitlines()
        return {(line.get("operation"), line.get("outcome", "ok")) for line in map(json.loads, shown)}

    wait_until(lambda: {(step["op"], "ok") for step in steps} <= audited(), said=audited)
