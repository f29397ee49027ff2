"""`linckia events`: what happened, for people at a terminal and for scripts."""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from proto.control.client import CallFailed, ControlError
from proto.control.commands import AddCommand, Group, Usage, add_json
from proto.control.terminal import connect, escaped, say

if TYPE_CHECKING:
    from proto.ops.events import Event, EventsRead

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
"""

GROUP = Group.USE


def add(command: AddCommand) -> None:
    """Declare `events`."""
    events = command("events", run_events, "show what happened: changed files and data, deaths, tasks", EVENTS_EPILOG)
    events.add_argument("--after", metavar="N", type=int, help="only events after this number; 0: all that are kept")
    events.add_argument("--since", metavar="WHEN", help="only from then on: '2 hours ago', a date, or RFC 3339")
    events.add_argument("--kind", metavar="KIND", action="append", help="only this kind, such as file; may be repeated")
    events.add_argument("--path", metavar="PATH", help="only files at or below it")
    events.add_argument("-n", dest="count", metavar="N", type=int, help="the last N (default: 50; with a start, all)")
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
    show = _as_json if arguments.json else in_words
    after, found = _kept(arguments, asked)
    for each in found:
        say(show(each))
    if arguments.follow:
        say(flush=True)
        for each in _following(arguments, asked, after):
            say(show(each), flush=True)
    return 0


def _kept(arguments: argparse.Namespace, asked: EventsRead) -> tuple[int, list[Event]]:
    """Return the cursor after the events that there are, and those to show."""
    from msgspec.structs import replace

    chosen = arguments.after is not None or arguments.since is not None
    count = arguments.count if arguments.count is not None or chosen else DEFAULT_COUNT
    found: collections.deque[Event] = collections.deque(maxlen=count)
    after = arguments.after or (0 if arguments.since is None else None)
    asked = replace(asked, after=after, since=arguments.since)
    with connect(arguments) as client:
        while True:
            page = client.call(asked)
            found.extend(page.events)
            if not page.more:
                return page.next, list(found)
            asked = replace(asked, after=page.next, since=None)


def _following(arguments: argparse.Namespace, asked: EventsRead, after: int) -> Iterator[Event]:
    """Yield events as they happen, also after the kernel has ended and started again."""
    from msgspec.structs import replace

    while True:
        try:
            with connect(arguments) as client:
                while True:
                    page = client.call(replace(asked, after=after, wait_s=WAIT_S))
                    yield from page.events
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
