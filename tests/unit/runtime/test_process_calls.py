"""No confined process reaches another one by its pid: each call is made for the kernel, a stand-in for it, for real."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.runtime import process_calls, sandbox
from services.runtime.process_calls import CALLS, Reach

pytestmark = [
    pytest.mark.skipif(not sandbox.landlock_version(), reason="this kernel has no landlock"),
    pytest.mark.skipif(not sandbox.has_seccomp(), reason="no seccomp for this processor"),
]

PROFILES = {
    "service": "",
    "gpu": "gpu=True",
    "network": "network=True, connections=True, watches=True",
    "programs": "programs=True, network=True, open_files=4096",
    "programs without network": "programs=True",
}

USER = 4711

BODY = """
import ctypes, errno, fcntl, os, platform, resource, signal, struct, sys, sysconfig
from pathlib import Path
from proto.wire.launch import Confinement
from services.runtime.process_calls import CALLS
from services.runtime.sandbox import confine
# The user may not be able to enter the interpreter's folder.
sysconfig.get_paths()
if USER:
    os.setgroups(())
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    ctypes.CDLL(None).prctl(4, 1)  # dumpable again: readable by itself
column = ("x86_64", "aarch64").index(platform.machine())
NUMBERS = {call.name: call.numbers[column] for call in CALLS}
libc = ctypes.CDLL(None, use_errno=True)

def state():
    pid = os.getpid()
    limits = [resource.getrlimit(each) for each in range(16)]
    times = int(Path(f"/proc/{pid}/oom_score_adj").read_text())
    io = libc.syscall(NUMBERS["ioprio_get"], 1, pid)
    return limits, os.getpriority(os.PRIO_PROCESS, pid), os.sched_getaffinity(0), os.sched_getscheduler(0), io, times

def attack(kernel):
    here = ctypes.create_string_buffer(4096)
    address = ctypes.addressof(here)
    vector = struct.pack("QQ", address, 8)
    info = struct.pack("iiiiii", 9, 0, -1, os.getpid(), os.getuid(), 0) + bytes(104)
    one = struct.pack("QQ", 1, 1)
    attribute = struct.pack("IIQiIQQQ", 48, 3, 0, 19, 0, 0, 0, 0)
    ids = {
        "kill": [(kernel, 9), (kernel, 0), (-os.getpgid(kernel), 9)],
        "tkill": [(kernel, 9)],
        "tgkill": [(kernel, kernel, 9)],
        "rt_sigqueueinfo": [(kernel, 9, info)],
        "rt_tgsigqueueinfo": [(kernel, kernel, 9, info)],
        "pidfd_open": [(kernel, 0)],
        "pidfd_send_signal": [(theirs, 9, None, 0)],
        "pidfd_getfd": [(theirs, 0, 0)],
        "prlimit64": [(kernel, resource.RLIMIT_CPU, one, None), (kernel, resource.RLIMIT_NOFILE, one, None)],
        "setpriority": [(0, kernel, 19), (1, os.getpgid(kernel), 19), (2, os.getuid(), 19)],
        "ioprio_set": [(1, kernel, 3 << 13), (2, os.getpgid(kernel), 3 << 13), (3, os.getuid(), 3 << 13)],
        "sched_setaffinity": [(kernel, 8, struct.pack("Q", 1))],
        "sched_setscheduler": [(kernel, 5, struct.pack("i", 0))],
        "sched_setparam": [(kernel, struct.pack("i", 0))],
        "sched_setattr": [(kernel, attribute, 0)],
        "move_pages": [(kernel, 1, struct.pack("Q", address), None, struct.pack("i", 0), 0)],
        "migrate_pages": [(kernel, 8, one, one)],
        "get_robust_list": [(kernel, here, here)],
        "process_vm_readv": [(kernel, vector, 1, vector, 1, 0)],
        "process_vm_writev": [(kernel, vector, 1, vector, 1, 0)],
        "process_madvise": [(theirs, vector, 1, 21, 0)],
        "process_mrelease": [(theirs, 0)],
        "kcmp": [(kernel, os.getpid(), 1, 0, 0)],
        "ptrace": [(16, kernel, 0, 0), (0x4206, kernel, 0, 0)],
        "perf_event_open": [(bytes(112), kernel, -1, -1, 0)],
    }
    failed = []
    for name, calls in ids.items():
        for arguments in calls:
            passed = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
            ctypes.set_errno(0)
            result = libc.syscall(NUMBERS[name], *passed)
            if result >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS, errno.EACCES):
                failed.append(f"{name}{arguments}: {result}, {os.strerror(ctypes.get_errno())}")
    # The owner of a descriptor gets a signal.
    reading, writing = os.pipe()
    for action in (
        lambda: fcntl.fcntl(reading, fcntl.F_SETOWN, kernel),
        lambda: fcntl.ioctl(reading, 0x8901, struct.pack("i", kernel)),
        lambda: fcntl.ioctl(reading, 0x8902, struct.pack("i", kernel)),
    ):
        try:
            action()
            failed.append("an owner was set")
        except OSError as error:
            if error.errno != errno.EPERM:
                failed.append(f"setting an owner: {error}")
    if libc.prctl(62, 2, ctypes.c_long(kernel), 0, 0) >= 0 or ctypes.get_errno() != errno.EPERM:
        failed.append("prctl(PR_SCHED_CORE)")
    known = set(ids) | {call.name for call in CALLS if call.name.startswith(("sched_get", "getpri", "ioprio_get",
                                                                              "sched_rr"))}
    failed += [f"{call.name} was not tried" for call in CALLS if call.name not in known]
    # What it may do to itself.
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    os.setpriority(os.PRIO_PROCESS, 0, 5)
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    return failed

base = Path(sys.argv[1])
before, own = state(), os.getpid()
theirs = os.pidfd_open(own)
data = base / "data"
child = os.fork()
if child == 0:
    failed = ["not run"]
    try:
        # As services do, so that the kernel is not in its process group.
        os.setsid()
        confine(Confinement(PROFILE), data)
        if "programs=True" in "PROFILE_TEXT" and os.fork():
            # The pid of the confined process is nothing to its children, which is what programs are.
            os._exit(os.waitstatus_to_exitcode(os.wait()[1]) and 1)
        failed = attack(own)
    except BaseException as error:
        failed = [repr(error)]
    os.write(2, "\\n".join(failed).encode())
    os._exit(bool(failed))
pid, status = os.waitpid(child, 0)
assert status == 0, status
assert state() == before
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        (Path(name) / "data").mkdir()
        yield Path(name)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("user", [0, USER], ids=["root", "ordinary user"])
def test_no_call_reaches_the_kernel(folder: Path, profile: str, user: int) -> None:
    if os.geteuid():
        if not user:
            pytest.skip("root is needed")
        user = 0
    if user:
        os.chown(folder / "data", user, user)
    given = PROFILES[profile]
    code = BODY.replace("USER", str(user)).replace("PROFILE_TEXT", given).replace("PROFILE", given)
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        capture_output=True, text=True, timeout=60, check=False, start_new_session=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_each_call_is_listed_once_and_only_reading_ones_reach_everybody() -> None:
    assert len({call.name for call in CALLS}) == len(CALLS)
    for column in (0, 1):
        assert len({call.numbers[column] for call in CALLS}) == len(CALLS)
    for call in CALLS:
        is_reading = "get" in call.name and call.name not in ("pidfd_getfd", "get_robust_list")
        assert (call.service is Reach.ANY) == (call.programs is Reach.ANY) == is_reading, call.name
        assert call.service is not Reach.SCOPED, "landlock may have no scope"


def test_children_of_programs_cannot_name_the_confined_process() -> None:
    own = process_calls.required(17, programs=True)
    assert own["prlimit64"] == ((0, (0,)),)
    assert own["setpriority"] == ((0, (0,)), (1, (0,)))
    assert process_calls.required(17, programs=False)["prlimit64"] == ((0, (0, 17)),)
