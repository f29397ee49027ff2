"""A compromised service takes all the resources it can: it is ended at its limits, and the system keeps working."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel.configure import catalog
from proto.control.client import CallFailed
from proto.manifest import THREADS_A_CORE
from tests.system.running import RunningKernel, wait_until
from tests.system.test_hostile import DISK_LIMIT, attack, kernel

__all__ = ["kernel"]

THREADS = 512 + THREADS_A_CORE * (os.cpu_count() or 1)


def died_of(kernel: RunningKernel, kind: str, before: int) -> str:
    """Return the cause of death from `status`, once it has occurred more than `before` times."""
    wait_until(
        lambda: kernel.service("hostile")["deaths"].get(kind, 0) > before, said=lambda: kernel.service("hostile")
    )
    return str(kernel.service("hostile")["last_death"])


def test_threads_are_bounded_and_the_cause_says_so(kernel: RunningKernel) -> None:
    before = kernel.service("hostile")["deaths"].get("threads", 0)
    with contextlib.suppress(CallFailed):
        started = attack(kernel, "start_threads", count=4000)["got"]
        own_user = kernel.data_dir.joinpath("services", "hostile").stat().st_uid != kernel.data_dir.stat().st_uid
        assert not own_user or started < 2 * THREADS
    assert f"threads, its limit is {THREADS}" in died_of(kernel, "threads", before)
    assert kernel.call("mcp_echo", {"message": "still there"})
    kernel.wait_ready("hostile")
    assert attack(kernel, "environment")["got"]


@pytest.mark.parametrize("entry", catalog.ENTRIES, ids=lambda entry: entry.spec.name)
def test_no_number_of_calls_makes_a_service_reach_its_thread_limit(entry: catalog.ServiceEntry) -> None:
    # Each in-flight call keeps one thread busy, in addition to those of trio and of each database.
    assert entry.spec.thread_limit is not None
    assert entry.manifest.threads >= entry.spec.in_flight + 100


@pytest.fixture
def emptied(kernel: RunningKernel) -> Iterator[Path]:
    folder = kernel.data_dir / "services" / "hostile"
    yield folder
    for path in folder.glob("left*"):
        path.unlink()
    kernel.call("kernel_start", {"service": "hostile"})
    kernel.wait_ready("hostile")


def test_files_left_outside_the_temporary_folder_stay_and_are_reported_with_the_remedy(
    kernel: RunningKernel, emptied: Path
) -> None:
    before = kernel.service("hostile")["deaths"].get("disk", 0)
    for n in range(2):
        with contextlib.suppress(CallFailed):
            assert attack(kernel, "leave", file=f"left-{n}", megabytes=DISK_LIMIT >> 20)["got"] == "taken"
    said = died_of(kernel, "disk", before)
    assert f"remove what it does not need from {emptied}, or raise its disk_limit_bytes" in said
    assert list(emptied.glob("left*"))
    # The service works again after the cleanup (`emptied`).


def test_a_link_that_replaces_the_temporary_folder_is_not_followed(kernel: RunningKernel, emptied: Path) -> None:
    elsewhere = kernel.data_dir.parent / "outside"
    elsewhere_folder = kernel.data_dir / "services" / "echo"
    listed = sorted(path.name for path in elsewhere_folder.iterdir())
    mode = elsewhere.stat().st_mode
    # One that takes over has looked at the folder before it was replaced.
    assert attack(kernel, "environment")["got"]
    wait_until(lambda: kernel.service("hostile")["standby_pid"])
    assert attack(kernel, "replace_temporary_folder", to=str(elsewhere_folder))["got"] == "replaced"
    # Its deaths of an earlier test are counted by now, since it has answered.
    before = kernel.service("hostile")["deaths"].get("disk", 0)
    for n in range(2):
        with contextlib.suppress(CallFailed):
            attack(kernel, "leave", file=f"left-{n}", megabytes=DISK_LIMIT >> 20)
    died_of(kernel, "disk", before)
    for path in emptied.glob("left*"):
        path.unlink()
    kernel.call("kernel_start", {"service": "hostile"})
    kernel.wait_ready("hostile")
    assert (emptied / "tmp").is_dir()
    assert not (emptied / "tmp").is_symlink()
    assert attack(kernel, "fill", how="several files", megabytes=1)["got"] == "taken"
    assert sorted(path.name for path in elsewhere_folder.iterdir()) == listed
    assert elsewhere.stat().st_mode == mode
