"""What plans do with entries: put them into sets, have them classified, call operations for them, or several of these.

An outcome that fails for an entry is counted and said, and does not keep others from theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apsw
import trio

from linckia.proto import grants, ops
from linckia.proto.errors import Executed, Forbidden, InvalidParams, LinckiaError, Overloaded, Unavailable
from linckia.proto.operation import CLIENT, Operation, Role
from linckia.proto.ops.files.plans import ChainedOutcome, ClassifierOutcome, Outcome, SelectionOutcome, ToolOutcome
from linckia.proto.ops.kernel import SERVICE as KERNEL
from linckia.proto.ops.kernel import KernelCall
from linckia.services.files import paths
from linckia.services.files.core import Core
from linckia.services.files.plans import classifying
from linckia.services.files.plans.classifying import Classifying
from linckia.services.files.plans.finding import Entry
from linckia.services.files.query import sets
from linckia.services.files.store import schema
from linckia.services.runtime import times

MAX_DEPTH = 16

ATTEMPTS = 5
"""At an operation whose service is not there for the moment."""

_PLACEHOLDER = re.compile(r"\{\{\s*entry\.(\w+)\s*\}\}")

FIELDS: dict[str, Callable[[Entry], str | int]] = {
    "path": lambda entry: entry.path,
    "name": lambda entry: entry.name,
    "parent": lambda entry: paths.of_folder(entry.folder),
    "kind": lambda entry: schema.KINDS[entry.kind],
    "extension": lambda entry: entry.extension,
    "size": lambda entry: entry.size,
    "mtime": lambda entry: times.rfc3339(entry.mtime),
    "ctime": lambda entry: times.rfc3339(entry.ctime),
}
"""What `{{entry.…}}` may name."""

TABLE = ops.load()


@dataclass(slots=True)
class Tally:
    """How many outcomes were done, each for each entry, and how many failed; why the first of them did."""

    applied: int = 0
    failed: int = 0
    error: str | None = None

    def fail(self, what: str, error: str) -> None:
        self.failed += 1
        if self.error is None:
            self.error = f"{what}: {error}"[:2000]


def check(outcomes: Sequence[Outcome], field: str, depth: int = 1) -> None:
    """Raises InvalidParams, which names the field, where one could never be done."""
    if depth > MAX_DEPTH:
        raise InvalidParams(f"`{field}`: more than {MAX_DEPTH} levels", field=field)
    for n, outcome in enumerate(outcomes):
        where = f"{field}[{n}]"
        match outcome:
            case ToolOutcome():
                _check_tool(outcome, where)
            case ChainedOutcome():
                check(outcome.outcomes, f"{where}.outcomes", depth + 1)


def _check_tool(outcome: ToolOutcome, field: str) -> None:
    operation = TABLE.get(outcome.tool)
    if operation is None or not may_be_called(operation):
        why = "there is no operation" if operation is None else "a plan may not call"
        raise InvalidParams(
            f"`{field}.tool`: {why} {outcome.tool[:200]!r}; `linckia tools` lists those there are",
            field=f"{field}.tool",
        )
    sample = Entry(1, "/folder/name.txt", "name.txt", "/folder/", schema.FILE, "txt", 1, 0, 0)
    arguments = filled(outcome.arguments, sample, f"{field}.arguments")
    try:
        operation.parse(arguments)
    except InvalidParams as error:
        raise InvalidParams(f"`{field}.arguments` of {operation.name}: {error}", field=f"{field}.arguments") from None


def may_be_called(operation: Operation[Any]) -> bool:
    """Whether a plan may call it: what a client may, but for what the kernel itself answers."""
    return operation.admits(CLIENT) and operation.role in (Role.TOOL, Role.STEP) and operation.service != KERNEL


def tools_of(outcomes: Sequence[Outcome]) -> Iterator[Operation[Any]]:
    """The operations that they call for each entry."""
    for outcome in outcomes:
        if isinstance(outcome, ToolOutcome):
            yield TABLE[outcome.tool]
        elif isinstance(outcome, ChainedOutcome):
            yield from tools_of(outcome.outcomes)


def check_grant(outcomes: Sequence[Outcome]) -> None:
    """Raises Forbidden where they call what the client that is served may not call itself.

    A plan is carried out when no client waits for it: those who write it, and who have it carried out, are asked for.
    """
    if (grant := grants.current.get()) is None:
        return
    for operation in tools_of(outcomes):
        if refusal := operation.refusal(grant):
            raise Forbidden(f"`outcomes`: {refusal}", field="outcomes")


def filled(value: Any, entry: Entry, field: str) -> Any:
    """A parameter with what the entry has in place of `{{entry.…}}`; one that is nothing else keeps its type. Raises
    InvalidParams where an entry has nothing of that name."""
    match value:
        case str():
            whole = _PLACEHOLDER.fullmatch(value)
            if whole is not None:
                return _field(entry, whole[1], field)
            return _PLACEHOLDER.sub(lambda match: str(_field(entry, match[1], field)), value)
        case dict():
            return {key: filled(item, entry, f"{field}.{key}") for key, item in value.items()}
        case list():
            return [filled(item, entry, f"{field}[{n}]") for n, item in enumerate(value)]
        case _:
            return value


def _field(entry: Entry, name: str, field: str) -> str | int:
    if name not in FIELDS:
        raise InvalidParams(f"`{field}`: an entry has no {name[:100]!r}; it has: {', '.join(FIELDS)}", field=field)
    return FIELDS[name](entry)


class Doing:
    """Does outcomes."""

    def __init__(self, core: Core, classifying: Classifying) -> None:
        self._core = core
        self._classifying = classifying

    async def do(self, outcomes: Sequence[Outcome], entries: Sequence[Entry], tally: Tally) -> None:
        """Do each outcome for all entries."""
        for outcome in outcomes:
            await self._do(outcome, entries, tally)

    async def _do(self, outcome: Outcome, entries: Sequence[Entry], tally: Tally) -> list[Entry]:
        """Answers the entries that it was done for."""
        match outcome:
            case SelectionOutcome():
                return await self._select(outcome, entries, tally)
            case ClassifierOutcome():
                return await self._classify(outcome, entries, tally)
            case ToolOutcome():
                done = []
                for entry in entries:
                    error = await self._call(outcome, entry)
                    if error is None:
                        tally.applied += 1
                        done.append(entry)
                    else:
                        tally.fail(f"{outcome.tool} of {entry.path}", error)
                return done
            case ChainedOutcome():
                left, all_done = list(entries), list(entries)
                for each in outcome.outcomes:
                    done = await self._do(each, left, tally)
                    ids = {entry.id for entry in done}
                    all_done = [entry for entry in all_done if entry.id in ids]
                    if outcome.stopOnError:
                        left = done
                return all_done

    async def _select(self, outcome: SelectionOutcome, entries: Sequence[Entry], tally: Tally) -> list[Entry]:
        def change(db: apsw.Connection) -> list[Entry]:
            id_ = sets.make(db, outcome.selectionSetName)
            if outcome.operation == "remove":
                sets.remove(db, id_, [entry.id for entry in entries])
                return list(entries)
            # Not those that have left the index since they were found.
            there = sets.present(db, [entry.id for entry in entries])
            sets.add(db, id_, there)
            return [entry for entry in entries if entry.id in there]

        done = await self._core.database.write(change)
        tally.applied += len(done)
        return done

    async def _classify(self, outcome: ClassifierOutcome, entries: Sequence[Entry], tally: Tally) -> list[Entry]:
        files = [entry for entry in entries if entry.kind == schema.FILE]

        def change(db: apsw.Connection) -> None:
            for entry in files:
                classifying.put(db, entry.path, outcome.operations)

        await self._core.database.write(change)
        self._classifying.wake()
        tally.applied += len(files)
        return files

    async def _call(self, outcome: ToolOutcome, entry: Entry) -> str | None:
        """Why it failed; None where it did not."""
        call = KernelCall(operation=outcome.tool, arguments=filled(outcome.arguments, entry, "arguments"))
        timeout_s = TABLE[outcome.tool].deadline_ms / 1000
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._core.env.call(call, timeout_s=timeout_s)
                return None
            except (Unavailable, Overloaded) as error:
                if attempt == ATTEMPTS or error.failure.executed is not Executed.NO:
                    return str(error)
                await trio.sleep((error.failure.retry_after_ms or 200 * attempt) / 1000)
            except LinckiaError as error:
                return str(error)
        return None
