"""Standbys: a service that dies is followed at once by a process that waited for it, which touched nothing before."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import trio
from msgspec import structs

from kernel.configure.spec import ServiceSpec
from tests.system.running import running, wait_until
from tests.system.support.ops import Echo
from tests.system.support.rig import Rig, exists, is_alive, open_files, supervised, trial
from tests.waiting import until

PATIENCE_S = 30


def watched() -> ServiceSpec:
    return trial(standby=True)


async def standby_of(rig: Rig) -> int:
    """Once there is one; its pid."""
    await until(lambda: rig.report().standby_pid is not None)
    return rig.report().standby_pid or 0


async def prepared(rig: Rig) -> int:
    """Once it waits; its pid."""
    pid = await standby_of(rig)
    await until(lambda: rig.log().count("waits for its turn") >= rig.report().generation)
    return pid


async def test_standby_takes_the_place_of_a_killed_service_again_and_again(tmp_path: Path) -> None:
    async with supervised(tmp_path, watched()) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.ready()
            for generation in range(1, 5):
                waiting = await prepared(rig)
                os.kill(rig.pid(), signal.SIGKILL)
                report = await rig.ready(after=generation)
                assert (report.pid, report.how, report.generation) == (waiting, "standby", generation + 1)
                assert await rig.sink.said(Echo(text=f"{generation}")) == f"{generation}"


async def test_standby_called_while_it_prepares_serves_all_the_same(tmp_path: Path) -> None:
    async with supervised(tmp_path, watched()) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.ready()
            for generation in range(1, 12):
                waiting = await standby_of(rig)
                os.kill(rig.pid(), signal.SIGKILL)
                assert (await rig.ready(after=generation)).pid == waiting
                assert await rig.sink.said(Echo(text="here")) == "here"
            assert rig.report().deaths == {"signal": 11}


async def test_service_whose_standby_died_is_forked_as_before(tmp_path: Path) -> None:
    async with supervised(tmp_path, watched()) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.ready()
            dead = await standby_of(rig)
            os.kill(dead, signal.SIGKILL)
            await until(lambda: not is_alive(dead))
            os.kill(rig.pid(), signal.SIGKILL)
            assert (await rig.ready(after=1)).how == "zygote"
            assert await rig.sink.said(Echo(text="back")) == "back"
            assert rig.report().deaths == {"signal": 1}
            await until(lambda: not exists(dead))


async def test_service_that_nobody_calls_has_no_standby_until_it_is_called_again(tmp_path: Path) -> None:
    spec = structs.replace(watched(), standby_rests_after_s=0.5)
    async with supervised(tmp_path, spec) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.ready()
            waiting = await standby_of(rig)
            await until(lambda: not exists(waiting))
            assert rig.report().standby_pid is None
            os.kill(rig.pid(), signal.SIGKILL)
            assert (await rig.ready(after=1)).how == "zygote"
            other = await standby_of(rig)
            await until(lambda: not exists(other))
            assert await rig.sink.said(Echo(text="again")) == "again"
            assert await standby_of(rig) != other


async def test_service_that_is_called_keeps_its_standby(tmp_path: Path) -> None:
    spec = structs.replace(watched(), standby_rests_after_s=1.0)
    async with supervised(tmp_path, spec) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.ready()
            waiting = await standby_of(rig)
            began = trio.current_time()
            while trio.current_time() - began < 3 * 1.0:
                assert await rig.sink.said(Echo(text="still")) == "still"
                assert rig.report().standby_pid == waiting


async def test_service_that_a_person_stopped_has_no_standby(tmp_path: Path) -> None:
    async with supervised(tmp_path, watched()) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.ready()
            waiting = await standby_of(rig)
            rig.supervisor.stop("trial")
            await until(lambda: not exists(waiting))
            assert rig.report().standby_pid is None


async def test_no_standby_outlives_the_supervisor(tmp_path: Path) -> None:
    async with supervised(tmp_path, watched()) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.ready()
            waiting = await standby_of(rig)
    await until(lambda: not is_alive(waiting))


async def test_service_that_was_a_standby_is_as_clean_as_one_that_was_forked(tmp_path: Path) -> None:
    async with supervised(tmp_path, watched()) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.ready()
            pid = await prepared(rig)
            os.kill(rig.pid(), signal.SIGKILL)
            await rig.ready(after=1)
            folder = Path(f"/proc/{pid}")
            assert os.getsid(pid) == os.getpgid(pid) == pid
            assert (folder / "oom_score_adj").read_text(encoding="ascii").strip() == "500"
            assert open_files(pid) == set()
            # Its log is a pipe to the kernel, as every service's.
            assert os.readlink(folder / "fd/2").startswith("pipe:")
            status = (folder / "status").read_text(encoding="ascii")
            assert f"PPid:\t{os.getpid()}\n" in status
            assert "Name:\ttrial\n" in status


def test_standbys_can_be_switched_off_and_services_are_then_forked_after_a_death(tmp_path: Path) -> None:
    with running(tmp_path / "data", environment={"LINCKIA_STANDBYS": "false"}, services=["echo"]) as kernel:
        # One is forked before it takes a place: were there any, the second or third death would be followed by it.
        for generation in (2, 3, 4):
            kernel.kill("echo")
            wait_until(lambda: f"generation {generation} started by" in kernel.log("echo"), PATIENCE_S)  # noqa: B023  # called here
            kernel.wait_ready("echo")
        # The first may be started from nothing, where a busy machine makes its zygote late.
        assert "started by standby" not in kernel.log("echo")
        assert all(service["standby_pid"] is None for service in kernel.status()["services"])
