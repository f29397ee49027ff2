"""Real processes die in every way there is; the supervisor notices, names the cause, and starts the next generation."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path

import pytest
import trio

from kernel.configure.spec import Backoff
from kernel.router.generation import ServiceState
from kernel.router.ports import CauseKind
from kernel.supervisor.local import LocalPlacement
from kernel.supervisor.processes import memory_bytes
from proto.wire.frames import Return
from proto.wire.launch import EXIT_OUT_OF_MEMORY
from tests.system.support.ops import Echo, Misbehave
from tests.system.support.rig import exists, is_alive, supervised, trial
from tests.waiting import until

PATIENCE_S = 30


async def test_killed_service_answers_again_from_a_zygote(tmp_path: Path) -> None:
    with trio.fail_after(PATIENCE_S):
        async with supervised(tmp_path, trial()) as rig:
            await rig.ready()
            for generation in range(1, 16):
                os.kill(rig.pid(), signal.SIGKILL)
                await rig.sink.until("up", "trial", generation + 1)
                assert await rig.sink.said(Echo(text="here again")) == "here again"
            report = rig.report()
            assert report.how == "zygote"
            assert report.deaths == {"signal": 15}
            assert report.restarts == 15
            assert 0 < (report.answered_ms or 0) < (report.recovery_ms or 0)


async def test_every_answer_that_arrived_is_delivered_before_the_death_is_reported(tmp_path: Path) -> None:
    with trio.fail_after(PATIENCE_S):
        async with supervised(tmp_path, trial()) as rig:
            await rig.ready()
            for number in range(200):
                rig.sink.post(Echo(text=str(number)))
            # Handlers of one moment run in any order: only what answers a call made after an answer comes after them
            # all.
            for text in ("the last of them", "the one after them"):
                assert isinstance(await rig.sink.call(Echo(text=text)), Return)
            rig.sink.post(Misbehave(how="exit", amount=3))
            await rig.sink.until("down", "trial", 1)
            answers = [frame for frame in rig.sink.frames if isinstance(frame, Return)]
            assert len(answers) == 202
            cause = rig.sink.causes["trial", 1]
            assert (cause.kind, cause.code) == (CauseKind.EXIT, 3)


@pytest.mark.parametrize(("how", "number"), [("segfault", signal.SIGSEGV), ("spin", signal.SIGABRT)])
async def test_crash_leaves_the_stack_in_the_log(tmp_path: Path, how: str, number: int) -> None:
    with trio.fail_after(PATIENCE_S):
        async with supervised(tmp_path, trial(hang_timeout_s=0.5)) as rig:
            await rig.ready()
            rig.sink.post(Misbehave(how=how))
            await rig.ready(after=1)
            cause = rig.sink.causes["trial", 1]
            assert cause.code == number
            if how == "spin":
                assert cause.kind is CauseKind.HANG
                assert "_hold_the_interpreter" in rig.log()
            else:
                assert cause.text == "killed by SIGSEGV"
                assert "Segmentation fault" in rig.log()


@pytest.mark.parametrize("how", ["deaf", "busy", "deadlock", "spin"])
async def test_a_blocked_loop_is_recognized_by_its_process_s_activity(tmp_path: Path, how: str) -> None:
    with trio.fail_after(PATIENCE_S):
        async with supervised(tmp_path, trial(stall_s=0.85, hang_timeout_s=1000)) as rig:
            await rig.ready()
            rig.sink.post(Misbehave(how=how))
            await rig.sink.until("down", "trial", 1)
            assert rig.sink.causes["trial", 1].kind is CauseKind.HANG


async def test_stopped_process_is_a_hang_that_is_seen_before_a_pong_is_missed(tmp_path: Path) -> None:
    with trio.fail_after(PATIENCE_S):
        async with supervised(tmp_path, trial(hang_timeout_s=60)) as rig:
            await rig.ready()
            os.kill(rig.pid(), signal.SIGSTOP)
            await rig.sink.until("down", "trial", 1)
            cause = rig.sink.causes["trial", 1]
            assert (cause.kind, cause.code, cause.accuses) == (CauseKind.HANG, signal.SIGSTOP, False)
            assert cause.text == "was stopped by a signal (SIGSTOP); ended with SIGKILL"
            await rig.ready(after=1)


async def test_blocked_event_loop_that_ignores_every_signal_but_the_last_is_ended(tmp_path: Path) -> None:
    async with supervised(tmp_path, trial(hang_timeout_s=0.4, abort_timeout_s=0.2), settings={"deaf": True}) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.ready()
            rig.sink.post(Misbehave(how="deaf"))
            await rig.sink.until("down", "trial", 1)
            cause = rig.sink.causes["trial", 1]
            assert (cause.kind, cause.code) == (CauseKind.HANG, signal.SIGKILL)


async def test_ladder_goes_from_drain_to_abort_for_a_service_that_ignores_sigterm(tmp_path: Path) -> None:
    spec = trial(shutdown_timeout_s=0.1, term_timeout_s=0.2, hang_timeout_s=60)
    async with supervised(tmp_path, spec) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.ready()
            # The interpreter is held, so neither the drain nor SIGTERM is heard.
            rig.sink.post(Misbehave(how="spin"))
            await until(lambda: "holds the interpreter" in rig.log())
            rig.supervisor.stop("trial")
            await rig.supervisor.wait_for("trial", {ServiceState.STOPPED})
            cause = rig.sink.causes["trial", 1]
            assert (cause.kind, cause.code) == (CauseKind.STOPPED, signal.SIGABRT)
            assert "_hold_the_interpreter" in rig.log()


async def test_service_past_its_memory_limit_is_replaced_and_the_tally_says_so(tmp_path: Path) -> None:
    async with supervised(tmp_path, trial(memory_limit_bytes=120 * 2**20)) as rig:
        with trio.fail_after(PATIENCE_S):
            report = await rig.ready()
            assert report.pid is not None
            assert (memory_bytes(report.pid) or math.inf) < 100 * 2**20
            rig.sink.post(Misbehave(how="leak", amount=110))
            await rig.ready(after=1)
            cause = rig.sink.causes["trial", 1]
            assert cause.kind is CauseKind.MEMORY
            assert "its limit is 120 MiB" in cause.text
            # It could still answer, so it was drained.
            assert cause.code == 0
            assert rig.report().deaths == {"memory": 1}


async def test_runaway_memory_is_not_given_time_to_finish(tmp_path: Path) -> None:
    async with supervised(tmp_path, trial(memory_limit_bytes=120 * 2**20)) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.ready()
            rig.sink.post(Misbehave(how="leak", amount=300))
            await rig.ready(after=1)
            assert rig.sink.causes["trial", 1].code == signal.SIGKILL


async def test_burst_of_memory_ends_its_service_before_it_has_it(tmp_path: Path) -> None:
    # Nothing looks at its memory meanwhile: the system is asked for more than it gives.
    async with supervised(tmp_path, trial(memory_limit_bytes=120 * 2**20, ping_interval_s=60)) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.ready()
            rig.sink.post(Misbehave(how="leak", amount=1500))
            await rig.ready(after=1)
            cause = rig.sink.causes["trial", 1]
            assert (cause.kind, cause.code) == (CauseKind.MEMORY, EXIT_OUT_OF_MEMORY)
            assert "trial_misbehave needed more memory" in cause.text
            assert await rig.sink.said(Echo(text="on")) == "on"


async def test_crash_at_start_becomes_failed_with_the_last_words_and_no_busy_loop(tmp_path: Path) -> None:
    backoff = Backoff(base_s=0.02, retry_s=0.5)
    spec = trial(intensity=3, backoff=backoff)
    async with supervised(tmp_path, spec, settings={"at_start": "exit"}) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.supervisor.wait_for("trial", {ServiceState.FAILED})
            report = rig.report()
            assert report.generation == 4
            assert report.reason == "4 deaths within 30 s; the last: exit code 7: the disk is full"
            assert report.retry_in_s is not None
            assert 0 < report.retry_in_s <= 0.6
            await rig.supervisor.wait_for("trial", {ServiceState.FAILED}, after_generation=6)
            # Three tries, half a second apart at least.
            gaps = [late - early for early, late in zip(rig.starts()[4:], rig.starts()[5:], strict=False)]
            assert min(gaps) > 0.45


async def test_start_that_takes_too_long_is_ended_and_named(tmp_path: Path) -> None:
    spec = trial(startup_timeout_s=0.3, intensity=0)
    async with supervised(tmp_path, spec, settings={"at_start": "sleep"}) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.supervisor.wait_for("trial", {ServiceState.FAILED})
            assert rig.report().deaths == {"startup_timeout": 1}
            assert "not ready within 0.3 s" in rig.report().reason


async def test_child_processes_of_a_service_die_with_it_and_are_reaped(tmp_path: Path) -> None:
    async with supervised(tmp_path, trial()) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.ready()
            child = int(await rig.sink.said(Misbehave(how="spawn")))
            assert is_alive(child)
            os.kill(rig.pid(), signal.SIGKILL)
            await rig.sink.until("down", "trial", 1)
            await until(lambda: not exists(child))


async def test_orphan_that_left_its_group_is_collected_when_it_ends(tmp_path: Path) -> None:
    async with supervised(tmp_path, trial()) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.ready()
            daemon = int(await rig.sink.said(Misbehave(how="daemon")))
            await until(lambda: not exists(daemon))
            # And the service itself is not mistaken for one.
            assert await rig.sink.said(Echo(text="still here")) == "still here"


async def test_exit_codes_of_the_kernels_other_children_are_not_stolen(tmp_path: Path) -> None:
    async with supervised(tmp_path, trial()) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.ready()
            process = await trio.lowlevel.open_process(["sh", "-c", "exit 42"])
            await until(lambda: exists(process.pid) and not is_alive(process.pid))
            placement = rig.supervisor._placement
            assert isinstance(placement, LocalPlacement)
            for _ in range(2):
                placement.reaper.collect(trio.current_time())
            assert await process.wait() == 42


async def test_manual_stop_is_not_followed_by_a_resurrection(tmp_path: Path) -> None:
    async with supervised(tmp_path, trial()) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.ready()
            pid = rig.pid()
            rig.supervisor.stop("trial")
            await rig.supervisor.wait_for("trial", {ServiceState.STOPPED})
            assert not is_alive(pid)
            assert rig.sink.notifications == [("up", "trial", 1), ("draining", "trial", 1), ("down", "trial", 1)]
            assert not rig.sink.causes["trial", 1].is_crash
            with trio.move_on_after(0.5) as quiet:
                await rig.supervisor.wait_for("trial", {ServiceState.STARTING, ServiceState.READY})
            assert quiet.cancelled_caught
            assert rig.report().generation == 1
            rig.supervisor.start("trial")
            await rig.ready(after=1)


async def test_calls_in_flight_are_answered_before_an_orderly_restart(tmp_path: Path) -> None:
    async with supervised(tmp_path, trial()) as rig:
        with trio.fail_after(PATIENCE_S):
            await rig.ready()
            numbers = [rig.sink.post(Echo(text=str(n))) for n in range(500)]
            rig.supervisor.restart("trial")
            await rig.ready(after=1)
            answered = {frame.id for frame in rig.sink.frames if isinstance(frame, Return)}
            assert answered == set(numbers)


async def test_fall_back_mode_is_entered_after_repeated_deaths(tmp_path: Path) -> None:
    spec = trial(modes=("cuda", "cpu"), backoff=Backoff(base_s=0.01))
    async with supervised(tmp_path, spec, settings={"bad_modes": ["cuda"]}) as rig:
        with trio.fail_after(PATIENCE_S):
            report = await rig.ready()
            assert (report.mode, report.generation, report.deaths) == ("cpu", 4, {"exit": 3})
            assert report.info["mode"] == "cpu"
