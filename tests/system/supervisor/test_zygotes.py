"""Zygotes: forks are fast, and whatever is wrong with a zygote, services start all the same."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from kernel.configure.spec import ZygoteSpec
from kernel.router.generation import ServiceState
from kernel.supervisor.zygote import ZygoteReport
from proto.wire.launch import HEAPS
from tests.system.support.ops import Echo, Misbehave
from tests.system.support.rig import LIGHT, Rig, is_alive, open_files, supervised, trial
from tests.waiting import until

PATIENCE_S = 30

TOKEN = "only-for-the-kernel"


def zygote(rig: Rig) -> ZygoteReport:
    (report,) = rig.supervisor.status().zygotes
    return report


async def zygote_is(rig: Rig, state: str, *, other_than: int = 0) -> int:
    """Once the zygote is in that state; its pid."""
    await until(lambda: zygote(rig).state == state and zygote(rig).pid != other_than)
    return zygote(rig).pid or 0


async def test_dying_zygote_takes_no_service_with_it_and_comes_back(tmp_path: Path) -> None:
    async with supervised(tmp_path, trial()) as rig:
        with trio.fail_after(PATIENCE_S):
            report = await rig.ready()
            assert report.how == "zygote"
            old = await zygote_is(rig, "ready")
            os.kill(old, signal.SIGKILL)
            await zygote_is(rig, "ready", other_than=old)
            assert await rig.sink.said(Echo(text="unhurt")) == "unhurt"
            assert rig.report().generation == 1
            os.kill(rig.pid(), signal.SIGKILL)
            assert (await rig.ready(after=1)).how == "zygote"


async def test_service_and_zygote_killed_together_come_back(tmp_path: Path) -> None:
    async with supervised(tmp_path, trial()) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.ready()
            os.kill(await zygote_is(rig, "ready"), signal.SIGKILL)
            os.kill(rig.pid(), signal.SIGKILL)
            await rig.ready(after=1)
            assert await rig.sink.said(Echo(text="back")) == "back"


async def test_hung_zygote_is_replaced_and_the_service_starts_without_it(tmp_path: Path) -> None:
    spec = ZygoteSpec(name="light", preload=LIGHT.preload, wait_s=LIGHT.wait_s, fork_timeout_s=0.3)
    async with supervised(tmp_path, trial(), zygotes=(spec,)) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.ready()
            hung = await zygote_is(rig, "ready")
            os.kill(hung, signal.SIGSTOP)
            os.kill(rig.pid(), signal.SIGKILL)
            assert (await rig.ready(after=1)).how == "exec"
            assert not is_alive(hung)
            await zygote_is(rig, "ready")


async def test_zygote_that_is_stopped_while_it_loads_is_replaced(tmp_path: Path) -> None:
    spec = ZygoteSpec(name="light", preload=LIGHT.preload, wait_s=LIGHT.wait_s, stalled_s=0.5)
    async with supervised(tmp_path, trial(), zygotes=(spec,)) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.ready()
            ready = await zygote_is(rig, "ready")
            os.kill(ready, signal.SIGKILL)
            # It has no process yet for a moment.
            await until(lambda: zygote(rig).state == "loading" and zygote(rig).pid not in (None, ready))
            stopped = zygote(rig).pid
            assert stopped is not None
            os.kill(stopped, signal.SIGSTOP)
            assert await zygote_is(rig, "ready", other_than=ready) != stopped
            assert not is_alive(stopped)


async def test_module_that_cannot_be_imported_is_reported_and_left_out(tmp_path: Path) -> None:
    spec = ZygoteSpec(name="light", preload=("no.such.module", *LIGHT.preload), wait_s=LIGHT.wait_s)
    async with supervised(tmp_path, trial(), zygotes=(spec,)) as rig:
        with trio.fail_after(PATIENCE_S):
            assert (await rig.ready()).how == "zygote"
            assert list(zygote(rig).failed_modules) == ["no.such.module"]
            assert "No module named 'no'" in rig.log("zygote-light")


async def test_services_start_without_a_zygote_that_its_modules_killed(tmp_path: Path) -> None:
    spec = ZygoteSpec(name="light", preload=("tests.system.support.deadly",))
    async with supervised(tmp_path, trial(), zygotes=(spec,)) as rig:
        with trio.fail_after(PATIENCE_S):
            assert (await rig.ready()).how == "exec"
            await zygote_is(rig, "backoff")


async def test_zygote_whose_modules_start_threads_never_forks(tmp_path: Path) -> None:
    spec = ZygoteSpec(name="light", preload=("tests.system.support.threaded",))
    async with supervised(tmp_path, trial(), zygotes=(spec,)) as rig:
        with trio.fail_after(PATIENCE_S):
            assert (await rig.ready()).how == "exec"
            await zygote_is(rig, "unfit")
            os.kill(rig.pid(), signal.SIGKILL)
            assert (await rig.ready(after=1)).how == "exec"


async def test_a_forked_service_is_as_clean_as_a_freshly_started_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINCKIA_TEST_TOKEN", TOKEN)
    specs = (trial(), trial("other", zygote=None))
    async with supervised(tmp_path, *specs, settings={"password": "hunter2"}) as rig:
        with trio.fail_after(PATIENCE_S):
            for name, how in (("trial", "zygote"), ("other", "exec")):
                assert (await rig.ready(name)).how == how
                pid = rig.pid(name)
                assert os.getsid(pid) == os.getpgid(pid) == pid
                about = look_at(pid)
                assert about.oom_score_adj == 500
                assert about.open_files == set()
                assert f"PPid:\t{os.getpid()}\n" in about.status
                assert f"Name:\t{name}\n" in about.status
                # Arguments can be read by every user of the machine, and settings hold secrets.
                assert b"hunter2" not in about.arguments
                assert f"LINCKIA_TEST_TOKEN={TOKEN}".encode() not in about.environment


class Looks(NamedTuple):
    oom_score_adj: int
    open_files: set[str]
    status: str
    arguments: bytes
    environment: bytes


def look_at(pid: int) -> Looks:
    folder = Path(f"/proc/{pid}")
    return Looks(
        oom_score_adj=int((folder / "oom_score_adj").read_text(encoding="ascii")),
        open_files=open_files(pid),
        status=(folder / "status").read_text(encoding="ascii"),
        arguments=(folder / "cmdline").read_bytes(),
        environment=(folder / "environ").read_bytes(),
    )


async def test_a_zygote_ends_while_all_its_services_rest_and_loads_again_for_the_next(tmp_path: Path) -> None:
    spec = ZygoteSpec(name="light", preload=LIGHT.preload, wait_s=LIGHT.wait_s, rests_after_s=0)
    pair = [trial(name, rests_after_s=0.1, standby=True) for name in ("one", "other")]
    async with supervised(tmp_path, *pair, zygotes=(spec,)) as rig:
        with trio.fail_after(PATIENCE_S):
            for name in ("one", "other"):
                await rig.supervisor.wait_for(name, {ServiceState.READY})
            first = await zygote_is(rig, "ready")
            rig.sink.idle.add("one")
            await rig.supervisor.wait_for("one", {ServiceState.RESTING})
            assert (zygote(rig).state, zygote(rig).pid) == ("ready", first)
            rig.sink.idle.add("other")
            await rig.supervisor.wait_for("other", {ServiceState.RESTING})
            await until(lambda: not is_alive(first))
            await until(lambda: zygote(rig).pid is None)
            assert (zygote(rig).state, zygote(rig).deaths) == ("idle", 0)
            rig.sink.idle.clear()
            rig.supervisor.wanted("one")
            await rig.supervisor.wait_for("one", {ServiceState.READY}, after_generation=1)
            assert next(one for one in rig.supervisor.status().services if one.name == "one").how == "zygote"
            assert await rig.sink.said(Echo(text="back"), "one") == "back"
            assert await zygote_is(rig, "ready") != first


async def test_a_zygote_whose_loading_takes_long_stays_for_a_while_after_its_services(tmp_path: Path) -> None:
    spec = ZygoteSpec(name="light", preload=LIGHT.preload, wait_s=LIGHT.wait_s, rests_after_s=1.5)
    async with supervised(tmp_path, trial(rests_after_s=0.1), zygotes=(spec,)) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.ready()
            first = await zygote_is(rig, "ready")
            rig.sink.idle.add("trial")
            await rig.supervisor.wait_for("trial", {ServiceState.RESTING})
            # Back before the time is over, it keeps its zygote; the time of the first rest is then no more of account.
            rig.sink.idle.clear()
            rig.supervisor.wanted("trial")
            await rig.ready(after=1)
            await trio.sleep(2)
            assert zygote(rig).pid == first
            rig.sink.idle.add("trial")
            await rig.supervisor.wait_for("trial", {ServiceState.RESTING})
            ended = trio.current_time()
            assert zygote(rig).pid == first
            await until(lambda: zygote(rig).pid is None)
            assert trio.current_time() - ended >= 1.4
            rig.sink.idle.clear()
            rig.supervisor.wanted("trial")
            assert (await rig.ready(after=2)).how == "zygote"


async def test_a_zygote_that_rests_is_there_again_for_a_call_in_that_very_moment(tmp_path: Path) -> None:
    spec = ZygoteSpec(name="light", preload=LIGHT.preload, wait_s=LIGHT.wait_s, rests_after_s=0)
    async with supervised(tmp_path, trial(rests_after_s=0.1), zygotes=(spec,)) as rig:
        with trio.fail_after(PATIENCE_S):
            for generation in range(1, 4):
                await rig.ready(after=generation - 1)
                rig.sink.idle.add("trial")
                await rig.supervisor.wait_for("trial", {ServiceState.RESTING})
                rig.sink.idle.clear()
                # Its zygote has just been told to end.
                rig.supervisor.wanted("trial")
                assert (await rig.ready(after=generation)).how == "zygote"
            assert zygote(rig).deaths == 0


def heaps(pid: int) -> int:
    """Count glibc's heaps besides the main one: 64 MB each, and neighbours may be reported as one."""
    size, found = 64 * 2**20, 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, access, *_ = line.split()
        first, end = (int(part, 16) for part in span.split("-"))
        if access == "rw-p" and first % size == 0:
            found += (end - first) // size
    return found


@pytest.mark.parametrize("how", ["zygote", "exec"])
async def test_threads_have_as_many_heaps_as_the_service_asks_for(tmp_path: Path, how: str) -> None:
    seen: list[int] = []
    for count in (1, 3):
        spec = trial(env={HEAPS: str(count)}, zygote="light" if how == "zygote" else None)
        async with supervised(tmp_path / str(count), spec) as rig:
            with trio.fail_after(PATIENCE_S):
                assert (await rig.ready()).how == how
                assert await rig.sink.said(Misbehave(how="threads", amount=4)) == "done"
                seen.append(heaps(rig.pid()))
    # One is made for a thread that first needs memory.
    assert seen == [0, 2]
