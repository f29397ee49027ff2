"""A compromised service in a running system: its attacks on the kernel and the user are refused.

Each attack is tried under a kernel that root runs, and under one of an ordinary user, whose services are that user too.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel.chronicle.audit import path_of
from kernel.control.peers import ancestry
from proto.control.address import socket_path
from proto.control.client import CallFailed
from tests.system.running import ORDINARY, RunningKernel, command_for_others, reachable_interpreter, running, wait_until

SECRET = "sk-of-another-program"

DISK_LIMIT = 4 << 20

WALLS = ("EPERM", "EACCES", "ENOSYS")


def who(*, root: bool) -> object:
    if root:
        return pytest.param(
            True, id="root", marks=pytest.mark.skipif(os.geteuid() != 0, reason="these tests run as an ordinary user")
        )
    unreachable = os.geteuid() == 0 and reachable_interpreter() is None
    return pytest.param(
        False, id="ordinary", marks=pytest.mark.skipif(unreachable, reason="no interpreter that others can reach")
    )


@pytest.fixture(scope="module", params=[who(root=True), who(root=False)])
def kernel(request: pytest.FixtureRequest) -> Iterator[RunningKernel]:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o711)
        data, outside = folder / "data", folder / "outside"
        data.mkdir(0o700)
        outside.write_text("the user's")
        outside.chmod(0o600)
        command: tuple[str, ...] = (sys.executable, "-m", "tests.system.subset", "echo", "serve")
        if not request.param and os.geteuid() == 0:
            for path in (data, outside):
                os.chown(path, ORDINARY, ORDINARY)
            command = command_for_others(["echo"], ORDINARY)
        environment = {
            "SECRET_KEY": SECRET,
            "HTTPS_PROXY": f"http://me:{SECRET}@proxy",
            "LINCKIA_SERVICES__HOSTILE__DISK_LIMIT_BYTES": str(DISK_LIMIT),
        }
        options = ("--no-http", "--with", "tests.hostile")
        with running(data, options=options, environment=environment, command=command, all_ready=False) as found:
            found.wait_ready("hostile")
            yield found


def attack(kernel: RunningKernel, name: str, **arguments: Any) -> dict[str, Any]:
    outcome: dict[str, Any] = kernel.call("hostile_attack", {"name": name, "arguments": arguments})
    return outcome


def assert_refused(outcome: dict[str, Any]) -> None:
    assert outcome.get("refused") in WALLS, outcome


@pytest.mark.parametrize(("operation", "params"), [("kernel_stop", {"service": "echo"}), ("kernel_status", {})])
def test_no_service_becomes_the_operator(kernel: RunningKernel, operation: str, params: dict[str, Any]) -> None:
    path = str(socket_path(kernel.data_dir))
    assert_refused(attack(kernel, "call_as_operator", control=path, operation=operation, params=params))
    assert_refused(attack(kernel, "send_by_a_pair", control=path))
    assert kernel.service("echo")["state"] != "stopped"


@pytest.mark.parametrize(
    "family", [socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_VSOCK]
)
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_no_service_without_a_network_makes_a_socket(kernel: RunningKernel, family: int, kind: int) -> None:
    assert_refused(attack(kernel, "open_socket", family=int(family), kind=int(kind)))


@pytest.mark.parametrize(
    "name",
    [
        "limit_kernel", "read_limit_of_kernel", "slow_kernel", "slow_all_of_its_user", "move_kernel", "schedule_kernel",
        "signal_kernel", "signal_kernels_thread", "own_descriptor_for_kernel", "own_descriptor_for_kernel_ex",
        "own_socket_for_kernel", "hold_kernel", "trace_kernel", "read_kernels_memory", "outlive_kernel",
        "open_ring", "become_root_of_a_namespace", "become_root_of_a_namespace_by_clone3", "fork", "run_program",
    ],
)  # fmt: skip
def test_no_service_touches_the_kernel_or_makes_a_process(kernel: RunningKernel, name: str) -> None:
    assert_refused(attack(kernel, name))
    assert kernel.status()["pid"] == kernel.process.pid


@pytest.mark.parametrize(
    "name", ["memory_without_a_name", "shared_memory", "shared_memory_of_a_device", "watch_files", "hide_from_kernel"]
)
def test_no_service_can_allocate_uncounted_memory(kernel: RunningKernel, name: str) -> None:
    assert_refused(attack(kernel, name))


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm", "/var/tmp"])
def test_no_service_can_leave_files_in_shared_folders(kernel: RunningKernel, folder: str) -> None:
    assert_refused(attack(kernel, "file_in_memory_of_all", folder=folder))


@pytest.mark.parametrize("how", ["one file", "a hole"])
def test_no_file_is_larger_than_the_disk_that_its_service_may_hold(kernel: RunningKernel, how: str) -> None:
    assert attack(kernel, "fill", how=how, megabytes=2 * DISK_LIMIT >> 20)["refused"] == "EFBIG"


@pytest.mark.parametrize("how", ["several files", "deleted files", "empty files", "a closed folder", "a deep folder"])
def test_service_that_holds_too_much_of_the_disk_is_ended_and_its_temporary_files_with_it(
    kernel: RunningKernel, how: str
) -> None:
    deaths = kernel.service("hostile")["deaths"].get("disk", 0)
    # Hidden files are too much, however small they are.
    megabytes = 1 if how == "a deep folder" else 2 * DISK_LIMIT >> 20
    with contextlib.suppress(CallFailed):
        assert attack(kernel, "fill", how=how, megabytes=megabytes)["got"] == "taken"
    wait_until(
        lambda: kernel.service("hostile")["deaths"].get("disk", 0) != deaths, said=lambda: kernel.service("hostile")
    )
    kernel.wait_ready("hostile")
    assert list((kernel.data_dir / "services" / "hostile" / "tmp").iterdir()) == []
    assert kernel.service("hostile")["deaths"]["disk"] == deaths + 1


@pytest.mark.parametrize("name", ["change_mode", "change_times", "mark", "change_mode_of_what_it_may_read"])
def test_no_plain_service_changes_the_users_files(kernel: RunningKernel, name: str) -> None:
    outside = kernel.data_dir.parent / "outside"
    before = outside.stat()
    assert_refused(attack(kernel, name, path=str(outside)))
    assert_refused(attack(kernel, name, path=os.__file__))
    after = outside.stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_uid) == (before.st_mode, before.st_mtime_ns, before.st_uid)


def test_no_service_changes_the_flags_of_what_its_user_owns_and_it_may_only_read(kernel: RunningKernel) -> None:
    # Its own file stands for those below roots that it may only read: who it is decides, and no landlock.
    path = kernel.data_dir / "services" / "hostile" / "own"
    path.write_text("own")
    os.chown(path, kernel.data_dir.joinpath("services", "hostile").stat().st_uid, -1)
    assert_refused(attack(kernel, "change_flags", path=str(path)))


def test_a_service_starts_without_open_files(kernel: RunningKernel) -> None:
    files = {at for at in attack(kernel, "descriptors")["got"].values() if at.startswith("/") and at != "/dev/null"}
    assert files == set()


def test_no_child_process_sees_other_variables_of_the_kernel_s_environment(kernel: RunningKernel) -> None:
    give_up = time.monotonic() + 30
    while kernel.service("hostile")["standby_pid"] is None:
        assert time.monotonic() < give_up, kernel.service("hostile")
        attack(kernel, "environment")
        time.sleep(0.05)
    assert SECRET not in str(attack(kernel, "environment"))
    status = kernel.status()
    known = {s[pid] for s in status["services"] for pid in ("pid", "standby_pid") if s[pid]}
    known |= {zygote["pid"] for zygote in status["zygotes"] if zygote["pid"]}
    seen = {}
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        if kernel.process.pid in ancestry(pid):
            try:
                seen[pid] = Path(f"/proc/{pid}/environ").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
    assert len(known & seen.keys()) > 3
    assert not [pid for pid, names in seen.items() if SECRET.encode() in names]
    # The secret can be found in the one place where it is expected.
    assert SECRET.encode() in Path(f"/proc/{kernel.process.pid}/environ").read_bytes()


def test_no_service_reads_changes_or_removes_the_record_of_changes(kernel: RunningKernel) -> None:
    with pytest.raises(CallFailed):
        kernel.call("kernel_stop", {"service": "none"})
    path = path_of(kernel.data_dir)
    wait_until(lambda: path.exists() and b"service=none" in path.read_bytes())
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_TRUNC):
        assert_refused(attack(kernel, "open_file", path=str(path), flags=flags))
    assert_refused(attack(kernel, "remove", path=str(path)))
    assert path.read_bytes().count(b"service=none") == 1
