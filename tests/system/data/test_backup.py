"""A backup of a system at work, restored elsewhere, is what the clients' ledger says of that moment."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from kernel.cli.care.data_format import program
from proto.control.client import CallFailed
from tests.system.cli.clients import command as in_this_process
from tests.system.running import REPOSITORY, Connection, RunningKernel, connection, running, wait_until
from tests.system.support.workloads import turn

SERVICES = ["transcripts", "documents", "files"]
WRITERS = 10
TRASH = "[services.files]\ntrash = true\n"


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "kernel.cli", *map(str, arguments)]


def linckia(*arguments: str | Path) -> str:
    ended = subprocess.run(command(*arguments), cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@dataclass
class Write:
    """A write in the ledger: its content, when it was requested, and when acknowledged (time.time)."""

    kind: str
    key: str
    sent: float
    acknowledged: float


@dataclass
class Ledger:
    """What ten clients write, in turns of all families."""

    root: Path
    writes: list[Write] = field(default_factory=list)
    news: trio.Event = field(default_factory=trio.Event)

    async def write(self, data: Path, which: int, stop: trio.Event) -> None:
        async with connection(data) as client:
            for n in range(10_000):
                for kind in ("turn", "document", "set", "trash"):
                    await self.one(client, kind, f"{which}-{n}")
                if stop.is_set():
                    return

    async def one(self, client: Connection, kind: str, key: str) -> None:
        name, params = self.call(kind, key)
        sent = time.time()
        answer = await client.call(name, params)
        assert answer.failure is None, answer.failure
        self.writes.append(Write(kind, key, sent, time.time()))
        self.news.set()

    async def grown(self, more: int) -> None:
        """Wait until `more` further writes were made."""
        count = len(self.writes) + more
        while len(self.writes) < count:
            self.news = trio.Event()
            await self.news.wait()

    def call(self, kind: str, key: str) -> tuple[str, dict[str, Any]]:
        match kind:
            case "turn":
                body = turn([{"role": "user", "content": f"question {key}"}], f"answer {key}")
                return "transcript_ingest", {"body": base64.b64encode(body).decode()}
            case "document":
                return "documents_add", {"name": key, "content": f"document {key}\n" * 20}
            case "set":
                return "sets_create", {"name": key}
            case _:
                (self.root / f"{key}.txt").write_text(f"file {key}\n")
                return "files_delete", {"paths": [str(self.root / f"{key}.txt")]}

    def check(self, kernel: RunningKernel, at: float) -> None:
        """All that was acknowledged before `at` is there, whole; nothing is that was asked for after it."""
        there = found(kernel, self.root)
        for kind, keys in there.items():
            own = [each for each in self.writes if each.kind == kind]
            before = {each.key for each in own if each.acknowledged < at}
            after = {each.key for each in own if each.sent > at}
            assert before, f"no {kind} was written before the backup"
            assert after, f"no {kind} was written after the backup"
            assert before <= keys, f"lost {kind}: {sorted(before - keys)}"
            assert not keys & after, f"{kind} written after the backup: {sorted(keys & after)}"


def found(kernel: RunningKernel, root: Path) -> dict[str, set[str]]:
    """Return the keys of all complete writes; a partial write is an error."""
    turns = set()
    for each in kernel.call("transcript_histories", {"limit": 1000})["histories"]:
        texts = json.dumps(kernel.call("transcript_history", {"hash": each["head_hash"]}))
        (key,) = {word.split('"')[0] for word in texts.split("answer ")[1:]}
        assert f"question {key}" in texts
        turns.add(key)
    documents = set()
    for each in kernel.call("documents_list", {"pattern": "*-*", "limit": 10_000})["documents"]:
        documents.add(each["name"])
        assert each["hash"] == hashlib.sha256((f"document {each['name']}\n" * 20).encode()).hexdigest()
    assert not kernel.call("documents_verify", {})["damaged"]
    sets = {each["name"] for each in kernel.call("sets_list")["resource_sets"]}
    trash = {Path(each["path"]).stem: each["trashId"] for each in kernel.call("trash_list", {"limit": 10_000})["items"]}
    for key in sorted(trash)[:3]:
        (root / f"{key}.txt").unlink(missing_ok=True)
        kernel.call("trash_restore", {"items": [{"trashId": trash[key]}]})
        assert (root / f"{key}.txt").read_text() == f"file {key}\n"
    return {"turn": turns, "document": documents, "set": sets, "trash": set(trash)}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("backup")


@pytest.fixture(scope="module")
def kernel(place: Path) -> Iterator[RunningKernel]:
    (place / "root").mkdir()
    (place / "data").mkdir()
    (place / "data" / "linckia.toml").write_text(f'{TRASH}[backup]\nto = "{place}/scheduled"\nkeep = 2\n')
    with running(place / "data", [place / "root"], services=SERVICES) as started:
        # The one that is due at the start: another one meanwhile is refused.
        wait_until(lambda: started.status()["backup"]["snapshot"], 60)
        yield started


HELD = """
import os, signal, sys
from services.backup.target import Folder
from kernel.cli.__main__ import main

keep = Folder.put

def put(self, block):
    name = keep(self, block)
    if self.new_bytes:
        Folder.put = keep
        os.kill(os.getpid(), signal.SIGSTOP)
    return name

Folder.put = put
sys.exit(main(sys.argv[1:]))
"""


@contextlib.contextmanager
def stopped_in_the_copy(data: Path, to: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A backup that stands still after its moment, with the first new part of it copied."""
    process = subprocess.Popen([sys.executable, "-c", HELD, "backup", str(to), "--data", str(data)], cwd=REPOSITORY)
    try:
        seen = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert seen is not None
        assert seen.si_code == os.CLD_STOPPED, "the command ended without copying anything"
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.wait()


def snapshots(to: Path, data: Path | None = None) -> list[str]:
    """List snapshots, oldest first; only those of `data` if it is given."""
    said = in_this_process(to, "backup", "--list", str(to), "--json")
    assert said.returncode == 0, said.stderr
    return [each["snapshot"] for each in json.loads(said.stdout) if data is None or each["data_dir"] == str(data)]


def test_a_backup_during_heavy_writes_matches_the_ledger_at_its_moment(kernel: RunningKernel, place: Path) -> None:
    ledger = Ledger(place / "root")
    made: dict[str, Any] = {}

    async def storm() -> None:
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            for which in range(WRITERS):
                nursery.start_soon(ledger.write, kernel.data_dir, which, stop)
            await ledger.grown(8 * WRITERS)
            said = await trio.to_thread.run_sync(
                partial(linckia, "backup", place / "to", "--data", kernel.data_dir, "--json")
            )
            made.update(json.loads(said))
            await ledger.grown(8 * WRITERS)
            stop.set()

    trio.run(storm)
    assert made["problems"] == []
    assert made["stores"] == 3
    linckia("restore", place / "to", "--data", place / "again")
    with running(place / "again", [place / "root"], services=SERVICES) as again:
        ledger.check(again, made["at"])
        (place / "root" / "after.txt").write_text("after\n")
        again.call("documents_add", {"path": str(place / "root" / "after.txt")})
    # Whatever is derived, and was left out, has been made again; and all there is was declared.
    assert (place / "again/services/documents/index.db").exists()
    for data in (kernel.data_dir, place / "again"):
        assert [each.path for each in program().stores.walk(data) if each.keep is None and not each.is_dir] == []

    second = json.loads(linckia("backup", place / "to", "--data", place / "again", "--json"))
    third = json.loads(linckia("backup", place / "to", "--data", place / "again", "--json"))
    assert third["new"] < second["size"] / 10, "little but the manifest"


def test_a_backup_target_that_clients_can_read_is_refused(kernel: RunningKernel, place: Path) -> None:
    outside = place / "linked"
    outside.symlink_to(place / "root", target_is_directory=True)
    for to in (place / "root" / "backup", place / "root" / "deep" / "b.tar", outside / "backup"):
        said = in_this_process(kernel.data_dir, "backup", str(to), "--data", str(kernel.data_dir))
        assert said.returncode == 2
        assert f"is below the root {place / 'root'}" in said.stderr
        assert not to.exists()


def test_kills_during_a_backup_harm_neither_data_nor_backup(kernel: RunningKernel, place: Path) -> None:
    to = place / "killed"
    add = {"name": "before", "content": "before"}
    kernel.call("documents_add", add)
    with stopped_in_the_copy(kernel.data_dir, to) as process:
        kernel.call("documents_add", {"name": "during", "content": "during"}, timeout_s=5)
        kernel.kill("documents")
        assert kernel.call("documents_list", {"pattern": "during"})["total"] == 1
    assert process.returncode == 0
    first = snapshots(to)
    kernel.call("documents_add", {"name": "later", "content": os.urandom(10_000).hex()})
    with stopped_in_the_copy(kernel.data_dir, to) as killed:
        killed.kill()
    assert killed.returncode == -signal.SIGKILL
    assert snapshots(to) == first
    kernel.call("documents_add", {"name": "after", "content": "after"}, timeout_s=5)
    linckia("backup", to, "--data", kernel.data_dir)
    assert not list((kernel.data_dir / "backup.staging").iterdir())
    linckia("restore", to, "--data", place / "of the first", "--at", first[0])
    assert (place / "of the first" / "services/documents/packs.db").exists()


def test_a_kernel_that_is_killed_during_a_backup(tmp_path: Path) -> None:
    data, to = tmp_path / "data", tmp_path / "to"
    with running(data, services=["documents"]) as kernel:
        kernel.call("documents_add", {"name": "before", "content": "before"})
        with stopped_in_the_copy(data, to) as process:
            kernel.process.kill()
            kernel.process.wait()
        assert process.returncode == 0
    linckia("restore", to, "--data", data, "--replace")
    with running(data, services=["documents"]) as kernel:
        assert kernel.call("documents_list")["total"] == 1
        assert kernel.call("documents_verify", {})["damaged"] == []
        ended = subprocess.run(
            command("restore", to, "--data", data, "--replace"), cwd=REPOSITORY, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert ended.returncode == 1
        assert "is held by another kernel" in ended.stderr


def test_backups_on_a_schedule(kernel: RunningKernel, place: Path) -> None:
    backup = kernel.status()["backup"]
    assert (backup["to"], backup["every_s"], backup["error"]) == (str(place / "scheduled"), 86400, "")
    for _ in range(2):
        kernel.call("kernel_backup")
    newest = kernel.status()["backup"]
    assert newest["problems"] == []
    assert newest["snapshot"] > backup["snapshot"]
    # A restored data directory has the original settings, and so their schedule.
    there = snapshots(place / "scheduled", kernel.data_dir)
    assert len(there) == 2, "as many as the settings keep"
    assert newest["snapshot"] == there[-1]

    (place / "scheduled").rename(place / "elsewhere")
    (place / "scheduled").write_text("no folder")
    with pytest.raises(CallFailed, match="cannot back up to"):
        kernel.call("kernel_backup")
    failed = kernel.status()["backup"]
    assert "cannot back up to" in failed["error"]
    assert failed["snapshot"] == newest["snapshot"]
    finding = next(each for each in json.loads(doctored(kernel.data_dir)) if each["what"] == "backup")
    assert finding["verdict"] == "bad"
    assert "the latest failed: cannot back up to" in finding["found"]
    assert finding["remedy"] == f"linckia backup {place / 'scheduled'}"


def doctored(data: Path, *options: str) -> str:
    """What doctor finds; its exit code says that something is bad."""
    return in_this_process(data, "doctor", "--json", *options).stdout
