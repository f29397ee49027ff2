"""Which system calls the filter admits, on each processor: its program is run here, as Linux runs it."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest

from services.runtime import syscalls

PID = 4711
ALLOW, REFUSE, MISSING = "allow", errno.EPERM, errno.ENOSYS
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
HEADERS = {
    "x86_64": [Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm/unistd_64.h")],
    "aarch64": [Path("/usr/include/asm-generic/unistd.h")],
}
ALL = {"network": True, "connections": True, "gpu": True, "attributes": True, "watches": True}


def verdict(machine: str, number: int, *arguments: int, arch: int | None = None, **purposes: bool) -> str | int:
    """Run the filter: classic BPF, of which it uses five instructions."""
    count, code = syscalls.program(machine, PID, **purposes)
    program = list(struct.iter_unpack("=HBBI", code))
    assert count == len(program)
    padded = [argument % 2**64 for argument in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    data = struct.pack("=IIQ6Q", number, MACHINES[machine] if arch is None else arch, 0, *padded)
    register = place = 0
    while True:
        kind, if_true, if_false, value = program[place]
        place += 1
        match kind:
            case 0x20:
                (register,) = struct.unpack_from("=I", data, value)
            case 0x54:
                register &= value
            case 0x15:
                place += if_true if register == value else if_false
            case 0x35:
                place += if_true if register >= value else if_false
            case 0x06:
                return ALLOW if value == 0x7FFF0000 else value & 0xFFFF


def call(machine: str, name: str, *arguments: int, **purposes: bool) -> str | int:
    return verdict(machine, syscalls.numbers(machine, **ALL)[name], *arguments, **purposes)


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_system_call_numbers_match_the_system_headers(machine: str) -> None:
    path = next(filter(Path.exists, HEADERS[machine]), None)
    if path is None:
        pytest.skip("the headers of Linux are not installed")
    found = re.findall(r"^#define __NR(?:3264)?_(\w+) (\d+)$", path.read_text(), re.MULTILINE)
    headers = {{"fstatat": "newfstatat"}.get(name, name): int(number) for name, number in found}
    ours = syscalls.numbers(machine, **ALL)
    assert len(set(ours.values())) == len(ours) > 200
    known = ours.keys() & headers.keys()
    # The headers may be older than the newest calls.
    assert len(known) > len(ours) - 20
    assert {name: ours[name] for name in known} == {name: headers[name] for name in known}


def test_a_plain_service_may_use_calls_that_affect_only_itself(machine: str) -> None:
    for name in syscalls.numbers(machine).keys() - syscalls._checks(PID, network=False, gpu=False).keys():
        assert call(machine, name, 2**64 - 1, 2**64 - 1, 2**64 - 1) == ALLOW, name


@pytest.mark.parametrize("number", [435, 472, 500, 2**30, 2**30 + 59, 2**32 - 1])
def test_calls_that_are_newer_and_clone3_are_not_implemented(machine: str, number: int) -> None:
    assert verdict(machine, number, **ALL) == MISSING


@pytest.mark.parametrize(
    "number", [424, 425, 426, 427, 428, 429, 430, 431, 432, 433, 434, 438, 440, 442, 447, 448, 467]
)
def test_calls_on_other_processes_io_rings_and_mounts_are_refused_to_all(machine: str, number: int) -> None:
    assert verdict(machine, number, **ALL) == REFUSE


def test_calls_that_create_processes_or_run_programs_are_refused_to_all() -> None:
    x86 = {"fork": 57, "vfork": 58, "execve": 59, "ptrace": 101, "tkill": 200, "process_vm_writev": 311, "keyctl": 250,
           "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "setns": 308, "unshare": 272, "mount": 165,
           "open_by_handle_at": 304, "chmod": 90, "shmat": 30, "setuid": 105, "kcmp": 312}  # fmt: skip
    arm = {"execve": 221, "ptrace": 117, "tkill": 130, "process_vm_writev": 271, "keyctl": 219, "bpf": 280,
           "perf_event_open": 241, "userfaultfd": 282, "setns": 268, "unshare": 97, "mount": 40}  # fmt: skip
    for machine, calls in (("x86_64", x86), ("aarch64", arm)):
        for name, number in calls.items():
            assert verdict(machine, number, **ALL) == REFUSE, name


def test_the_socket_that_cuda_listens_on_cannot_connect(machine: str) -> None:
    assert call(machine, "socket", 1, 5 | 0o2000000, gpu=True) == ALLOW
    for family, kind in ((1, 1), (1, 2), (2, 1), (2, 5), (16, 3)):
        assert call(machine, "socket", family, kind, gpu=True) == REFUSE
    assert call(machine, "connect", gpu=True) == REFUSE
    assert (call(machine, "bind", gpu=True), call(machine, "bind", network=True, connections=True)) == (ALLOW, REFUSE)
    # This socket cannot be created with access to the network.
    assert call(machine, "socket", 1, 5, gpu=True, network=True) == REFUSE


def test_calls_of_another_architecture_are_refused(machine: str) -> None:
    assert verdict(machine, 3, arch=0x40000003) == REFUSE


@pytest.mark.parametrize("name", ["connect", "sendmmsg", "accept", "fchmod", "mknodat", "inotify_init1"])
def test_each_purpose_adds_its_own_calls(machine: str, name: str) -> None:
    arguments = (0, 0, 0o010644) if name == "mknodat" else ()
    adding = {"connect": "network", "sendmmsg": "network", "fchmod": "attributes",
              "mknodat": "attributes", "inotify_init1": "watches"}.get(name, "connections")  # fmt: skip
    assert call(machine, name, *arguments, **{adding: True}) == ALLOW
    assert call(machine, name, *arguments, **{each: each != adding for each in ALL}) == REFUSE


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("clone", (0x003D0F00,), ALLOW),  # a thread, as glibc makes it
        ("clone", (17,), REFUSE),  # a process
        ("clone", (0x4111,), REFUSE),  # vfork
        ("clone", (0x10000000 | 17,), REFUSE),
        ("clone", (0x10000000 | 0x003D0F00,), REFUSE),
        ("kill", (PID, 9), ALLOW),
        ("kill", (1, 9), REFUSE),
        ("kill", (0, 9), REFUSE),
        ("kill", (-1, 9), REFUSE),
        ("tgkill", (PID, PID + 1, 6), ALLOW),
        ("tgkill", (PID - 1, PID - 1, 6), REFUSE),
        ("prlimit64", (0, 7), ALLOW),
        ("prlimit64", (PID, 7), ALLOW),
        ("prlimit64", (2**32 | PID - 1, 7), REFUSE),
        ("setpriority", (0, 0), ALLOW),
        ("setpriority", (0, PID - 1), REFUSE),
        ("setpriority", (2, 0), REFUSE),
        ("ioprio_set", (1, 0), ALLOW),
        ("ioprio_set", (3, 0), REFUSE),
        ("sched_setaffinity", (0,), ALLOW),
        ("sched_setaffinity", (PID - 1,), REFUSE),
        ("prctl", (15,), ALLOW),
        ("prctl", (1,), REFUSE),
        ("fcntl", (3, 1), ALLOW),
        ("fcntl", (3, 8), REFUSE),
        ("fcntl", (3, 15), REFUSE),
        ("ioctl", (3, 0x5401), ALLOW),
        ("ioctl", (3, 0x5421), ALLOW),
        ("ioctl", (3, 0x5412), REFUSE),
        ("ioctl", (3, 0x8901), REFUSE),
        ("ioctl", (3, 0x8902), REFUSE),
        ("socketpair", (1, 1), ALLOW),
        ("socketpair", (1, 1 | 0o2004000), ALLOW),
        ("socketpair", (1, 2), REFUSE),
        ("socketpair", (1, 5), REFUSE),
        ("socketpair", (16, 1), REFUSE),
        ("socket", (2, 1 | 0o2004000), ALLOW),
        ("socket", (10, 2), ALLOW),
        ("socket", (2, 3), REFUSE),
        ("socket", (1, 1), REFUSE),
        ("socket", (16, 3), REFUSE),
        ("mknodat", (0, 0, 0o010600), ALLOW),
        ("mknodat", (0, 0, 0o140600), REFUSE),
        ("sendto", (3, 0, 0, 0x20000000, 2**40), ALLOW),
        ("sendmsg", (3, 0, 0x20000000), ALLOW),
    ],
)
def test_arguments_decide_where_another_process_could_be_meant(
    machine: str, name: str, arguments: tuple[int, ...], expected: str | int
) -> None:
    assert call(machine, name, *arguments, **ALL) == expected


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("ioctl", (3, 0x5421), ALLOW),
        ("ioctl", (3, 0x40086602), REFUSE),
        ("ioctl", (3, 0x4020940D), REFUSE),
        ("mmap", (0, 4096, 3, 0x22), ALLOW),
        ("mmap", (0, 4096, 3, 0x01), ALLOW),
        ("mmap", (0, 4096, 3, 0x21), REFUSE),
        ("mmap", (0, 4096, 3, 0x23), REFUSE),
    ],
)
def test_file_flags_and_shared_memory_are_allowed_only_if_a_driver_needs_them(
    machine: str, name: str, arguments: tuple[int, ...], expected: str | int
) -> None:
    assert call(machine, name, *arguments, **{**ALL, "gpu": False}) == expected
    assert call(machine, name, *arguments, **ALL) == ALLOW


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("sendto", (3, 0, 0, 0x4000, 0), ALLOW),
        ("sendto", (3, 0, 0, 0, 2**40), REFUSE),
        ("sendto", (3, 0, 0, 0, 1), REFUSE),
        ("sendto", (3, 0, 0, 0x20004000, 0), REFUSE),
        ("sendmsg", (3, 0, 0x4000), ALLOW),
        ("sendmsg", (3, 0, 0x20004000), REFUSE),
    ],
)
def test_without_network_access_data_is_sent_only_on_existing_connections(
    machine: str, name: str, arguments: tuple[int, ...], expected: str | int
) -> None:
    assert call(machine, name, *arguments, connections=True) == expected
