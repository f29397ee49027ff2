"""A disk is lost in the middle of writes: what was acknowledged before the last snapshot, seconds ago, is in it."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import trio

from proto.backup import Access
from services import backup as service
from tests.system.data.test_backup import SERVICES, Ledger, found
from tests.system.running import RunningKernel, connection, running, wait_until
from tests.system.support import remote_places
from tests.system.support.remote_places import BUCKET
from tests.system.support.rig import is_alive
from tests.unit.backup.writing import restore

PAUSE_S = 0.2
"""Between the turns of a writer, so that all that it writes fits into the lists that are read afterwards."""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """Yield the address, and that of the S3 server."""
    if request.param == "folder":
        yield str(tmp_path / "to"), ""
        return
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with remote_places.s3_server(tmp_path) as endpoint:
        remote_places.client(endpoint).create_bucket(Bucket=BUCKET)
        yield f"s3://{BUCKET}/place", endpoint


def sender(kernel: RunningKernel) -> psutil.Process | None:
    """The process that makes the snapshots."""
    for each in psutil.Process(kernel.process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "--continuous" in each.cmdline():
                return each
    return None


def sent(kernel: RunningKernel) -> str:
    return str((kernel.status()["backup"] or {}).get("snapshot", ""))


async def writes(data: Path, ledger: Ledger) -> None:
    async with connection(data) as client:
        for n in itertools.count():
            for kind in ("turn", "document", "set", "trash"):
                await ledger.one(client, kind, f"0-{n}")
            await trio.sleep(PAUSE_S)


async def write(kernel: RunningKernel, ledger: Ledger) -> tuple[float, psutil.Process]:
    """Write while snapshots are made. Returns the moment of the newest when the disk was lost, and their process."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writes, kernel.data_dir, ledger)
        await ledger.grown(20)
        before = sent(kernel)
        process = sender(kernel)
        assert process is not None
        process.kill()
        # Another one goes on with what has been written meanwhile.
        while sent(kernel) == before or sender(kernel) is None:
            await ledger.grown(1)
        for _ in range(2):
            before = sent(kernel)
            while sent(kernel) == before:
                await ledger.grown(1)
        last = sender(kernel)
        assert last is not None
        moment = time.time() - kernel.status()["backup"]["age_s"]
        os.kill(kernel.process.pid, signal.SIGKILL)
        kernel.data_dir.rename(kernel.data_dir.with_name("lost"))
        nursery.cancel_scope.cancel()
    return moment, last


def test_a_lost_disk_costs_what_came_after_the_last_snapshot(place: tuple[str, str], tmp_path: Path) -> None:
    (to, endpoint), root, data = place, tmp_path / "root", tmp_path / "data"
    root.mkdir()
    data.mkdir()
    settings = f'[backup]\nto = "{to}"\nencrypt = true\ncontinuous = true\nevery = "1h"\nendpoint = "{endpoint}"\n'
    (data / "linckia.toml").write_text(f"[services.files]\ntrash = true\n{settings}")
    ledger = Ledger(root)
    with running(data, [root], services=SERVICES) as kernel:
        wait_until(lambda: sent(kernel), 120)
        key = tmp_path / "key.txt"
        key.write_text(service.key(data))
        moment, last = trio.run(write, kernel, ledger)
    # It ends with its kernel.
    wait_until(lambda: not is_alive(last.pid), 60)

    restore(to, tmp_path / "again", access=Access(key_file=key, endpoint=endpoint))
    (tmp_path / "again/linckia.toml").write_text("[services.files]\ntrash = true\n")
    with running(tmp_path / "again", [root], services=SERVICES) as again:
        there = found(again, root)
    for kind, keys in there.items():
        due = {each.key for each in ledger.writes if each.kind == kind and each.acknowledged < moment}
        assert due
        assert due <= keys, f"lost {kind}: {sorted(due - keys)}"
