"""Runs the implant in every service at once for a given time, then hostile mounted servers and clients for the same
time, and measures the cost to the kernel.

    python -m tests.hostile.storm [--seconds 600] [--seed 1] [--only services|mounts]

Prints the longest turns of the kernel's event loop, its memory, and the causes of service deaths. Exits with 1 if a
turn was longer than `MAX_TURN_S`, the memory exceeded `MAX_BYTES`, or the victim of the second storm got or lost
anything (`tests.hostile.mounts`).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import tomlkit

from kernel.router.generation import MAX_HELD_BYTES
from proto.control.client import ControlError
from tests.hostile import mounts
from tests.system.running import HTTP, RunningKernel, running

MAX_TURN_S = 0.1

BESIDE_BYTES = 512 * 1024 * 1024
"""Memory of the kernel itself, of nng for 18 links, and of the allocator's unreturned pages."""

MAX_BYTES = MAX_HELD_BYTES + BESIDE_BYTES


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a storm on the kernel.

    It has the longest turns, in seconds of processor time with their task; the largest resident memory; the number of
    service deaths by cause; and the number of operator calls that were answered.
    """

    turns: list[tuple[float, float, str]]
    peak_bytes: int
    deaths: dict[str, int]
    answered: int
    lives: bool
    wrong: list[str] = []
    told: str = ""

    @property
    def holds(self) -> bool:
        longest = self.turns[0][0] if self.turns else 0.0
        return self.lives and not self.wrong and longest <= MAX_TURN_S and self.peak_bytes <= MAX_BYTES


def storm(seconds: float, seed: int) -> Outcome:
    """Run a storm."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report, data, root = folder / "turns", folder / "data", folder / "notes"
        report.touch()
        root.mkdir()
        (root / "a.md").write_text("# A note\n")
        command = (sys.executable, "-m", "tests.hostile.serve", str(report), str(seed), "serve")
        with running(data, options=(str(root), *HTTP), command=command, all_ready=False) as kernel:
            answered = _ask(kernel, time.monotonic() + seconds)
            lives = kernel.process.poll() is None
            deaths: collections.Counter[str] = collections.Counter()
            for service in kernel.status()["services"] if lives else ():
                deaths.update(service["deaths"])
            peak = _peak_bytes(kernel.process.pid) if lives else 0
        turns = _turns(report)
    return Outcome(turns=turns, peak_bytes=peak, deaths=dict(deaths), answered=answered, lives=lives)


def storm_of_mounts(seconds: float, seed: int) -> Outcome:
    """Run a storm of mounted servers and of a client of tasks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report, data = folder / "turns", folder / "data"
        report.touch()
        data.mkdir()
        mark = folder.name
        (data / "linckia.toml").write_text(tomlkit.dumps(mounts.settings(mark)))
        services = ",".join(mounts.SERVICES)
        command = (sys.executable, "-m", "tests.hostile.serve", str(report), "-", services, "serve")
        with running(data, options=HTTP, command=command, all_ready=False, token=True) as kernel:
            made = mounts.MountStorm(kernel, seed)
            made.run(seconds)
            lives = kernel.process.poll() is None
            deaths: collections.Counter[str] = collections.Counter()
            for service in kernel.status()["services"] if lives else ():
                deaths.update({f"{service['name']}: {cause}": n for cause, n in service["deaths"].items()})
            peak = _peak_bytes(kernel.process.pid) if lives else 0
        left = mounts.left_behind(mark)
        wrong = [*made.wrong, *(f"left behind: {each}" for each in left)]
        turns = _turns(report)
    answered = sum(count for what, count in made.answered.items() if what.startswith("victim"))
    told = f"{mounts.dumped(made.answered)}\nlongest answer to the victim {made.longest_s:.2f} s"
    return Outcome(
        turns=turns, peak_bytes=peak, deaths=dict(deaths), answered=answered, lives=lives, wrong=wrong, told=told
    )


def _turns(report: Path) -> list[tuple[float, float, str]]:
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    return sorted(((each["turn_s"], each["longest_s"], each["of"]) for each in lines), reverse=True)


def _ask(kernel: RunningKernel, until: float) -> int:
    """Request the status repeatedly. Returns how often it was answered. A service that gave up is started again."""
    answered = 0
    while time.monotonic() < until and kernel.process.poll() is None:
        with contextlib.suppress(ControlError):
            for service in kernel.status()["services"]:
                if service["state"] == "failed":
                    kernel.call("kernel_start", {"service": service["name"]}, timeout_s=0.1)
            answered += 1
        time.sleep(0.2)
    return answered


def _peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    storms = {"services": storm, "mounts": storm_of_mounts}
    parser.add_argument("--only", choices=tuple(storms))
    asked = parser.parse_args(arguments)
    chosen = [asked.only] if asked.only else list(storms)
    return 0 if all([_told(name, storms[name](asked.seconds, asked.seed)) for name in chosen]) else 1


def _told(name: str, outcome: Outcome) -> bool:
    """Print the outcome; return whether it is as it should be."""
    print(f"storm of {name}: {'holds' if outcome.holds else 'DOES NOT HOLD'}")
    for turn_s, longest_s, of in outcome.turns[:10]:
        print(f"turn of {turn_s * 1000:.0f} ms, {longest_s * 1000:.0f} ms of it in {of}")
    print(f"{len(outcome.turns)} turns of more than 20 ms; peak {outcome.peak_bytes >> 20} MiB")
    print(f"deaths {outcome.deaths}; answered {outcome.answered} times", outcome.told, sep="\n")
    for each, count in collections.Counter(outcome.wrong).most_common(30):
        print(f"WRONG, {count} times: {each}")
    return outcome.holds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
