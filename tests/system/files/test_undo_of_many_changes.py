"""Thousands of changes by three clients, while services and the kernel are killed, are undone exactly.

Every comparison is of every byte, mode and link target, and of empty folders.
"""

from __future__ import annotations

import collections
import datetime
import json
import os
import random
import signal
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from tests.chaos.clients import CallOutcome, Client, HttpClient, StdioClient
from tests.chaos.duplicates import FINAL
from tests.chaos.system import System
from tests.system.files.undo_changes import Area, Call
from tests.system.files.undo_tree import Snapshot, below, differences, plant, snapshot
from tests.system.running import free_port

SERVICES = ("front", "files", "knowledge", "yaml", "watch", "retrieve")
VICTIMS = ("files", "files", "knowledge", "yaml", "watch")
AREAS = ("a0", "a1", "a2")
SHARED = "shared"
STEPS = {
    "files_copy": "ops_execute", "folders_create": "ops_execute", "yaml_merge": "ops_execute",
    "changes_undo": "ops_execute", "changes_list": "ops_query",
}  # fmt: skip
"""Operations that clients call as a step, and the tool for that."""
ANSWERED_S = 120.0
KERNEL_EVERY = 12
"""One in so many kills is of the kernel."""


class Checkpoint(NamedTuple):
    """The tree before a change, and a time between the change before and this one."""

    at: str
    tree: Snapshot


class Driver:
    """Clients that change the tree below `root`, and undo that."""

    def __init__(self, system: System, clients: Sequence[Client], chance: random.Random) -> None:
        self.system = system
        self.root = system.root
        self.chance = chance
        self.clients = clients
        self.areas = {name: Area(self.root, name, chance) for name in (*AREAS, SHARED)}
        self.done: collections.Counter[str] = collections.Counter()
        self.refused: collections.Counter[str] = collections.Counter()
        self.undone = self.skipped = self.kills = self.kernel_kills = self.checks = 0
        self.restored: set[int] = set()
        """Ids of items that were restored from the trash."""
        self.trashed: dict[str, set[int]] = collections.defaultdict(set)
        """Ids of the items that each change put there."""
        self.unnamed: list[str] = []
        """Calls that changed something, and whose answers did not have its id."""
        self.reasons: collections.Counter[str] = collections.Counter()

    async def ask(self, client: Client, tool: str, arguments: dict[str, Any]) -> CallOutcome:
        """Make one call, repeated with its key until it is answered."""
        key = uuid.uuid4().hex
        said = CallOutcome("hung")
        unsure = 0
        sent = {"operations": [{"op": tool, "params": arguments}]}
        if STEPS.get(tool) == "ops_query":
            sent = {"steps": [{"op": tool, "params": arguments}]}
        with trio.move_on_after(ANSWERED_S):
            while True:
                said = await client.call(STEPS.get(tool, tool), sent if tool in STEPS else arguments, key=key)
                if tool in STEPS:
                    said = _of_step(said)
                unsure += said.kind == "maybe_executed"
                # A front that died says so of every call; with its key, the call is repeated, as a client would.
                is_final = said.kind in FINAL and said.kind != "maybe_executed"
                if said.ok or is_final or said.kind.startswith("-") or unsure > 5:
                    return said
                await trio.sleep(0.05)
        raise AssertionError(f"{tool} {arguments}: not answered in {ANSWERED_S} s; last: {said}")

    async def change(self, client: Client, area: Area) -> tuple[Call, CallOutcome]:
        tool, arguments = area.draw()
        said = await self.ask(client, tool, arguments)
        if said.ok:
            self.done[tool] += 1
            self.trashed[said.result.get("change", "")].update(area.learn(said.result))
        else:
            self.refused[f"{tool}: {said.kind}: {said.text[:120]}"] += 1
        return (tool, arguments), said

    def tree(self) -> Snapshot:
        return snapshot(self.root)

    async def now(self) -> str:
        """Return a time after all changes so far and before all later ones."""
        await trio.sleep(0.002)
        text = datetime.datetime.fromtimestamp(time.time_ns() / 1e9, datetime.UTC).isoformat()
        await trio.sleep(0.002)
        return text

    async def undo(self, **which: Any) -> list[str]:
        """Undo what matches; return the ids of the undos, the first first."""
        made = []
        while True:
            said = await self.ask(self.chance.choice(self.clients), "changes_undo", which)
            assert said.ok, (which, said.kind, said.text)
            answer = said.result
            self.undone += answer["undone"]
            self.skipped += answer.get("skipped", 0)
            for each in answer.get("results", ()):
                if each["status"] == "skipped":
                    self.reasons[f"{each['kind']}: {each.get('reason', '')}"[:160].replace(str(self.root), "")] += 1
            self.last = answer
            if answer.get("change"):
                made.append(answer["change"])
            if not answer.get("degraded"):
                return made

    async def redo(self, undos: Sequence[str]) -> None:
        for id_ in reversed(undos):
            await self.undo(id=id_)

    def check(self, expected: Snapshot, what: str) -> None:
        """The tree is exactly as expected."""
        self.checks += 1
        found = differences(self.tree(), expected)
        skips = [each for each in self.last.get("results", ()) if each["status"] == "skipped"]
        assert not found, f"{what}: {len(found)} entries differ:\n" + "\n".join(found[:20]) + f"\nskipped: {skips[:10]}"

    # Kills

    async def kill(self, stop: trio.Event, every_s: float) -> None:
        """Kill services and the kernel at random; each is ready again before the next is killed."""
        while not stop.is_set():
            await trio.sleep(self.chance.uniform(0.3, 1.7) * every_s)
            self.kills += 1
            if self.kills % KERNEL_EVERY == 0:
                kernel = self.system.process
                if kernel is not None and kernel.poll() is None:
                    self.system.look()
                    kernel.kill()
                    self.kernel_kills += 1
                    await trio.to_thread.run_sync(kernel.wait)
            else:
                found = await self.system.service(self.chance.choice(VICTIMS))
                if found is not None and found.get("pid"):
                    try:
                        os.kill(found["pid"], signal.SIGKILL)
                    except ProcessLookupError:
                        self.kills -= 1
            assert await self.system.wait_ready(within_s=60) is not None


def _of_step(said: CallOutcome) -> CallOutcome:
    """Return the outcome of the only step of a call."""
    if said.ok:
        return CallOutcome("ok", said.result["results"][0]) if "totalOps" in said.result else said
    if said.kind != "error" or not said.text.startswith("{"):
        return said
    step = json.loads(said.text)["results"][0]
    failure = step.get("failure", {})
    return CallOutcome(failure.get("kind", "operation"), None, failure.get("executed", "maybe"), json.dumps(step))


@asynccontextmanager
async def driven(folder: Path, seed: int) -> AsyncIterator[Driver]:
    """Start a kernel that is started again whenever it is gone, and three clients."""
    chance = random.Random(seed)
    root = folder / "root"
    for area in (*AREAS, SHARED):
        plant(root, area, chance)
    subset = ("-m", "tests.system.subset", ",".join(SERVICES))
    system = System(folder / "data", root, free_port(), linckia=subset)
    system.start()
    stop = trio.Event()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(system.keep, stop)
            assert await system.wait_ready(within_s=60) is not None
            url = f"http://127.0.0.1:{system.port}/mcp"
            stdio = await StdioClient.start(
                nursery, "stdio", system.data, [root], system.environment, "--surface", "all", linckia=subset
            )
            http = [HttpClient(f"http{number}", url, None) for number in range(2)]
            yield Driver(system, [*http, stdio], chance)
            for client in http:
                await client.leave()
            await stdio.leave()
            stop.set()
    finally:
        await system.end()


@asynccontextmanager
async def under_kills(driver: Driver, every_s: float) -> AsyncIterator[None]:
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.kill, stop, every_s)
        yield
        stop.set()


async def one_at_a_time(driver: Driver, count: int) -> None:
    """The tree is known before each change: undoing all since then gives exactly that."""
    checkpoints: list[Checkpoint] = []
    ids: list[str] = []
    for _ in range(count):
        number = driver.chance.randrange(len(AREAS))
        area = driver.areas[AREAS[number] if driver.chance.random() < 0.8 else SHARED]
        checkpoints.append(Checkpoint(await driver.now(), driver.tree()))
        call, said = await driver.change(driver.clients[number], area)
        for item in call[1].get("items", ()):
            driver.restored.add(item["trashId"])
        id_ = said.result.get("change", "") if said.ok else ""
        if said.ok and not id_ and driver.tree() != checkpoints[-1].tree:
            driver.unnamed.append(f"{call}: {said.result}")
        ids.append(id_)
    checkpoints.append(Checkpoint(await driver.now(), driver.tree()))
    await _single_changes(driver, checkpoints, ids, most=10)
    # Steps back, of different lengths, and forward again in the same steps.
    steps = sorted(driver.chance.sample(range(count), 6), reverse=True)
    if steps[-1]:
        steps.append(0)
    undos = []
    for step in steps:
        undos.append((await driver.undo(since=checkpoints[step].at), checkpoints[step].tree))
        driver.check(checkpoints[step].tree, f"undo of all since change {step} of {count}")
    for (made, _), (_, before) in zip(
        reversed(undos), [*list(reversed(undos))[1:], ([], checkpoints[-1].tree)], strict=True
    ):
        await driver.redo(made)
        driver.check(before, "undo of an undo")
    # By path, each area in turn.
    start, end = checkpoints[0].tree, checkpoints[-1].tree
    await _areas_by_path(driver, checkpoints[0].at, start, end)


async def _areas_by_path(driver: Driver, since: str, start: Snapshot, end: Snapshot) -> None:
    expected = dict(end)
    undos = []
    names = [*AREAS, SHARED]
    driver.chance.shuffle(names)
    for area in names:
        undos.append(await driver.undo(path=str(driver.root / area), since=since))
        expected = {**below(expected, *(set(names) - {area})), **below(start, area)}
        driver.check(expected, f"undo of the changes below {area}")
    for undo in reversed(undos):
        await driver.redo(undo)
    driver.check(end, "undo of the undos by path")


async def _single_changes(driver: Driver, checkpoints: list[Checkpoint], ids: list[str], most: int) -> None:
    """Undoing one change whose paths nothing has touched since reverts these, and nothing else."""
    last = checkpoints[-1].tree
    candidates = []
    for number, id_ in enumerate(ids):
        before, after = checkpoints[number].tree, checkpoints[number + 1].tree
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        if (
            id_
            and not driver.trashed[id_] & driver.restored
            and changed
            and _untouched(changed, checkpoints[number + 1 :])
        ):
            candidates.append((id_, changed, before))
    driver.chance.shuffle(candidates)
    for id_, changed, before in candidates[:most]:
        undo = await driver.undo(id=id_)
        expected = {name: entry for name, entry in last.items() if name not in changed}
        expected |= {name: before[name] for name in changed if name in before}
        driver.check(expected, f"undo of change {id_}")
        await driver.redo(undo)
        driver.check(last, f"undo of the undo of change {id_}")


def _untouched(changed: set[str], later: list[Checkpoint]) -> bool:
    """Whether no later change has touched these paths, the folders above them, or what is below them."""
    first = later[0].tree

    def touched(name: str, tree: Snapshot) -> bool:
        return tree.get(name) != first.get(name) or any(
            each.startswith(f"{name}/") and each not in first for each in tree
        )

    above = {os.path.dirname(name) for name in changed} - changed
    return not any(
        any(touched(name, each.tree) for name in changed)
        or any(each.tree.get(name) != first.get(name) for name in above)
        for each in later[1:]
    )


async def at_once(driver: Driver, count: int, *, shared: float) -> Checkpoint:
    """Three clients make changes at the same time, each in its own area, or `shared` of them in a common one."""
    checkpoint = Checkpoint(await driver.now(), driver.tree())

    async def work(number: int) -> None:
        for _ in range(count // len(AREAS)):
            own = driver.chance.random() >= shared
            await driver.change(driver.clients[number], driver.areas[AREAS[number] if own else SHARED])

    async with trio.open_nursery() as nursery:
        for number in range(len(AREAS)):
            nursery.start_soon(work, number)
    return checkpoint


async def sessions_apart(driver: Driver, count: int) -> None:
    """Undoing one client's session brings back its own area, and leaves the others'."""
    begin = await at_once(driver, count, shared=0)
    end = driver.tree()
    expected = dict(end)
    order = list(range(len(AREAS)))
    driver.chance.shuffle(order)
    undos = []
    for number in order:
        for session in await sessions_of(driver, AREAS[number], begin.at):
            undos.append(await driver.undo(session=session, since=begin.at))
        expected = {**below(expected, *(set(driver.areas) - {AREAS[number]})), **below(begin.tree, AREAS[number])}
        driver.check(expected, f"undo of the session of client {number}")
    for undo in reversed(undos):
        await driver.redo(undo)
    driver.check(end, "undo of the undos of sessions")
    # A random order of redoing makes no difference, since the areas are disjoint.
    undo = await driver.undo(since=begin.at)
    driver.check(begin.tree, "undo of all sessions at once")
    await driver.redo(undo)
    driver.check(end, "undo of the undo of all sessions")


async def sessions_of(driver: Driver, area: str, since: str) -> list[str]:
    """Return the sessions that changed an area, the latest first: a client may have got another by a kill."""
    sessions: dict[str, None] = {}
    offset = 0
    while True:
        arguments = {"path": str(driver.root / area), "since": since, "limit": 10, "offset": offset}
        said = await driver.ask(driver.clients[0], "changes_list", arguments)
        assert said.ok, said.text
        changes = said.result["changes"]
        sessions.update(dict.fromkeys(each["session"] for each in changes if not each.get("undoes")))
        offset += len(changes)
        if not changes:
            return list(sessions)


async def together(driver: Driver, count: int) -> None:
    """Changes of several clients to the same files are undone in the order in which they were made."""
    begin = await at_once(driver, count, shared=0.5)
    end = driver.tree()
    undo = await driver.undo(since=begin.at)
    driver.check(begin.tree, "undo of all that three clients did to the same files")
    await driver.redo(undo)
    driver.check(end, "undo of that undo")
    await _areas_by_path(driver, begin.at, begin.tree, end)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_byte_mode_and_link_is_as_it_was_after_undoing_changes_made_under_kills(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    count = 2000 if pytestconfig.option.all else int(os.environ.get("UNDO_CHANGES", "240"))
    seed = pytestconfig.option.seed

    async def run() -> None:
        async with driven(tmp_path, seed) as driver:
            began = time.monotonic()
            try:
                async with under_kills(driver, float(os.environ.get("UNDO_EVERY", "1"))):
                    await one_at_a_time(driver, count // 3)
                    await sessions_apart(driver, count // 3)
                    await together(driver, count // 3)
            finally:
                print(f"seed {seed}: {sum(driver.done.values())} changes: {dict(driver.done.most_common())}")
                print(f"{sum(driver.refused.values())} refused: {driver.refused.most_common(12)}")
                print(f"{driver.kills} kills, {driver.kernel_kills} of the kernel; {time.monotonic() - began:.0f} s")
                print(f"{driver.undone} entries undone, {driver.skipped} skipped, {driver.checks} comparisons")
                print(f"skipped: {driver.reasons.most_common(12)}")
            assert sum(driver.refused.values()) < sum(driver.done.values()) / 4
            assert driver.kills
            assert not driver.unnamed

    trio.run(run)
