"""Every coroutine test runs under trio; `autojump_clock` gives it a clock that jumps ahead whenever all tasks wait."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # it has no types

# Tests start hundreds of processes. Where this is set, each compiles every module that it imports: a second of a core
# for each kernel.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Tests run side by side. OpenMP's threads wait for each other busily, and a team of two that shares its cores with
# others takes several times as long as one thread.
os.environ["OMP_NUM_THREADS"] = "1"
for service in ("EMBED", "RERANK"):
    os.environ[f"LINCKIA_SERVICES__{service}__THREADS"] = "1"

# How fast examples come is the machine's load, and no promise of ours.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", settings.get_profile("steady"), max_examples=10)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or "steady")


TOGETHER = ("tests/acceptance/", "tests/unit/embed/")
"""Folders whose tests share what is slow to start across files: a kernel, a model's library."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    return _ByWhatIsShared(config, log)


class _ByWhatIsShared(LoadFileScheduling):  # type: ignore[misc]  # its base has no types
    """Tests of one file run in one process, and so do those of each folder of `TOGETHER`."""

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid.partition("::")[0])


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = inspect.signature(test).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    clock = pyfuncitem.funcargs.get("autojump_clock")
    assert clock is None or isinstance(clock, trio.testing.MockClock)
    run: Callable[[], Coroutine[Any, Any, None]] = functools.partial(test, **arguments)
    trio.run(run, clock=clock)
    return True
