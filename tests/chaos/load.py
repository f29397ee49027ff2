"""A mixed load on all services, with a ledger of everything that was acknowledged and must therefore exist.

Each worker has its own names, so it knows the right answers: the new value after an acknowledged write, the old or the
new one after a write that *may have executed*, and the old one after a refusal. `looking.py` has the looks after
uncertain answers, `comparison.py` the comparison of the ledger with the stored data.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from tests.chaos.clients import CallOutcome, Client, HttpClient
from tests.chaos.looking import Looks, Value
from tests.chaos.record import Record
from tests.system.support.workloads import turn

NOTES = 60
MOUNTED = "small"
"""The mounted server of the load."""

PAUSE_S = 0.02
"""Pause between two calls of a worker, which leaves time for the machine's other work."""


def make_folder(root: Path, workers: int) -> None:
    """Create the files that the load works on."""
    for n in range(NOTES):
        link = f"See [[note-{(n + 1) % NOTES}]]."
        (root / f"note-{n}.md").write_text(f"# Note {n}\n\nThis is note number {n}, about sea stars.\n\n{link}\n")
    for which in range(workers):
        (root / f"worker-{which}.yaml").write_text("# kept\nvalue: start\n")
        (root / f"tasked-{which}.yaml").write_text("# kept\nvalue: start\n")
        (root / f"tagged-{which}.md").write_text(f"# Tagged {which}\n\nTags come here.\n")
        (root / f"text-{which}.txt").write_text("start\nkept\n")
        (root / f"note-written-{which}.md").write_text("# Written\n\nstart\n")
        (root / "moved" / str(which)).mkdir(parents=True)
        (root / "moved" / str(which) / "at-0.txt").write_text(f"the file of {which}\n")
    (root / "probe.yaml").write_text("value: start\n")
    (root / "probe.md").write_text("# Probe\n\nA note of no worker.\n")


@dataclass
class Worker:
    """One task of a client, and the state that it expects."""

    which: int
    client: Client
    root: Path
    record: Record
    chance: random.Random
    yaml: Value = field(default_factory=lambda: Value("start"))
    text: Value = field(default_factory=lambda: Value("start"))
    note: Value = field(default_factory=lambda: Value("start"))
    plan: Value = field(default_factory=lambda: Value(""))
    """The latest edition of the worker's document; empty before the first."""
    tasked: Value = field(default_factory=lambda: Value("start"))
    task: str = ""
    """A task that has not ended, as far as is known."""
    tags: list[str] = field(default_factory=list)
    memories: list[str] = field(default_factory=list)
    maybe_memories: list[str] = field(default_factory=list)
    documents: dict[str, str] = field(default_factory=dict)
    """Document contents by hash."""
    maybe_documents: list[str] = field(default_factory=list)
    maybe_tags: list[str] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Kinds and names of writes that were refused."""
    sets: list[str] = field(default_factory=list)
    maybe_sets: list[str] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    lines: dict[str, CallOutcome] = field(default_factory=dict)
    """Lines that the mounted server was asked to append to a file, with its answers."""
    place: Value = field(default_factory=lambda: Value("0"))
    """The number of the place of the worker's file."""
    deleted: dict[str, Value] = field(default_factory=dict)
    """Files that should be deleted, each "there" or "gone"."""
    writes: dict[tuple[str, str], tuple[float, float | None]] = field(default_factory=dict)
    """Start and acknowledgement time of each write of documents, sets and turns, on the wall clock; None if not
    acknowledged."""
    number: int = 0
    looks: Looks = field(init=False)

    def __post_init__(self) -> None:
        self.looks = Looks(self.which, self.record)

    async def run(self, stop: trio.Event) -> None:
        steps = [
            (4, self.echo), (3, self.set_value), (3, self.get_value), (3, self.add_document), (2, self.get_document),
            (1, self.tag), (2, self.read_note), (2, self.search), (1, self.neighbours), (1, self.make_set),
            (1, self.move), (1, self.status), (1, self.edit_file), (1, self.write_note), (1, self.remember),
            (2, self.mounted_echo), (1, self.append_line), (2, self.new_edition), (1, self.delete_file),
            (1, self.have_a_task),
        ]  # fmt: skip
        if isinstance(self.client, HttpClient):
            steps += [(4, self.ingest), (1, self.embed)]
        weights = [weight for weight, _ in steps]
        while not stop.is_set():
            step: Callable[[], Awaitable[None]] = self.chance.choices([step for _, step in steps], weights)[0]
            self.number += 1
            await step()
            await trio.sleep(PAUSE_S)

    async def call(self, tool: str, *, reads: bool = False, repeatable: bool = True, **arguments: Any) -> CallOutcome:
        window, since = self.record.window, time.monotonic()
        said = await self.client.call(tool, arguments, repeatable=repeatable)
        return self.record.took(tool, said, reads=reads, repeatable=repeatable, window=window, since=since)

    async def post(self, path: str, body: bytes, *, reads: bool) -> CallOutcome:
        """Send a request that is not MCP."""
        assert isinstance(self.client, HttpClient)
        window, since = self.record.window, time.monotonic()
        said = await self.client.post(path, body)
        return self.record.took(path, said, reads=reads, repeatable=True, window=window, since=since)

    def wrote(self, kind: str, name: str, begun: float, said: CallOutcome) -> None:
        if said.not_done_for_sure:
            self.refused.append((kind, name))
        else:
            self.writes[kind, name] = (begun, time.time() if said.ok else None)

    def check(self, said: CallOutcome, right: bool, expected: object) -> None:
        if said.ok and not right:
            self.record.wrong.append(f"{self.record.at_s:.1f} s: {str(said.result)[:300]} is not {expected}")

    # ---- read operations ---------------------------------------------------------------------------------------------

    async def echo(self) -> None:
        message = f"{self.which}/{self.number}"
        said = await self.call("mcp.echo", reads=True, message=message)
        self.check(said, said.result == {"message": message}, message)

    async def mounted_echo(self) -> None:
        text = f"{self.which}/{self.number}"
        said = await self.call(f"{MOUNTED}_echo", reads=True, text=text)
        self.check(said, said.result == text, text)

    async def read_note(self) -> None:
        n = self.chance.randrange(NOTES)
        said = await self.call("notes_read", reads=True, id=f"note-{n}")
        self.check(said, f"note number {n}," in str(said.result), f"note {n}")

    async def search(self) -> None:
        n = self.chance.randrange(NOTES)
        said = await self.call("notes_search", reads=True, query=f"note number {n} sea stars", limit=3)
        hits = said.result.get("results", []) if said.ok else []
        # An index that is being rebuilt has few entries yet, and reports that.
        enough = bool(hits) or (said.ok and bool(said.result["metadata"]["degraded"]))
        self.check(said, enough and all("note-" in h["id"] or "tagged-" in h["id"] for h in hits), "three notes")

    async def neighbours(self) -> None:
        n = self.chance.randrange(NOTES)
        said = await self.call("graph_neighbors", reads=True, id=f"note-{n}", direction="out")
        self.check(said, f"note-{(n + 1) % NOTES}" in str(said.result), f"the neighbour of note {n}")

    async def embed(self) -> None:
        body = json.dumps({"input": [f"text {self.number % 7}"]}).encode()
        said = await self.post("/v1/embeddings", body, reads=True)
        self.check(said, said.ok and len(said.result["data"][0]["embedding"]) == 384, "a vector")

    async def status(self) -> None:
        said = await self.call("kernel_status", reads=True)
        self.check(said, said.ok and len(said.result["services"]) > 10, "the services")

    # ---- write operations --------------------------------------------------------------------------------------------

    async def set_value(self) -> None:
        value = f"v{self.number}"
        file = str(self.root / f"worker-{self.which}.yaml")
        await self.looks.written(
            self.yaml, value, await self.call("yaml_set", file=file, path="value", value=value), self.yaml_value
        )

    async def yaml_value(self) -> str | None:
        file = str(self.root / f"worker-{self.which}.yaml")
        said = await self.call("yaml_get", reads=True, file=file, path="value")
        return said.result["text"] if said.ok else None

    async def get_value(self) -> None:
        if (found := await self.yaml_value()) is not None:
            self.looks.compare("the value", self.yaml, found, self.record.wrong)

    async def file_text(self, name: str) -> str | None:
        said = await self.call("files_read", reads=True, path=str(self.root / name))
        return said.result["text"] if said.ok else None

    async def new_edition(self) -> None:
        text = f"edition {self.number} of the plan of {self.which}"
        said = await self.call(
            "execute", repeatable=False,
            operations=[{"op": "add", "params": {"name": f"plan-{self.which}", "content": text}}],
        )  # fmt: skip
        await self.looks.written(self.plan, text, said, self.edition)

    async def edition(self) -> str | None:
        """Return the document that has the worker's name now."""
        step = {"op": "get", "params": {"name": f"plan-{self.which}", "include_content": True}}
        said = await self.call("query", reads=True, steps=[step])
        if said.ok:
            found = re.search(rf"edition \d+ of the plan of {self.which}\b", json.dumps(said.result))
            return "" if found is None else found[0]
        return "" if "no document" in said.text.lower() or "not found" in said.text.lower() else None

    async def delete_file(self) -> None:
        name = f"deleted-{self.which}-{self.number}.txt"
        path = trio.Path(self.root / name)
        try:
            await path.write_text("soon gone\n")
        except OSError:
            # The disk is full, or read-only.
            return
        said = await self.call("files_delete", repeatable=False, paths=[str(path)])
        # The answer reports items that were not done; the call itself has not failed.
        if not said.ok or said.result["failed"] == 0:
            value = self.deleted[name] = Value("there")
            await self.looks.written(value, "gone", said, lambda: self.existence(name))

    async def existence(self, name: str) -> str | None:
        """Return whether a file is there, once the service that deletes files has answered."""
        if await self.file_text("probe.md") is None:
            return None
        return "there" if (self.root / name).exists() else "gone"

    async def have_a_task(self) -> None:
        if not self.task:
            value = f"v{self.number}"
            arguments = {"file": str(self.root / f"tasked-{self.which}.yaml"), "path": "value", "value": value}
            said = await self.call("tasks_start", repeatable=False, operation="yaml_set", arguments=arguments)
            if said.ok:
                self.task, self.tasked.next = said.result["id"], value
                self.tasked.uncertain(value)
            elif not said.not_done_for_sure:
                # It may go on, and nobody knows its id.
                self.tasked.any = True
            return
        said = await self.call("tasks_wait", reads=True, id=self.task, timeout_s=20)
        if said.ok and said.result["state"] != "working":
            if said.result["state"] == "completed":
                self.tasked.acknowledged(self.tasked.next)
            else:
                # On a full disk, tasks fail as calls do.
                self.check(said, said.result["failure"]["executed"] == "no", "a task that did nothing")
                self.tasked.refused(self.tasked.next)
            self.task = ""

    async def add_document(self) -> None:
        text = f"document {self.number} of worker {self.which}: " + "sea stars " * self.chance.randrange(1, 50)
        name, begun = f"w{self.which}-{self.number}", time.time()
        said = await self.call(
            "execute", repeatable=False, operations=[{"op": "add", "params": {"name": name, "content": text}}]
        )
        sha = hashlib.sha256(text.encode()).hexdigest()
        self.check(said, sha in str(said.result), sha)
        self.wrote("document", sha, begun, said)
        if said.ok:
            self.documents[sha] = text
        elif not said.not_done_for_sure:
            self.maybe_documents.append(sha)
            await self.looks.presence("document", sha, lambda: self.document_presence(sha))

    async def document_presence(self, sha: str) -> str | None:
        said = await document(self.client, sha)
        return "there" if said.ok else "absent" if "no document" in said.text.lower() else None

    async def get_document(self) -> None:
        if not self.documents:
            return
        sha, text = self.chance.choice(list(self.documents.items()))
        steps = [{"op": "get", "params": {"hash": sha, "include_content": True}}]
        said = await self.call("query", reads=True, steps=steps)
        if said.ok:
            self.check(said, text in json.dumps(said.result, ensure_ascii=False), f"document {sha}")

    async def tag(self) -> None:
        tag, begun = f"tag-{self.which}-{self.number}", time.time()
        said = await self.call("notes_tag", file_path=str(self.root / f"tagged-{self.which}.md"), tags=[tag])
        self.wrote("tag", tag, begun, said)
        if said.ok:
            self.tags.append(tag)
        elif not said.not_done_for_sure:
            self.maybe_tags.append(tag)
            await self.looks.presence("tag", tag, lambda: self.tag_presence(tag))

    async def tag_presence(self, tag: str) -> str | None:
        text = await self.file_text(f"tagged-{self.which}.md")
        return None if text is None else "there" if tag in tags_of(text) else "absent"

    async def edit_file(self) -> None:
        value = f"v{self.number}"
        edits = [{"lines": "1", "new": value}]
        path = str(self.root / f"text-{self.which}.txt")
        said = await self.call("files_edit", repeatable=False, path=path, edits=edits)
        await self.looks.written(self.text, value, said, self.first_line)

    async def first_line(self) -> str | None:
        text = await self.file_text(f"text-{self.which}.txt")
        return None if text is None else text.partition("\n")[0]

    async def write_note(self) -> None:
        value = f"v{self.number}"
        path = f"note-written-{self.which}.md"
        content = f"# Written\n\n{value}\n"
        said = await self.call("notes_write", path=path, content=content, overwrite=True)
        await self.looks.written(self.note, value, said, self.note_value)

    async def note_value(self) -> str | None:
        text = await self.file_text(f"note-written-{self.which}.md")
        return None if text is None else text.rstrip("\n").rpartition("\n")[2]

    async def remember(self) -> None:
        # Statements about different subjects do not contradict each other.
        text, begun = f"subject{self.which}x{self.number} lives at place{self.chance.getrandbits(40):x}", time.time()
        said = await self.call("remember", text=text, scope=f"project:{self.which}")
        self.check(said, said.ok and "conflicts_with" not in said.result, text)
        self.wrote("memory", text, begun, said)
        if said.ok:
            self.memories.append(text)
        elif not said.not_done_for_sure:
            self.maybe_memories.append(text)

    async def append_line(self) -> None:
        text = f"line {self.number} of {self.which}"
        path = str(self.appended)
        self.lines[text] = await self.call(f"{MOUNTED}_append", repeatable=False, path=path, text=text)

    @property
    def appended(self) -> Path:
        return self.root / f"appended-{self.which}.txt"

    async def make_set(self) -> None:
        name, begun = f"set-{self.which}-{self.number}", time.time()
        said = await self.call("sets_create", repeatable=False, name=name)
        self.wrote("set", name, begun, said)
        if said.ok:
            self.sets.append(name)
        elif not said.not_done_for_sure:
            self.maybe_sets.append(name)

    async def move(self) -> None:
        # Without a look after an uncertain move, it is not known where the file is.
        at = self.at() if len(self.place.possible) > 1 else next(iter(self.place.possible))
        if at is None or not self._moved(int(at)).exists():
            self.misplaced()
            return
        said = await self.call(
            "files_move", repeatable=False,
            moves=[{"from": str(self._moved(int(at))), "to": str(self._moved(self.number))}],
        )  # fmt: skip
        # The answer reports items that were not done; the call itself has not failed.
        if not said.ok or said.result["failed"] == 0:
            await self.looks.written(self.place, str(self.number), said, self.place_seen)

    async def place_seen(self) -> str | None:
        """Return where the file is, once the service that moves files has answered."""
        return None if await self.file_text("probe.md") is None else self.at()

    def at(self) -> str | None:
        folder = self.root / "moved" / str(self.which)
        found = [path.stem.removeprefix("at-") for path in folder.iterdir()]
        return found[0] if len(found) == 1 else None

    def misplaced(self) -> None:
        there = sorted(path.name for path in (self.root / "moved" / str(self.which)).iterdir())
        late = any(name.removeprefix("at-").removesuffix(".txt") in self.place.excluded for name in there)
        told = f"{self.record.at_s:.1f} s: the file of {self.which} is at {there}, not {sorted(self.place.possible)}"
        (self.record.late if late else self.record.lost).append(told)

    def _moved(self, n: int) -> Path:
        return self.root / "moved" / str(self.which) / f"at-{n}.txt"

    async def ingest(self) -> None:
        answer, begun = f"answer {self.which} {self.number}", time.time()
        asked = [{"role": "user", "content": f"asked: {answer}"}]
        said = await self.post("/v1/ingest", turn(asked, answer), reads=False)
        self.wrote("turn", answer, begun, said)
        if said.ok:
            self.turns.append(answer)


def tags_of(text: str) -> set[str]:
    """Return the tags in a note that workers added."""
    return set(re.findall(r"tag-\d+-\d+", text))


async def document(client: Client, sha: str) -> CallOutcome:
    """Ask for a document and its content."""
    return await client.call("query", {"steps": [{"op": "get", "params": {"hash": sha, "include_content": True}}]})
