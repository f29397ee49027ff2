"""Prompts: the built-in ones, and the user's own, which are Markdown files.

A file `PROMPT-some-task.md` in a folder of prompts is the prompt `some_task`.  Its first heading is the description,
and its whole text is the only message.  Files are read again for every request, so prompts are always up to date.
Clients are notified within `POLL_S` when the list changes.

A root may hold other people's files.  So a prompt in a root never replaces a built-in one, and its path must not lead
out of the root.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import trio

from proto.grants import Grant
from proto.json_types import JsonObject
from proto.mcp import Message, PromptResult, Text
from proto.operation import ALL
from proto.origin import Origin
from proto.wire.front import PromptFolder
from services.front.operations.steps import SURFACES, Depth, Research, ReviewChanges, SearchCodebase, SummarizeDocument
from services.runtime.roots import OutsideRoots, Roots, is_below

R = TypeVar("R")

SHOWN_ON = frozenset({ALL, *SURFACES})
"""Surfaces with prompts."""

PREFIX, SUFFIX = "PROMPT-", ".md"

MAX_BYTES = 1024 * 1024
"""Largest file that is served as a prompt."""

POLL_S = 1.0

_log = logging.getLogger("linckia.prompts")


class Folder(msgspec.Struct, frozen=True):
    """A folder of prompts.

    `is_own` is True if the user keeps the folder for Linckia, False if it is merely in a root.  `roots` bounds where
    its files may lead.
    """

    path: Path
    is_own: bool = True
    roots: Roots = Roots(("/",))

    @classmethod
    def of(cls, folder: PromptFolder, limits: Roots) -> Folder:
        """Create the folder from its setting; `limits` holds the deny rules of the roots."""
        if folder.within is None:
            return cls(Path(folder.path))
        roots = Roots((folder.within,), denied=limits.denied, patterns=limits.patterns)
        return cls(Path(folder.path), False, roots)


class FilePrompt(msgspec.Struct, frozen=True):
    """A prompt file, as listed."""

    name: str
    heading: str
    path: Path
    folder: Folder

    @property
    def description(self) -> str:
        """The file's heading; for a file in a root, with a note that anybody may have written it."""
        origin = f" (from {self.folder.path}: written by the authors of that folder, not by you or Linckia)"
        return self.heading if self.folder.is_own else self.heading + origin

    def listed(self) -> JsonObject:
        """Return the item for `prompts/list`."""
        return {"name": self.name, "description": self.description, "arguments": []}


class FilePrompts:
    """The prompts in `folders`; blocking work runs in a thread."""

    def __init__(self, folders: Sequence[Folder] = ()) -> None:
        self._folders = tuple(folders)
        self._limiter = trio.CapacityLimiter(1)
        self._found: dict[str, FilePrompt] | None = None
        self._changes = 0
        self._asked = trio.Event()
        """Set once a client has asked for the list."""

    async def current(self, grant: Grant | None = None) -> dict[str, FilePrompt]:
        """Return the current prompts by name, without those in roots that a client with this grant may not read."""
        if not self._folders:
            return {}
        self._asked.set()
        found = await trio.to_thread.run_sync(self._scan, limiter=self._limiter)
        limited = () if grant is None else grant.roots
        if not limited:
            return found
        return {name: each for name, each in found.items() if each.folder.is_own or is_below(str(each.path), limited)}

    async def get(self, name: str, grant: Grant | None, *, own: bool) -> JsonObject | None:
        """Return the result of `prompts/get`; None if there is no such file.

        With `own`, only the user's own folders are searched, otherwise only the roots.
        """
        prompt = (await self.current(grant)).get(name)
        if prompt is None or prompt.folder.is_own is not own:
            return None
        read = await trio.to_thread.run_sync(_read, prompt.path, prompt.folder.roots, limiter=self._limiter)
        if read is None:
            return None
        message = {"role": "assistant", "content": {"type": "text", "text": read}}
        return {"description": prompt.description, "messages": [message]}

    async def watch(self, changed: Callable[[], Any]) -> None:
        """Call `changed` (a coroutine function) each time the list changes, once a client knows it, until cancelled."""
        await self._asked.wait()
        reported = self._changes
        while self._folders:
            await self.current()
            # Changes are counted from the first list that any client has seen.
            if reported != self._changes:
                reported = self._changes
                await changed()
            await trio.sleep(POLL_S)

    def _scan(self) -> dict[str, FilePrompt]:
        found: dict[str, FilePrompt] = {}
        for folder in self._folders:
            for path in sorted(folder.path.glob(f"{PREFIX}?*{SUFFIX}")):
                with contextlib.suppress(OSError):
                    at = path.stat()
                    prompt = _described(folder, path, at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns)
                    if prompt is not None:
                        found.setdefault(prompt.name, prompt)
        self._changes += self._found is not None and found != self._found
        self._found = found
        return found


@lru_cache(maxsize=1024)
def _described(folder: Folder, path: Path, *identity: int) -> FilePrompt | None:
    """Return the prompt in a file; None if it cannot be one, which is logged.

    Cached by `identity`, so that a file is read again only after a change.
    """
    text = _read(path, folder.roots)
    if text is None:
        return None
    name = path.name.removeprefix(PREFIX).removesuffix(SUFFIX).replace("-", "_")
    return FilePrompt(name, heading(text) or f"Prompt in {path.name}", path, folder)


def _read(path: Path, roots: Roots) -> str | None:
    """Return the text of a prompt file; None if it cannot be served, which is logged."""
    try:
        descriptor, status = roots.open(str(path))
        with os.fdopen(descriptor, "rb") as file:
            if status.st_size <= MAX_BYTES:
                return file.read(MAX_BYTES).decode("utf-8-sig")
        refusal = f"it is longer than {MAX_BYTES} bytes"
    except OSError as error:
        refusal = error.strerror or str(error)
    except OutsideRoots as error:
        refusal = str(error)
    except UnicodeDecodeError as error:
        refusal = f"it is not UTF-8 ({error.reason})"
    _log.warning("%s is not served as a prompt: %s", path, refusal)
    return None


def heading(markdown: str) -> str:
    """Return the text of the first heading; empty if there is none."""
    # The import takes tens of milliseconds and is not needed without prompt files.
    from markdown_it import MarkdownIt

    if markdown.startswith("---\n"):
        # Skip front matter, which would parse as a heading: a line above dashes.
        _, end, rest = markdown[4:].partition("\n---\n")
        markdown = rest if end else markdown
    tokens = MarkdownIt("commonmark").parse(markdown)
    for opening, inline in itertools.pairwise(tokens):
        if opening.type == "heading_open" and inline.type == "inline":
            text = "".join(" " if child.type == "softbreak" else child.content for child in inline.children or ())
            if text.strip():
                return " ".join(text.split())
    return ""


# Built-in prompts


async def _filled(name: str, fill: Callable[[Any], JsonObject], params: Any, origin: Origin) -> PromptResult:
    """Return the prompt from `built_in/NAME.md`, filled in with the parameters and the values from `fill`."""
    template = (Path(__file__).parent / "built_in" / f"{name}.md").read_text("utf-8").rstrip("\n")
    text = template.format(**msgspec.structs.asdict(params) | fill(params))
    described = " ".join((type(params).__doc__ or "").split())
    return PromptResult(description=described, messages=[Message(role="user", content=Text(text=text))])


def _search_codebase(params: SearchCodebase) -> JsonObject:
    by_type = {"extension": params.file_type} if params.file_type else {}
    below = {"path": params.path} if params.path else {}
    paths = {"paths": [params.path]} if params.path else {}
    where = f" in files of type {params.file_type}" if params.file_type else ""
    where += f" below {params.path}" if params.path else ""
    return {
        "where": where,
        "search": _query("documents_search", query=params.pattern, line_numbers=True, **by_type, **below),
        "grep": _query("documents_grep", pattern=params.pattern, context=2, **by_type, **paths),
    }


def _summarize_document(params: SummarizeDocument) -> JsonObject:
    is_hash = len(params.document_name) >= 8 and all(c in "0123456789abcdef" for c in params.document_name)
    get = _query("documents_get", **{"hash" if is_hash else "name": params.document_name}, include_content=True)
    return {"get": get, "focus": f"\nThe reader wants to know above all: {params.focus}" if params.focus else ""}


_ROUNDS = {
    Depth.QUICK: "One round of searches is enough",
    Depth.NORMAL: "Search again with the words that the first hits use",
    Depth.THOROUGH: "Search until a round brings nothing new, and look for what speaks against what you found",
}


def _research(params: Research) -> JsonObject:
    return {"search": _query("documents_search", query=params.topic, limit=20), "rounds": _ROUNDS[params.depth]}


def _review_changes(params: ReviewChanges) -> JsonObject:
    path = {"path": params.path} if params.path else {}
    return {
        "listed": _query("documents_list", recent=params.recent, sort_by="modified", sort_order="desc", **path),
        "focus": f" Look above all for: {params.focus}." if params.focus else "",
        "below": f" below {params.path}" if params.path else "",
    }


def _query(op: str, **params: object) -> str:
    """Return the arguments of the tool `ops_query` for one step."""
    return f"`{msgspec.json.encode({'steps': [{'op': op, 'params': params}]}).decode()}`"


HANDLERS: dict[str, Callable[[Any, Origin], Awaitable[object]]] = {
    "search_codebase": partial(_filled, "search_codebase", _search_codebase),
    "summarize_document": partial(_filled, "summarize_document", _summarize_document),
    "research": partial(_filled, "research", _research),
    "review_changes": partial(_filled, "review_changes", _review_changes),
}
"""Handlers of the built-in prompts' operations."""
