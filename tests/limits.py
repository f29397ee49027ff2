"""The time limit of every test. A test that exceeds it fails, and the processes that it started are killed.

pytest-timeout says which limit a test has (`timeout` in pyproject.toml, `@pytest.mark.timeout(S)`) and when it begins.
Its own ways to end a test do not suit these tests: an exception in the middle of trio's scheduler leaves the test's
tasks behind, and ending the worker leaves its kernels. So, in this order:

1. The processes that the test started are killed. What waits for one of them goes on.
2. A coroutine test is cancelled. Any other one gets an exception, and so does one that does not react.
3. A process of tests that does not get further is killed by its guard (`tests/guard.py`), and xdist starts another.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import traceback
import uuid
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any

import pytest
import pytest_timeout  # type: ignore[import-untyped]  # it has no types
import trio

from tests import guard

MAX_STRUCK = 3
"""With so many tests that exceeded their limits, one of xdist's processes is itself at fault: it is ended, and the next
one runs the tests that are left."""

_RESOURCES = ("RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_NPROC")

WHOLE_SWEEPS = 10
"""With `--all`, limits are longer by this factor."""


class Limits:
    """A plugin of pytest."""

    def __init__(self, config: pytest.Config) -> None:
        self._grace_s = float(config.getini("timeout_grace"))
        self._again_s = float(config.getini("timeout_again"))
        self._factor = WHOLE_SWEEPS if config.option.all else 1
        # What a nested run of pytest starts belongs to the outer one too.
        self._outer = os.environ.get(guard.RUN, "")
        self._run = f"{self._outer}{uuid.uuid4().hex[:8]}/"
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, self._run, str(os.getpid())],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        os.environ[guard.RUN] = self._run
        self._since_s = self._setup_s = 0.0
        self._cancel: Callable[[], object] | None = None
        self._message = ""
        self._struck: set[str] = set()
        self._resources = _resource_limits()

    def close(self) -> None:
        """Kill the processes that tests left."""
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.close()
        self._guard.wait()
        if self._outer:
            os.environ[guard.RUN] = self._outer
        else:
            del os.environ[guard.RUN]

    def _tell(self, seconds: float) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.write(f"{seconds}\n".encode())
            self._guard.stdin.flush()

    async def run(self, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine test so that the limit cancels it."""
        token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as scope:

            def cancel() -> None:
                root = trio.lowlevel.current_root_task()
                assert root is not None
                self._message += "".join(_tasks(root))
                scope.cancel()

            self._cancel = lambda: token.run_sync_soon(cancel)
            try:
                await test()
            finally:
                self._cancel = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: pytest_timeout.Settings) -> bool:
        limit_s = settings.timeout * self._factor

        def strike(number: int, frame: FrameType | None) -> None:
            if pytest_timeout.is_debugging():
                return
            self._struck.add(item.nodeid)
            if len(self._struck) >= MAX_STRUCK and "PYTEST_XDIST_WORKER" in os.environ:
                traceback.print_stack(frame)
                os._exit(1)
            ended = guard.end(self._run, self._since_s)
            if not self._message:
                self._message = f"not finished within {limit_s:g} s; processes that were killed: {ended or 'none'}\n"
                if self._cancel is not None:
                    self._cancel()
                    return
            pytest.fail(self._message)

        def cancel() -> None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

        item.cancel_timeout = cancel  # type: ignore[attr-defined]  # where pytest-timeout looks for it
        self._tell(limit_s + self._grace_s)
        signal.signal(signal.SIGALRM, strike)
        signal.setitimer(signal.ITIMER_REAL, limit_s, self._again_s)
        return True

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self._message = ""
        try:
            return (yield)
        finally:
            self._tell(0)

    @pytest.hookimpl
    def pytest_enter_pdb(self) -> None:
        self._tell(0)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        self._since_s = self._setup_s = guard.uptime()
        with self._reported():
            yield

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        # What fixtures have started may be shared with other tests.
        self._since_s = guard.uptime()
        with self._reported():
            yield

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        self._since_s = self._setup_s
        with self._reported():
            yield
        self._check_resources()

    def _check_resources(self) -> None:
        # A process whose memory is limited from now on fails in some later test, or hangs.
        before, self._resources = self._resources, _resource_limits()
        if changed := {name: limit for name, limit in self._resources.items() if limit != before[name]}:
            pytest.fail(f"the test has left other limits to this process: {changed}")

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Report the limit once, rather than its consequences."""
        failure: BaseException | None = None
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            if not self._message:
                raise
            failure = error
        if self._message:
            message, self._message = self._message, ""
            raise pytest.fail.Exception(message) from failure


def _resource_limits() -> dict[str, tuple[int, int]]:
    return {name: resource.getrlimit(getattr(resource, name)) for name in _RESOURCES}


def _tasks(task: trio.lowlevel.Task) -> Iterator[str]:
    """Yield where the tasks wait that have no other tasks below them."""
    below = [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    if not below:
        stack = traceback.StackSummary.extract(task.iter_await_frames())
        yield f"\n{task.name}:\n{''.join(stack.format())}"
    for child in below:
        yield from _tasks(child)
