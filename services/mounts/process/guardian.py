"""The guardian: a small process between an adapter and its server, which leaves no process behind.

    python -I -S guardian.py LIFE_FD STATUS_FD CONFINED COMMAND [ARGUMENT…]

It starts COMMAND in a session of its own. Orphans below it become its children (PR_SET_CHILD_SUBREAPER), also those
that have left the session. When the pipe LIFE_FD closes, because the adapter has closed it or died, or when the
server has ended, it kills every process below it, then ends. It writes lines to STATUS_FD: `pid N`, `error TEXT`,
`exit N`, `signal N`.

If CONFINED is `1`, the guardian and its server enter a landlock domain each, which bounds their signals: the server
reaches neither the guardian nor the adapter, and the guardian exactly the server's processes. Without landlock's signal
scope (ABI 6), it does without.

This file imports only what starts quickly, since it runs without packages.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
import sys
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38

_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF, _VERSION_FLAG = 444, 445, 446, 1
_RULE_PATH_BENEATH, _REFER = 1, 1 << 13
_SIGNALS_ONLY = struct.pack("=QQQ", _REFER, 0, 0b10)
"""A ruleset that leaves files and networks as they are, and keeps signals within the domain. Every ruleset forbids to
move files between folders (LANDLOCK_ACCESS_FS_REFER), except below those for which it admits that."""
_ABI_WITH_SCOPES = 6

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.002, 0.25
"""Pauses between two rounds of killing; they grow, because a process in uninterruptible sleep may take long."""

_LISTS_CHILDREN = os.path.exists("/proc/thread-self/children")
"""Whether the system was built with CONFIG_PROC_CHILDREN."""

NOT_STARTED = 127
"""Exit code of a command that cannot be started, as in shells."""


def become_subreaper() -> None:
    """Have orphans among this process's descendants become its children."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)


def children(pid: int) -> list[int]:
    """Return the children of a process; none if it is gone."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += map(int, file.read().split())
    except FileNotFoundError:
        if not _LISTS_CHILDREN:
            return [each for each, parent in _parents().items() if parent == pid]
    except OSError:
        pass
    return found


def _parents() -> dict[int, int]:
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            continue
    return found


def descendants(pid: int) -> list[int]:
    """Return all processes below a process."""
    found = children(pid)
    for each in found:
        found += children(each)
    return found


def kill(pids: list[int]) -> None:
    """Send SIGKILL to each of these processes that still exists."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def has_scopes() -> bool:
    """Return whether landlock can bound the signals of a process."""
    libc = ctypes.CDLL(None)
    return bool(libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG) >= _ABI_WITH_SCOPES)


def bound_signals() -> None:
    """Bound the signals of this process and its descendants to themselves, for good. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Otherwise only privileged processes may enter a domain.
    libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0)
    ruleset = libc.syscall(_LANDLOCK_CREATE_RULESET, _SIGNALS_ONLY, ctypes.c_size_t(len(_SIGNALS_ONLY)), 0)
    everything = os.open("/", os.O_PATH)
    rule = struct.pack("=Qi", _REFER, everything)
    if (
        ruleset < 0
        or libc.syscall(_LANDLOCK_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0) < 0
        or libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0) < 0
    ):
        raise OSError(ctypes.get_errno(), f"landlock: {os.strerror(ctypes.get_errno())}")
    os.close(everything)
    os.close(ruleset)


def reaches(pid: int) -> bool:
    """Return whether this process could signal another one."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except ProcessLookupError:
        pass
    return True


def end_all(*, bounded: bool = False) -> None:
    """Kill all descendants until none is left. New ones may appear between two rounds, unless signals are `bounded` to
    them: then all can be killed at the same moment."""
    pause_s = FIRST_PAUSE_S
    while True:
        if bounded:
            kill([-1])
        else:
            kill(descendants(os.getpid()))
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _start(command: list[str], *, bounded: bool) -> tuple[int, str]:
    """Start the server; return its pid, and why its command cannot be executed, or an empty text."""
    guardian = os.getpid()
    # Executing a program closes the write end.
    outcome, failed = os.pipe()
    if pid := os.fork():
        os.close(failed)
        text = os.read(outcome, 4096).decode()
        os.close(outcome)
        return pid, text
    try:
        os.setsid()
        # Python ignores some signals, and so did the adapter; the server expects the defaults.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
        if bounded:
            bound_signals()
        if os.getppid() == guardian:
            os.execvp(command[0], command)
    except OSError as error:
        os.write(failed, f"{command[0]}: {error.strerror}".encode())
    finally:
        os._exit(NOT_STARTED)


def main(life: int, status: int, confined: bool, command: list[str]) -> None:
    """Start the command, and return when it and all its descendants have ended."""
    adapter = os.getppid()
    for fd in (life, status):
        os.set_inheritable(fd, False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    become_subreaper()
    woken, wake = os.pipe()
    for fd in (woken, wake):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    scoped = confined and has_scopes()
    try:
        if scoped:
            bound_signals()
    except OSError as error:
        os.write(status, f"error {error.strerror}\n".encode())
        return
    # `kill(-1)` must not depend on an assumption.
    bounded = scoped and os.getppid() == adapter and not reaches(adapter)
    server, failure = _start(command, bounded=scoped)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        # The pipes must close when the server closes them.
        os.dup2(null, fd)
    try:
        if failure:
            os.write(status, f"error {failure}\n".encode())
        else:
            os.write(status, b"pid %d\n" % server)
            _wait(server, life, woken, status)
    except BrokenPipeError:
        pass
    end_all(bounded=bounded)


def _wait(server: int, life: int, woken: int, status: int) -> None:
    poll = select.poll()
    poll.register(life, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll()]
        if woken in ready:
            os.read(woken, 4096)
            try:
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    if ended[0] == server:
                        code = os.waitstatus_to_exitcode(ended[1])
                        os.write(status, b"exit %d\n" % code if code >= 0 else b"signal %d\n" % -code)
                        return
            except ChildProcessError:
                return
        if life in ready and not os.read(life, 1):
            return


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1", sys.argv[4:])
