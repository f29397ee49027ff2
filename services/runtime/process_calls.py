"""System calls that can act on another process, and the processes that each profile may name to them.

Seccomp sees the number that names a process, so most calls are admitted for the process itself only. A program's
processes inherit its filter, which cannot know their pids: for them, that is the number 0, which always means the
caller. A profile is a column of `CALLS`: `service`, which covers decoders and everything else that starts no programs,
and `programs`, which covers adapters of mounted servers and their servers.

Programs end their own children by pid, so they may send signals. Landlock's signal scope (ABI 6) keeps these within the
sandbox; without it, programs can signal every process of their user.

Sources: syscalls(2) and the page of each call, asm/unistd_64.h, asm-generic/unistd.h, landlock(7).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Reach(enum.Enum):
    """Which processes a call may be made for."""

    NONE = enum.auto()
    """The call is refused."""
    ABSENT = enum.auto()
    """The call returns ENOSYS, for which its users have a fallback."""
    OWN = enum.auto()
    """The process itself, by its pid: 0 means its process group."""
    SELF = enum.auto()
    """The process itself, by its pid or by 0."""
    SCOPED = enum.auto()
    """Any process that landlock's signal scope admits."""
    ANY = enum.auto()
    """Any process: the call only reads properties that everybody may see."""


class ProcessCall(NamedTuple):
    """A call that takes the id of a process.

    Attributes:
        numbers: on x86_64 and aarch64.
        argument: which argument identifies the process.
        kind: argument and value that make this number a process rather than a group or a user; None if it always is.
    """

    name: str
    numbers: tuple[int, int]
    service: Reach
    programs: Reach
    argument: int = 0
    kind: tuple[int, int] | None = None


_NONE, _ABSENT, _OWN, _SELF, _SCOPED, _ANY = Reach

CALLS = (
    ProcessCall("kill", (62, 129), _OWN, _SCOPED),
    ProcessCall("tkill", (200, 130), _NONE, _SCOPED),
    ProcessCall("tgkill", (234, 131), _OWN, _SCOPED),
    ProcessCall("rt_sigqueueinfo", (129, 138), _OWN, _SCOPED),
    ProcessCall("rt_tgsigqueueinfo", (297, 240), _OWN, _SCOPED),
    # A pidfd could only be of use for signals, and for waiting until a process ends.
    ProcessCall("pidfd_open", (434, 434), _NONE, _ABSENT),
    ProcessCall("pidfd_send_signal", (424, 424), _NONE, _SCOPED),
    ProcessCall("pidfd_getfd", (438, 438), _NONE, _NONE),
    ProcessCall("prlimit64", (302, 261), _SELF, _SELF),
    ProcessCall("setpriority", (141, 140), _SELF, _SELF, argument=1, kind=(0, 0)),
    ProcessCall("getpriority", (140, 141), _ANY, _ANY),
    ProcessCall("ioprio_set", (251, 30), _SELF, _SELF, argument=1, kind=(0, 1)),
    ProcessCall("ioprio_get", (252, 31), _ANY, _ANY),
    ProcessCall("sched_setaffinity", (203, 122), _SELF, _SELF),
    ProcessCall("sched_setscheduler", (144, 119), _SELF, _SELF),
    ProcessCall("sched_setparam", (142, 118), _SELF, _SELF),
    ProcessCall("sched_setattr", (314, 274), _SELF, _SELF),
    ProcessCall("sched_getaffinity", (204, 123), _ANY, _ANY),
    ProcessCall("sched_getscheduler", (145, 120), _ANY, _ANY),
    ProcessCall("sched_getparam", (143, 121), _ANY, _ANY),
    ProcessCall("sched_getattr", (315, 275), _ANY, _ANY),
    ProcessCall("sched_rr_get_interval", (148, 127), _ANY, _ANY),
    ProcessCall("move_pages", (279, 239), _SELF, _SELF),
    ProcessCall("migrate_pages", (256, 238), _SELF, _SELF),
    ProcessCall("get_robust_list", (274, 100), _SELF, _SELF),
    ProcessCall("process_vm_readv", (310, 270), _NONE, _NONE),
    ProcessCall("process_vm_writev", (311, 271), _NONE, _NONE),
    ProcessCall("process_madvise", (440, 440), _NONE, _NONE),
    ProcessCall("process_mrelease", (448, 448), _NONE, _NONE),
    ProcessCall("kcmp", (312, 272), _NONE, _NONE),
    ProcessCall("ptrace", (101, 117), _NONE, _NONE),
    ProcessCall("perf_event_open", (298, 241), _NONE, _NONE),
)

_ANYTHING = (Reach.SCOPED, Reach.ANY)


def _reaches(programs: bool) -> Iterator[tuple[ProcessCall, Reach]]:
    for call in CALLS:
        yield call, call.programs if programs else call.service


def admitted(column: int, *, programs: bool) -> dict[str, int]:
    """Return the numbers of the calls that are admitted for some process, by name."""
    refused = (Reach.NONE, Reach.ABSENT)
    return {call.name: call.numbers[column] for call, reach in _reaches(programs) if reach not in refused}


def absent(column: int, *, programs: bool) -> tuple[int, ...]:
    """Return the numbers of the calls that return ENOSYS."""
    return tuple(call.numbers[column] for call, reach in _reaches(programs) if reach is Reach.ABSENT)


def required(own_pid: int, *, programs: bool) -> Mapping[str, tuple[tuple[int, tuple[int, ...]], ...]]:
    """Return which values the arguments of the admitted calls must have: pairs of argument and values, by call."""
    pids = {
        # Its processes could use its pid to name this process.
        Reach.SELF: (0,) if programs else (0, own_pid),
        Reach.OWN: (own_pid,),
    }
    return {
        call.name: (*(((call.kind[0], (call.kind[1],)),) if call.kind else ()), (call.argument, pids[reach]))
        for call, reach in _reaches(programs)
        if reach in pids
    }
