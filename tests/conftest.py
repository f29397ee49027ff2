"""Runs every coroutine test under trio; `autojump_clock` provides a clock that jumps ahead whenever all tasks wait."""

from __future__ import annotations

import collections
import functools
import gc
import inspect
import itertools
import os
import random
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # it has no types

from tests.limits import Limits

if TYPE_CHECKING:
    from tests.postgres import PostgresServer

# Tests start hundreds of processes. With this variable set, each would compile every module that it imports: a second
# of processor time per kernel.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A run in the background (`scripts/test &` in a script, `nohup scripts/test`) ignores these, and so would the programs
# whose end by a signal is tested. A handler does not outlive the start of a program.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# Tests run in parallel. OpenMP's threads wait for each other busily, and two threads that share their cores with other
# processes take several times as long as one.
os.environ["OMP_NUM_THREADS"] = "1"
for service in ("EMBED", "RERANK"):
    os.environ[f"LINCKIA_SERVICES__{service}__THREADS"] = "1"

# Objects created during collection live until the end, five thousand tests of them: scanning them repeatedly takes half
# of the collection's time.
gc.disable()

# The time per example depends on the machine's load, and is not part of our promises.
settings.register_profile("all", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=300)
settings.register_profile("some", settings.get_profile("all"), max_examples=50)
settings.register_profile("fast", settings.get_profile("all"), max_examples=10)
# The same examples each time: a change does not fail to land because of a bug that was there before.
settings.register_profile("repeatable", settings.get_profile("some"), derandomize=True)

Step = TypeVar("Step")


def pytest_addoption(parser: pytest.Parser) -> None:
    whole = "every step of each long sweep and 300 examples of each property, not a sample of them"
    parser.addini(
        "timeout_grace", "seconds until a process whose test does not end at its limit is killed", default="90"
    )
    parser.addini(
        "timeout_again", "seconds until a test that was cancelled at its limit gets an exception", default="15"
    )
    parser.addoption("--all", action="store_true", help=whole)
    parser.addoption("--seed", type=int, help="of the samples, as the report of another run says it")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("all" if config.option.all else "some"))
    limits = Limits(config)
    config.pluginmanager.register(limits, "limits")
    config.add_cleanup(limits.close)
    if config.option.seed is None:
        # Workers inherit the environment of the process that starts them.
        config.option.seed = int(os.environ.setdefault("TESTS_SEED", str(random.randrange(10_000))))


def pytest_report_header(config: pytest.Config) -> str:
    return "sweeps: whole" if config.option.all else f"sweeps: a sample of each, --seed {config.option.seed}"


def sampled(config: pytest.Config, name: str, steps: Sequence[Step], most: int) -> list[Step]:
    """Return at most `most` steps of a sweep in order: both ends, and others chosen by the seed; all steps with
    `--all`."""
    if config.option.all or len(steps) <= most:
        return list(steps)
    chance = random.Random(f"{config.option.seed} {name}")
    ends = {0, len(steps) - 1} if most > 2 else set()
    chosen = ends | set(chance.sample(sorted(set(range(len(steps))) - ends), most - len(ends)))
    return [steps[index] for index in sorted(chosen)]


@pytest.fixture
def sample(request: pytest.FixtureRequest) -> Callable[[Sequence[Step], int], list[Step]]:
    """Provide `sampled` for the steps that a test loops over by itself."""
    return functools.partial(sampled, request.config, request.node.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Reduce the parameters of tests marked `sample(most)` to a sample."""
    chosen: list[pytest.Item] = []
    for name, group in itertools.groupby(items, lambda item: item.nodeid.partition("[")[0]):
        those = list(group)
        mark = those[0].get_closest_marker("sample")
        chosen += sampled(config, name, those, *mark.args) if mark is not None else those
    # What several files share keeps them in one process, which would otherwise work alone at the end: it starts first.
    items[:] = sorted(chosen, key=lambda item: _shared(item.nodeid) is None)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show where the time goes. Workers run side by side, so that the sum is more than a clock shows."""
    seconds: dict[str, float] = collections.defaultdict(float)
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            folders = report.nodeid.partition("::")[0].split("/")[:-1]
            seconds["/".join(folders[:3])] += report.duration
    if len(seconds) > 1:
        terminalreporter.section("seconds by folder")
        for folder, took_s in sorted(seconds.items(), key=lambda item: -item[1]):
            terminalreporter.write_line(f"{took_s:8.1f}  {folder}")


TOGETHER = {
    "tests/acceptance/": "a kernel",
    "tests/browser/test_operating.py": "a kernel with data",
    "tests/browser/test_page.py": "a kernel with data",
    "tests/browser/test_rest.py": "a kernel with data",
    "tests/browser/test_today.py": "a kernel with data",
    "tests/unit/embed/": "torch",
    "tests/unit/models/": "torch",
    "tests/unit/rerank/": "torch",
    "tests/unit/retrieve/test_other_models.py": "torch",
    "tests/unit/retrieve/test_outside_vectors.py": "torch",
    "tests/unit/retrieve/test_service.py": "torch",
    "tests/unit/retrieve/test_vector_service.py": "torch",
}
"""Folders and files whose tests share something that is slow to start, and its name."""


def _shared(nodeid: str) -> str | None:
    """What a test shares with those of other files."""
    return next((what for folder, what in TOGETHER.items() if nodeid.startswith(folder)), None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    return _ByWhatIsShared(config, log)


class _ByWhatIsShared(LoadFileScheduling):  # type: ignore[misc]  # its base has no types
    """Runs the tests of a file in one process, and likewise those of folders in `TOGETHER` that share something."""

    def _split_scope(self, nodeid: str) -> str:
        return _shared(nodeid) or nodeid.partition("::")[0]

    def remove_node(self, node: Any) -> str | None:
        """Return the test during which a process died. xdist's own scheduler would repeat it in the next process."""
        units: dict[str, dict[str, bool]] = self.assigned_work[node]
        found = next(((unit, name) for unit in units.values() for name, is_done in unit.items() if not is_done), None)
        if found is not None:
            unit, name = found
            unit[name] = True
        for done in [scope for scope, unit in units.items() if all(unit.values())]:
            del units[done]
        super().remove_node(node)
        return None if found is None else name


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.fixture(scope="module")
def postgres_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A PostgreSQL server for the tests of a module, with the settings in its `POSTGRES`."""
    # Most tests need none.
    from tests.postgres import MISSING, postgres

    if MISSING:
        pytest.skip(MISSING)
    # These servers never lose their machine, only their processes.
    with postgres(getattr(request.module, "POSTGRES", {"fsync": "off"})) as server:
        yield server


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
    limits = pyfuncitem.config.pluginmanager.getplugin("limits")
    assert isinstance(limits, Limits)
    trio.run(limits.run, run, clock=clock)
    return True
