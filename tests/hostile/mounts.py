"""A storm of hostile mounted servers, and of a client that attacks the tasks of another one.

`tests.hostile.storm` runs it. The victim has a token of its own, calls tools of Linckia and of an honest server, and
has tasks; all its answers must be its own and in time. The attackers share another token and know the ids and the keys
of the victim's tasks.
"""

from __future__ import annotations

import json
import random
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tests.hostile.mcp_server import WAYS
from tests.system.access.tokens import Answer, HttpClient, create
from tests.system.running import RunningKernel

SERVER = Path(__file__).with_name("mcp_server.py")

SERVICES = ("front", "echo", "yaml", "tasks", "mounts")

ATTACKERS = 3

MAX_UNFINISHED, MAX_TIMERS = 20, 20

LONGEST_S = 5.0
"""How long an answer to the victim may take at most; that of a task of its own also takes as long as the task."""

TASK_S = 1.0


def settings(mark: str) -> dict[str, Any]:
    """The settings of the kernel."""
    mounts = {
        how.replace("_", "-"): {
            "command": sys.executable, "args": [str(SERVER), how, mark], "timeout": 2.0, "memory_limit": "256MiB",
        }
        for how in WAYS
    }  # fmt: skip
    return {"mcp": mounts, "tasks": {"max_unfinished": MAX_UNFINISHED, "max_timers": MAX_TIMERS}}


class MountStorm:
    """One storm; `wrong` has what must not happen."""

    def __init__(self, kernel: RunningKernel, seed: int) -> None:
        self._kernel = kernel
        self._seed = seed
        self._secret = f"secret-{secrets.token_hex(8)}"
        self._keys: list[str] = []
        self._ids: list[str] = []
        self._ended = threading.Event()
        self.wrong: list[str] = []
        self.answered: Counter[str] = Counter()
        """Number of answers by recipient and purpose."""
        self.longest_s = 0.0

    def run(self, seconds: float) -> None:
        """Attack for some time."""
        victim = HttpClient(self._kernel, create(self._kernel, "victim"))
        attacker = create(self._kernel, "attacker")
        self._wait_for_tools(victim)
        tasks = [threading.Thread(target=self._guarded, args=(self._suffer, victim, 0))]
        for number in range(ATTACKERS):
            client = HttpClient(self._kernel, attacker)
            tasks.append(threading.Thread(target=self._guarded, args=(self._attack, client, number)))
        for each in tasks:
            each.start()
        self._ended.wait(seconds)
        self._ended.set()
        for each in tasks:
            each.join(60)
            if each.is_alive():
                self.wrong.append("a client waits for more than a minute")
        self._check_counts(HttpClient(self._kernel, attacker))

    def _wait_for_tools(self, client: HttpClient) -> None:
        give_up = time.monotonic() + 60
        while text_of(client.tool("honest_echo", {"text": "x"})) != "x":
            assert time.monotonic() < give_up, "the honest server does not start"
            time.sleep(0.2)

    def _guarded(self, work: Callable[[HttpClient, random.Random], None], client: HttpClient, number: int) -> None:
        chance = random.Random(f"{self._seed} {number}")
        while not self._ended.is_set():
            try:
                work(client, chance)
            except (OSError, HTTPException) as error:
                if work == self._suffer:
                    self.wrong.append(f"the victim's connection failed: {error!r}")
            except Exception as error:  # noqa: BLE001  # a thread must not end in silence
                self.wrong.append(f"{work.__name__}: {error!r}")

    # The victim

    def _timed(self, what: str, call: Callable[[], Answer], beside_s: float = 0.0) -> Answer:
        began = time.monotonic()
        answer = call()
        took = time.monotonic() - began - beside_s
        self.longest_s = max(self.longest_s, took)
        if took > LONGEST_S:
            self.wrong.append(f"{what} took {took:.1f} s")
        self.answered[f"victim: {what}"] += 1
        return answer

    def _suffer(self, client: HttpClient, chance: random.Random) -> None:
        text = f"{self._secret} {chance.random()}"
        for tool, name in (("mcp_echo", "message"), ("honest_echo", "text")):
            found = text_of(self._timed(tool, partial(client.tool, tool, {name: text})))
            if found != text:
                self.wrong.append(f"{tool} returned {found[:200]!r}")
        operation, arguments = chance.choice(
            [("honest_wait", {"text": text, "seconds": TASK_S}), ("mcp_echo", {"message": text})]
        )
        start = {"operation": operation, "arguments": arguments}
        self._keys.append(f"key-{chance.random()}")
        meta = {"io.linckia/idempotency-key": self._keys[-1]}
        started = self._timed("tasks_start", lambda: client.rpc("tools/call", with_meta("tasks_start", start, meta)))
        task = started.json["result"]["structuredContent"]
        self._ids.append(task["id"])
        waited = self._timed(
            "tasks_wait", lambda: client.tool("tasks_wait", {"id": task["id"], "timeout_s": 30}), TASK_S
        )
        if text not in waited.text or '"state":"completed"' not in waited.text.replace(" ", ""):
            self.wrong.append(f"the task of {operation} ended otherwise: {waited.text[:400]}")

    # The attackers

    def _attack(self, client: HttpClient, chance: random.Random) -> None:
        attack = chance.choice((self._act, self._act, self._tasks, self._forge, self._reuse_keys, self._native))
        for answer in attack(client, chance):
            if self._secret in answer.text:
                self.wrong.append(f"{attack.__name__} got the victim's: {answer.text[:400]}")
            if answer.status == 500:
                self.wrong.append(f"{attack.__name__} met a defect: {answer.text[:400]}")
            self.answered[f"attacker: {attack.__name__}, {answer.status}"] += 1

    def _act(self, client: HttpClient, chance: random.Random) -> Sequence[Answer]:
        how = chance.choice([way.replace("_", "-") for way in WAYS if way != "honest"])
        tool = f"{how.replace('-', '_')}_act" if chance.random() < 0.9 else chance.choice(("names_echo", "names_odd"))
        listed = [client.rpc("tools/list", {})] if chance.random() < 0.2 else []
        return [client.tool(tool, {"text": "x"}), *listed]

    def _tasks(self, client: HttpClient, chance: random.Random) -> Sequence[Answer]:
        operation = chance.choice(
            ("hang_act", "half_act", "daemons_act", "shapes_act", "mcp_echo", "tasks_start", "no")
        )
        start = {"operation": operation, "arguments": {"message": "x" * chance.choice((1, 100_000))}}
        return [
            *(client.tool("tasks_start", start) for _ in range(MAX_UNFINISHED // 2)),
            client.tool("schedule", {**start, "at": "1s"}),
            client.tool("schedule", {**start, "cron": "* * * * *"}),
        ]

    def _forge(self, client: HttpClient, chance: random.Random) -> Sequence[Answer]:
        forged = ("", "x" * 64, "x" * 10_000, "../1", "%", "' OR 1=1 --", "\x00", *self._keys[-1:])
        id_ = chance.choice((*forged, *self._ids[-20:]))
        tools = ("tasks_get", "tasks_cancel", "timers_cancel")
        return [
            *(client.tool(tool, {"id": id_}) for tool in tools),
            client.tool("tasks_wait", {"id": id_, "timeout_s": 0.1}),
            client.tool("tasks_list", {"limit": 500}),
            client.tool("timers_list"),
        ]

    def _reuse_keys(self, client: HttpClient, chance: random.Random) -> Sequence[Answer]:
        key = chance.choice((*self._keys[-5:], "mine"))
        start = {"operation": "mcp_echo", "arguments": {"message": f"x{chance.randrange(3)}"}}
        meta = {"io.linckia/idempotency-key": key}
        return [client.rpc("tools/call", with_meta("tasks_start", start, meta)) for _ in range(3)]

    def _native(self, client: HttpClient, chance: random.Random) -> Sequence[Answer]:
        id_ = chance.choice((*self._ids[-20:], "x"))
        return [
            client.rpc(method, {"taskId": id_})
            for method in ("tasks/get", "tasks/result", "tasks/cancel", "tasks/update", "tasks/list")
        ]

    def _check_counts(self, client: HttpClient) -> None:
        for tool, arguments, most, counted in (
            ("tasks_list", {"state": "working", "limit": 500}, MAX_UNFINISHED, "tasks"),
            ("timers_list", {}, MAX_TIMERS, "timers"),
        ):
            answer = client.tool(tool, arguments)
            listed = answer.json["result"].get("structuredContent")
            if listed is None or len(listed[counted]) > most:
                self.wrong.append(f"{tool} of the attacker: {answer.text[:1000]}")


def with_meta(tool: str, arguments: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    from tests.unit.front.wire import META

    return {"name": tool, "arguments": arguments, "_meta": {**META, **meta}}


def text_of(answer: Answer) -> str:
    """The first text of a result, or the whole answer if it is an error."""
    try:
        text: str = answer.json["result"]["content"][0]["text"]
        return text
    except (ValueError, LookupError, TypeError):
        return answer.text


def left_behind(mark: str) -> list[str]:
    """The processes that have the mark in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in command:
            found.append(command)
    return found


def dumped(answered: Counter[str]) -> str:
    return json.dumps(dict(sorted(answered.items())), indent=1)
