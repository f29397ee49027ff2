"""`linckia events`: what happened, for people at a terminal and for scripts."""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from proto.control.client import CallFailed, Client, ControlError
from proto.control.commands import AddCommand, Group, Usage, add_json
from proto.control.terminal import connect, escaped, say

if TYPE_CHECKING:
    from proto.ops.events import Event, EventsRead
    from services.events.folding import Line

DEFAULT_COUNT = 50
PAGE = 1_000
WAIT_S = 30.0

RETRY_S = 1.0
"""Delay before `--follow` asks again after the kernel or the service has ended."""

PASSING = ("unavailable", "overloaded", "timeout")

EVENTS_EPILOG = """\
examples:
  linckia events --since '2 hours ago' --path ~/notes
  linckia events --kind file --kind change --follow
  linckia events --after 1200 --json | jq .subject

Five or more changes of the same kind to files of one folder, each within a minute of another one, are one line with
their number, after the numbers of the first and the last event: `1201-11200 ... /home/ann/many/: 10,000 files created`.
-n counts lines. Deaths, tasks, gaps and calls that failed always have a line of their own. With --follow, what arrives
together is one line. --json shows every event.
"""

GROUP = Group.USE


def add(command: AddCommand) -> None:
    """Declare `events`."""
    events = command("events", run_events, "show what happened: changed files and data, deaths, tasks", EVENTS_EPILOG)
    events.add_argument("--after", metavar="N", type=int, help="only events after this number; 0: all that are kept")
    events.add_argument("--since", metavar="WHEN", help="only from then on: '2 hours ago', a date, or RFC 3339")
    events.add_argument("--kind", metavar="KIND", action="append", help="only this kind, such as file; may be repeated")
    events.add_argument("--path", metavar="PATH", help="only files at or below it")
    events.add_argument(
        "-n", dest="count", metavar="N", type=int, help="the last N lines (default: 50; with a start, all)"
    )
    add_json(events, help="one object a line")
    events.add_argument("-f", "--follow", action="store_true", help="print new lines as they are written")


def run_events(arguments: argparse.Namespace) -> int:
    """Print events, oldest first; with `--follow`, until interrupted. Raises ControlError, Usage."""
    from proto.ops.events import EventsRead

    if arguments.count is not None and arguments.count < 0:
        raise Usage(f"-n is {arguments.count}; it must be a number of events, 0 or more")
    if arguments.after is not None and arguments.since is not None:
        raise Usage("give either --after or --since")
    asked = EventsRead(kinds=arguments.kind or [], path=arguments.path or "", limit=PAGE)
    after, found = _kept(arguments, asked)
    for line in found:
        say(line)
    if arguments.follow:
        say(flush=True)
        for events in _following(arguments, asked, after):
            for line in _lines(arguments, events):
                say(line, flush=True)
    return 0


def _lines(arguments: argparse.Namespace, events: Sequence[Event]) -> list[str]:
    """Return a line for each event, or without `--json` for those that are folded."""
    if arguments.json:
        return [_as_json(each) for each in events]
    from services.events.folding import Folding

    folding: Folding[Event] = Folding()
    for each in events:
        folding.add(each, datetime.datetime.fromisoformat(each.at).timestamp(), each.details)
    found: list[tuple[int, str]] = []
    for line in folding.lines:
        if line.is_folded:
            found.append((line.first, _folded(line)))
        else:
            found += [(each.number, in_words(each)) for each in line.few]
    return [text for _, text in sorted(found)]


def _folded(line: Line[Event]) -> str:
    event = line.few[0]
    at = datetime.datetime.fromtimestamp(line.first_s).strftime("%Y-%m-%d %H:%M:%S")
    who = f" by {event.who}" if event.who else ""
    return escaped(f"{line.first}-{line.last} {at} {event.kind} {line.folder}: {line.in_words()}{who}")


def _kept(arguments: argparse.Namespace, asked: EventsRead) -> tuple[int, list[str]]:
    """Return the cursor after the events that there are, and the lines to show."""
    from msgspec.structs import replace

    with connect(arguments) as client:
        if arguments.after is None and arguments.since is None:
            return _last(client, arguments, asked)
        page = client.call(replace(asked, after=arguments.after, since=arguments.since))
        found = list(page.events)
        while page.more:
            page = client.call(replace(asked, after=page.next))
            found += page.events
        lines = _lines(arguments, found)
        return page.next, lines if arguments.count is None else lines[len(lines) - min(arguments.count, len(lines)) :]


def _last(client: Client, arguments: argparse.Namespace, asked: EventsRead) -> tuple[int, list[str]]:
    """Return the last lines. What is folded takes more events than lines, so earlier ones are read as needed."""
    from msgspec.structs import replace

    count = DEFAULT_COUNT if arguments.count is None else arguments.count
    newest = client.call(asked)
    found, window = list(newest.events), PAGE
    lines = _lines(arguments, found)
    is_all = len(found) < PAGE
    # Of the first line, earlier events may be missing.
    while not is_all and len(lines) <= count:
        first, window = found[0].number, window * 4
        after = max(newest.oldest, first - window) - 1
        is_all = after < newest.oldest
        earlier: list[Event] = []
        while after < first - 1:
            page = client.call(replace(asked, after=after))
            earlier += [each for each in page.events if each.number < first]
            after = page.next
        found = earlier + found
        lines = _lines(arguments, found)
    return newest.next, lines[max(0, len(lines) - count) :]


def _following(arguments: argparse.Namespace, asked: EventsRead, after: int) -> Iterator[list[Event]]:
    """Yield events as they happen, also after the kernel has ended and started again."""
    from msgspec.structs import replace

    while True:
        try:
            with connect(arguments) as client:
                while True:
                    page = client.call(replace(asked, after=after, wait_s=WAIT_S))
                    yield page.events
                    after = page.next
        except CallFailed as error:
            if error.failure.get("kind") not in PASSING:
                raise
        except ControlError:
            # Nothing is lost: the cursor outlives the kernel.
            pass
        time.sleep(RETRY_S)


def _as_json(event: Event) -> str:
    import msgspec

    return json.dumps(msgspec.to_builtins(event), ensure_ascii=False)


def in_words(event: Event) -> str:
    """Return a line for people, without characters that control a terminal."""
    at = datetime.datetime.fromisoformat(event.at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    details = event.details
    former = f" (was {details['former']})" if "former" in details else ""
    outcome = f" -> {details['outcome']}" if "outcome" in details else ""
    cause = next((f": {details[name]}" for name in ("cause", "why") if name in details), "")
    who = f" by {event.who}" if event.who else ""
    subject = f" {event.subject}" if event.subject else ""
    return escaped(f"{event.number} {at} {event.kind} {event.what}{subject}{former}{cause}{outcome}{who}")
