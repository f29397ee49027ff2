"""`linckia top`: state and load of all services, live, one line for each.

The screen is drawn by `screen`, a pure function of the figures, so that it can be tested without a terminal.
"""

from __future__ import annotations

import argparse
import curses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kernel.cli.status import STYLES, memory
from proto.control.client import Client, ControlError
from proto.control.commands import Failed, Usage
from proto.control.terminal import Cell, columns_that_fit, connect, counted, cut, duration, escaped, styled_lines
from proto.ops.observation import KernelOverview, Overview, ProcessFigures

HEADERS: Final = ("SERVICE", "STATE", "CPU", "MEMORY", "CALLS/S", "P50", "P99", "BUSY", "DEATHS", "UP", "NOTE")
DROP: Final = ("UP", "P50", "BUSY", "P99", "DEATHS", "NOTE", "CALLS/S", "MEMORY", "CPU")
"""Columns that are left out on a narrow terminal, the first one first."""

FOOTER: Final = "sort: n name  m memory  c processor  r calls/s  d deaths   ↑↓ select   q quit"

Value = Callable[[ProcessFigures], Any]

ORDERS: Final[dict[str, tuple[str, Value]]] = {
    "n": ("name", lambda each: each.name),
    "m": ("memory", lambda each: -(each.pss_bytes or each.rss_bytes or 0)),
    "c": ("processor", lambda each: -(each.cpu or 0)),
    "r": ("calls/s", lambda each: -(each.calls_per_s or 0)),
    "d": ("deaths", lambda each: -_deaths(each)),
}
"""Sort orders by their key: a name, and the value to sort by."""

_MOVES: Final = {curses.KEY_UP: -1, curses.KEY_DOWN: 1, ord("k"): -1, ord("j"): 1}


@dataclass
class View:
    """What the user has chosen: the order, and the selected service."""

    order: str = ""
    is_reversed: bool = False
    selected: str = ""
    first: int = 0
    """Number of the first service on the screen."""
    shown: int = field(default=1, init=False)
    """How many services the last screen had room for."""

    def sorted(self, services: Sequence[ProcessFigures]) -> list[ProcessFigures]:
        found = list(services) if not self.order else sorted(services, key=ORDERS[self.order][1])
        return found[::-1] if self.is_reversed else found

    def pressed(self, key: int, services: Sequence[ProcessFigures]) -> bool:
        """Apply a key; return False if it means to quit."""
        if key in (ord("q"), ord("Q"), 27):
            return False
        if (name := chr(key) if 0 < key < 128 else "") in ORDERS:
            self.is_reversed = self.order == name and not self.is_reversed
            self.order = name
            return True
        names = [each.name for each in self.sorted(services)]
        place = names.index(self.selected) if self.selected in names else 0
        pages = {curses.KEY_PPAGE: -self.shown, curses.KEY_NPAGE: self.shown}
        ends = {curses.KEY_HOME: -len(names), curses.KEY_END: len(names)}
        step = (_MOVES | pages | ends).get(key, 0)
        if names and step:
            self.selected = names[min(len(names) - 1, max(0, place + step))]
        return True


def fitted(
    headers: Sequence[str], rows: Sequence[Sequence[Cell]], width: int, drop: Sequence[str] = ()
) -> tuple[list[str], list[list[Cell]]]:
    """Fit a table into `width` characters: columns in `drop` are left out, the first one first, until the rest fits.

    The last column may be shortened to `MIN_LAST` characters. The first column has the names and is never shortened.
    """
    kept, room = columns_that_fit(headers, rows, width, drop)
    shown = [[*(row[column] for column in kept[:-1]), cut(row[kept[-1]], room)] for row in rows]
    return [headers[column] for column in kept], shown


def top(arguments: argparse.Namespace) -> int:
    """Show the figures every `--interval` seconds until `q` or Ctrl-C. Raises ControlError, Failed, Usage."""
    if not 0.1 <= arguments.interval <= 3600:
        raise Usage(f"--interval is {arguments.interval:g}; it must be 0.1 to 3600 seconds")
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise Failed("it needs a terminal; use `linckia status` or `linckia status --json`")
    # The first answer comes before the screen is taken, so that a missing kernel is an ordinary error.
    with connect(arguments) as client:
        answer = client.call(KernelOverview())
    return curses.wrapper(_run, arguments, answer)


def _run(window: curses.window, arguments: argparse.Namespace, answer: Overview) -> int:
    curses.curs_set(0)
    colours = _colours()
    view, problem = View(), ""
    client: Client | None = None
    try:
        while True:
            height, width = window.getmaxyx()
            window.erase()
            for number, line in enumerate(screen(answer, view, width, height, problem)):
                _draw(window, number, width, line, colours)
            window.refresh()
            due = time.monotonic() + arguments.interval
            while (left_s := due - time.monotonic()) > 0:
                window.timeout(max(1, int(left_s * 1000)))
                key = window.getch()
                if key == -1:
                    break
                if not view.pressed(key, answer.services):
                    return 0
                due = min(due, time.monotonic()) if key != curses.KEY_RESIZE else due
            try:
                client = client or connect(arguments)
                answer, problem = client.call(KernelOverview()), ""
            except (ControlError, OSError) as error:
                # Go on trying: the kernel may be restarting.
                client, problem = None, str(error).partition("\n")[0]
    except KeyboardInterrupt:
        return 0
    finally:
        if client is not None:
            client.close()


def screen(answer: Overview, view: View, width: int, height: int, problem: str = "") -> list[list[Cell]]:
    """Return the lines of the screen, at most `height`, none longer than `width`."""
    services = view.sorted(answer.services)
    names = [each.name for each in services]
    if view.selected not in names:
        view.selected = names[0] if names else ""
    view.shown = room = max(1, height - 5)
    place = names.index(view.selected) if names else 0
    view.first = min(max(view.first, place - room + 1, 0), place, max(0, len(names) - room))
    headers, rows = fitted(HEADERS, [row(each) for each in services], width - 2, DROP)
    title, *lines = styled_lines([(header, "dim") for header in headers], rows)
    chosen = range(view.first, min(len(lines), view.first + room))
    body: list[list[Cell]] = [[("> " if number == place else "  ", "bold"), *lines[number]] for number in chosen]
    empty: list[list[Cell]] = [[""] for _ in range(room - len(body))]
    selected = services[place] if services else None
    hidden = len(lines) - len(body)
    more = f"{view.first + 1}-{view.first + len(body)} of {len(lines)}  " if hidden else ""
    whole: list[list[Cell]] = [
        [_cut(totals(answer), width)],
        [(_cut(problem, width), "bold red")] if problem else [_cut(_orders(view), width)],
        [("  ", ""), *title],
        *body,
        *empty,
        [_cut(f"{more}{detail(selected)}" if selected else "", width)],
        [(_cut(FOOTER, width), "dim")],
    ]
    return whole[:height]


def totals(answer: Overview) -> str:
    """Return the first line: the system as a whole."""
    services = answer.services
    own = [each for each in services if each.name == each.service]
    cpu = sum(each.cpu or 0 for each in services) + (answer.kernel_cpu or 0)
    well = sum(each.state in ("ready", "resting") for each in services)
    return (
        f"Linckia {answer.version}, up {duration(answer.uptime_s)}: {well} of "
        f"{counted(len(services), 'service')} well, {memory(answer.total_pss_bytes)}, "
        f"CPU {cpu * 100:.0f} %, {sum(each.calls_per_s or 0 for each in own):.1f} calls/s"
    )


def _orders(view: View) -> str:
    name = ORDERS[view.order][0] if view.order else "start order"
    return f"sorted by {name}{', reversed' if view.is_reversed else ''}"


def row(service: ProcessFigures) -> list[Cell]:
    """Return the cells of a service's line, in the order of HEADERS."""
    up, cpu, rate = service.uptime_s, service.cpu, service.calls_per_s
    queued = service.queued
    own = service.name == service.service
    return [
        escaped(service.name),
        (service.state, STYLES.get(service.state, "")),
        "-" if cpu is None else f"{cpu * 100:.0f} %",
        memory(service.pss_bytes, service.rss_bytes),
        f"{rate:.1f}" if own and rate is not None else "-",
        _ms(service.p50_ms) if own else "-",
        _ms(service.p99_ms) if own else "-",
        f"{service.in_flight or 0}" + (f"+{queued}" if queued else ""),
        str(_deaths(service) or "-"),
        "-" if up is None else duration(up),
        escaped(service.reason),
    ]


def detail(service: ProcessFigures) -> str:
    """Return what there is to say about the selected service."""
    parts = [f"{service.name}: {service.reason or service.state}"]
    if (retry := service.retry_in_s) is not None:
        parts.append(f"next try in {duration(retry)}")
    if service.last_death:
        parts.append(f"last death: {service.last_death}")
    if (recovery := service.recovery_ms) is not None:
        parts.append(f"recovered in {recovery:.0f} ms")
    for name, work in service.backlogs.items():
        left = "" if work.left_s is None else f", {duration(work.left_s)} left"
        parts.append(f"{name}: {work.done:,} of {work.total:,}{left}")
    if service.pid:
        parts.append(f"process {service.pid}")
    return escaped("; ".join(parts))


def _deaths(service: ProcessFigures) -> int:
    return sum(service.deaths.values())


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1000:.1f} s" if value >= 1000 else f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def _colours() -> dict[str, int]:
    """Return the attributes of styles; without colours, only bold and dim."""
    found = {"bold": curses.A_BOLD, "dim": curses.A_DIM, "bold red": curses.A_BOLD}
    if curses.has_colors():
        curses.use_default_colors()
        for number, (style, colour) in enumerate(
            {"green": curses.COLOR_GREEN, "yellow": curses.COLOR_YELLOW, "red": curses.COLOR_RED}.items(), 1
        ):
            curses.init_pair(number, colour, -1)
            found[style] = curses.color_pair(number)
        found["bold red"] = found["red"] | curses.A_BOLD
    return found


def _draw(window: curses.window, number: int, width: int, line: Sequence[Cell], colours: Mapping[str, int]) -> None:
    column = 0
    for cell in line:
        text, style = (cell, "") if isinstance(cell, str) else cell
        text = text[: width - column]
        try:
            window.addstr(number, column, text, colours.get(style, 0))
        except curses.error:
            # The last cell of the screen, after which the cursor has no place.
            return
        column += len(text)
