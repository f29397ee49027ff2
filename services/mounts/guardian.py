"""The guardian: a small process between an adapter and its server, which leaves no process behind.

    python -I -S guardian.py LIFE_FD STATUS_FD COMMAND [ARGUMENT…]

It starts COMMAND in a session of its own. Orphans below it become its children (PR_SET_CHILD_SUBREAPER), also those
that have left the session. When the pipe LIFE_FD closes, because the adapter has closed it or died, or when the
server has ended, it kills every process below it, then ends. It writes lines to STATUS_FD: `pid N`, `error TEXT`,
`exit N`, `signal N`.

This file imports only what starts quickly, since it runs without packages.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

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


def end_all() -> None:
    """Kill all descendants until none is left. New ones may appear between two rounds."""
    pause_s = FIRST_PAUSE_S
    while True:
        kill(descendants(os.getpid()))
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _start(command: list[str]) -> tuple[int, str]:
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
        if os.getppid() == guardian:
            os.execvp(command[0], command)
    except OSError as error:
        os.write(failed, f"{command[0]}: {error.strerror}".encode())
    finally:
        os._exit(NOT_STARTED)


def main(life: int, status: int, command: list[str]) -> None:
    """Start the command, and return when it and all its descendants have ended."""
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
    server, failure = _start(command)
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
    end_all()


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
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
