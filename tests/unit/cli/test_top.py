"""`linckia top` and `status` on narrow terminals: golden screens, sorting, scrolling, and columns that are never
hidden.
"""

from __future__ import annotations

import contextlib
import curses
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from kernel.cli import status, top
from proto.control import terminal
from proto.control.terminal import Cell
from proto.ops.kernel import KernelStatus, ServiceStatus
from proto.ops.observation import Overview, ProcessFigures

NAMES = (
    "front", "echo", "yaml", "retrieve", "embed", "rerank", "graph", "fetch", "knowledge", "mounts", "llm",
    "documents", "transcripts", "memory", "files", "compare", "watch", "media",
)  # fmt: skip


def service(number: int, name: str) -> ProcessFigures:
    return ProcessFigures(
        name=name, service=name, state="ready", pid=100 + number, generation=1, cpu=number / 100,
        pss_bytes=(number + 1) * 2**20, calls_per_s=float(number % 5), p50_ms=1.25, p99_ms=12.0 * number,
        in_flight=number % 3, uptime_s=7200.0, info={"model": "a"},
    )  # fmt: skip


def figures() -> list[ProcessFigures]:
    services = [service(number, name) for number, name in enumerate(NAMES)]
    died = {"deaths": {"signal": 2}, "last_death": "killed by SIGKILL", "recovery_ms": 25.4, "restarts": 2}
    failed = {"state": "failed", "reason": "7 deaths within 30 s", "retry_in_s": 12.0, "pid": None, "cpu": None}
    services[4], services[6] = replace(services[4], **died), replace(services[6], **failed)
    return services


def overview() -> Overview:
    return Overview(
        version="1.2.3", at=0.0, pid=1, uptime_s=7300.0, data_dir="/d", roots=[], clients=0, kernel_pss_bytes=None,
        total_pss_bytes=400 * 2**20, kernel_cpu=0.02, events=0, services=figures(),
    )  # fmt: skip


def whole_status() -> KernelStatus:
    return KernelStatus(
        version="1.2.3", pid=1, started_at="", uptime_s=7300.0, data_dir="/d", roots=[], http_url=None, clients=0,
        page_url="http://127.0.0.1:3000/#" + "a" * 32 + ".linckia_" + "b" * 43, rss_bytes=0, pss_bytes=None,
        total_pss_bytes=400 * 2**20, services=list(figures()),
    )  # fmt: skip


def text(lines: list[list[Cell]]) -> list[str]:
    return ["".join(cell if isinstance(cell, str) else cell[0] for cell in line).rstrip() for line in lines]


GOLDEN = """\
Linckia 1.2.3, up 2 h: 17 of 18 services well, 400 MiB, CPU 149 %, 33.0 calls/s
sorted by start order
  SERVICE      STATE   CPU   MEMORY  CALLS/S  P99     DEATHS  NOTE
> front        ready   0 %   1 MiB   0.0      0.0 ms  -
  echo         ready   1 %   2 MiB   1.0      12 ms   -
  yaml         ready   2 %   3 MiB   2.0      24 ms   -
  retrieve     ready   3 %   4 MiB   3.0      36 ms   -
  embed        ready   4 %   5 MiB   4.0      48 ms   2
  rerank       ready   5 %   6 MiB   0.0      60 ms   -
  graph        failed  -     7 MiB   1.0      72 ms   -       7 deaths within 3…
  fetch        ready   7 %   8 MiB   2.0      84 ms   -
  knowledge    ready   8 %   9 MiB   3.0      96 ms   -
  mounts       ready   9 %   10 MiB  4.0      108 ms  -
  llm          ready   10 %  11 MiB  0.0      120 ms  -
  documents    ready   11 %  12 MiB  1.0      132 ms  -
  transcripts  ready   12 %  13 MiB  2.0      144 ms  -
  memory       ready   13 %  14 MiB  3.0      156 ms  -
  files        ready   14 %  15 MiB  4.0      168 ms  -
  compare      ready   15 %  16 MiB  0.0      180 ms  -
  watch        ready   16 %  17 MiB  1.0      192 ms  -
  media        ready   17 %  18 MiB  2.0      204 ms  -

front: ready; process 100
sort: n name  m memory  c processor  r calls/s  d deaths   ↑↓ select   q quit"""


def test_the_golden_screen_of_80_by_24_has_all_services() -> None:
    assert "\n".join(text(top.screen(overview(), top.View(), 80, 24))) == GOLDEN


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120, 200])
@pytest.mark.parametrize("height", [8, 24, 60])
def test_no_line_is_too_long_and_no_name_is_cut(width: int, height: int) -> None:
    lines = text(top.screen(overview(), top.View(), width, height))
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    shown = [line[2:].split()[0] for line in lines[3 : 3 + min(18, height - 5)]]
    assert shown == list(NAMES[: len(shown)])


@pytest.mark.parametrize(
    ("key", "first"), [("n", "compare"), ("m", "media"), ("c", "media"), ("r", "embed"), ("d", "embed")]
)
def test_keys_sort_and_the_second_press_turns_the_order_round(key: str, first: str) -> None:
    view, services = top.View(), overview().services
    assert view.pressed(ord(key), services)
    before = [each.name for each in view.sorted(services)]
    assert before[0] == first
    view.pressed(ord(key), services)
    assert [each.name for each in view.sorted(services)] == before[::-1]


def test_the_selection_scrolls_and_its_details_are_shown() -> None:
    view, answer = top.View(), overview()
    lines = text(top.screen(answer, view, 80, 11))
    assert lines[-2].startswith("1-6 of 18  front: ready")
    for _ in range(4):
        view.pressed(curses.KEY_DOWN, answer.services)
    assert text(top.screen(answer, view, 100, 11))[-2].startswith(
        "1-6 of 18  embed: ready; last death: killed by SIGKILL; recovered in 25 ms; process 104"
    )
    view.pressed(curses.KEY_NPAGE, answer.services)
    lines = text(top.screen(answer, view, 80, 11))
    assert lines[8].startswith("> llm")
    view.pressed(curses.KEY_END, answer.services)
    assert text(top.screen(answer, view, 80, 11))[8].startswith("> media")
    view.pressed(curses.KEY_HOME, answer.services)
    assert text(top.screen(answer, view, 80, 11))[3].startswith("> front")
    assert not view.pressed(ord("q"), answer.services)


def test_a_failure_of_the_kernel_is_on_the_screen() -> None:
    assert text(top.screen(overview(), top.View(), 80, 24, "no kernel is running"))[1] == "no kernel is running"


class Terminal:
    """Standard output that is a terminal of 80 columns."""

    def __init__(self) -> None:
        self.written = ""

    def isatty(self) -> bool:
        return True

    def write(self, data: str) -> None:
        self.written += data

    def flush(self) -> None: ...


@contextlib.contextmanager
def on_terminal() -> Iterator[Terminal]:
    """Replace standard output. A fixture could not, since pytest replaces it again before the test."""
    shown = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_COLOR", "1")
        patch.setenv("COLUMNS", "80")
        patch.setattr("sys.stdout", shown)
        yield shown


STATUS = """\
Linckia 1.2.3, up 2 h, 400 MiB: 17 of 18 services well; linckia status -v says more
page http://127.0.0.1:3000/#aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.linckia_bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
SERVICE      STATE   UP   MEMORY  RESTARTS  BUSY  NOTE
front        ready   2 h  1 MiB   0         0
echo         ready   2 h  2 MiB   0         1
yaml         ready   2 h  3 MiB   0         2
retrieve     ready   2 h  4 MiB   0         0
embed        ready   2 h  5 MiB   2         1     last death: killed by SIGKILL
rerank       ready   2 h  6 MiB   0         2
graph        failed  2 h  7 MiB   0         0     7 deaths within 30 s; next tr…
"""


def test_the_golden_screen_of_status_fits_80_by_24() -> None:
    answer = whole_status()
    with on_terminal() as screen:
        terminal.say(*status.summary(answer))
        terminal.show_table(
            status.SHORT, [status.short_row(each) for each in answer.services], status.SHORT_DROP, one_line=True
        )
    lines = [line.rstrip() for line in screen.written.splitlines()]
    assert "\n".join(lines[:10]) + "\n" == STATUS
    rows = sum(-(-max(1, len(line)) // 80) for line in lines)
    assert rows <= 23, "with the prompt, that is more than a screen"
    assert [line.split()[0] for line in lines[3:]] == list(NAMES)


def test_columns_are_dropped_by_importance_and_names_never() -> None:
    rows: list[list[Cell]] = [
        ["a-very-long-name-of-a-model-that-matters", "search", "90.0 MiB", "English", "word " * 8]
    ]
    headers = ("NAME", "FOR", "WEIGHTS", "LANGUAGES", "")
    with on_terminal() as screen:
        terminal.show_table(headers, rows, ("LANGUAGES", "WEIGHTS"))
    title, line, *wrapped = screen.written.splitlines()
    assert title.split() == ["NAME", "FOR", "WEIGHTS"]
    assert line.startswith("a-very-long-name-of-a-model-that-matters  search  90.0 MiB  word")
    assert max(map(len, [line, *wrapped])) <= 80
    assert screen.written.count("word") == 8


def test_status_leaves_out_healthy_services_on_a_short_screen() -> None:
    services = [ServiceStatus(name=str(n), state="ready") for n in range(10)]
    services[8] = replace(services[8], state="failed")
    services[9] = replace(services[9], deaths={"signal": 1}, last_death="killed")
    shown, others = status.fitted(services, 7)
    assert [each.name for each in shown] == ["0", "1", "2", "3", "4", "8", "9"]
    assert [each.name for each in others] == ["5", "6", "7"]
    assert status.fitted(services, 10) == (services, [])
    assert [each.name for each in status.fitted(services, 1)[0]] == ["8", "9"]
