"""`linckia events`: what happened, for people at a terminal and for scripts."""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import time
from collections.abc import Iterator

from proto.control.client import CallFailed, ControlError
from proto.control.commands import AddCommand, Usage, add_json
from proto.control.terminal import connect, escaped, say
from proto.json_types import JsonObject

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
    if arguments.count is not None and arguments.count < 0:
        raise Usage(f"-n is {arguments.count}; it must be a number of events, 0 or more")
    filters: JsonObject = {"kinds": arguments.kind or [], "path": arguments.path or ""}
    show = _as_json if arguments.json else in_words
    after, found = _kept(arguments, filters)
    for each in found:
        say(show(each))
    if arguments.follow:
        say(flush=True)
        for each in _following(arguments, {**filters, "after": after}):
            say(show(each), flush=True)
    return 0


def _kept(arguments: argparse.Namespace, filters: JsonObject) -> tuple[int, list[JsonObject]]:
    """Return the cursor after the events that there are, and those to show."""
    chosen = arguments.after is not None or arguments.since is not None
    count = arguments.count if arguments.count is not None or chosen else DEFAULT_COUNT
    found: collections.deque[JsonObject] = collections.deque(maxlen=count)
    start: JsonObject = {"after": arguments.after if arguments.after is not None else 0}
    if arguments.since is not None:
        if arguments.after is not None:
            raise Usage("give either --after or --since")
        start = {"since": arguments.since}
    with connect(arguments) as client:
        while True:
            page: JsonObject = client.call("events_read", {**filters, **start, "limit": PAGE})
            found.extend(page["events"])
            if not page["more"]:
                return page["next"], list(found)
            start = {"after": page["next"]}


def _following(arguments: argparse.Namespace, params: JsonObject) -> Iterator[JsonObject]:
    """Yield events as they happen, also after the kernel has ended and started again."""
    while True:
        try:
            with connect(arguments) as client:
                while True:
                    page: JsonObject = client.call("events_read", {**params, "limit": PAGE, "wait_s": WAIT_S})
                    yield from page["events"]
                    params = {**params, "after": page["next"]}
        except CallFailed as error:
            if error.failure.get("kind") not in PASSING:
                raise
        except ControlError:
            # Nothing is lost: the cursor outlives the kernel.
            pass
        time.sleep(RETRY_S)


def _as_json(event: JsonObject) -> str:
    return json.dumps(event, ensure_ascii=False)


def in_words(event: JsonObject) -> str:
    """Return a line for people, without characters that control a terminal."""
    at = datetime.datetime.fromisoformat(event["at"]).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    details = event.get("details", {})
    former = f" (was {details['former']})" if "former" in details else ""
    outcome = f" -> {details['outcome']}" if "outcome" in details else ""
    cause = next((f": {details[name]}" for name in ("cause", "why") if name in details), "")
    who = f" by {event['who']}" if event.get("who") else ""
    subject = f" {event['subject']}" if event["subject"] else ""
    return escaped(f"{event['number']} {at} {event['kind']} {event['what']}{subject}{former}{cause}{outcome}{who}")
