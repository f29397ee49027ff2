"""What plans do with entries: add them to sets, classify them, call operations for them, or several of these.

A failed outcome is counted and reported; it does not affect other entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import apsw
import msgspec
import trio

from proto import grants, ops
from proto.errors import Executed, Forbidden, InvalidParams, LinckiaError, Overloaded, Unavailable
from proto.later import LaterCall, filled
from proto.operation import CLIENT, Operation, Role
from proto.ops.kernel import SERVICE as KERNEL
from proto.ops.kernel import KernelCall
from proto.suggestions import did_you_mean
from services.files import paths
from services.files.core import Core
from services.files.operations import plans as ops_of_plans
from services.files.operations.plans import ChainedOutcome, ClassifierOutcome, Outcome, SelectionOutcome, ToolOutcome
from services.files.plans import classifying
from services.files.plans.classifying import ClassifierTools
from services.files.plans.source_entries import PlanEntry
from services.files.query import sets
from services.files.store import schema
from services.shared import times

MAX_DEPTH = 16

NO_MANDATE = (
    "this plan was stored by an earlier version, which did not record its rights;"
    " set its `outcomes` again (plans_update)"
)

ATTEMPTS = 5
"""Number of attempts to call an operation whose service is temporarily unavailable."""

FIELDS: dict[str, Callable[[PlanEntry], str | int]] = {
    "path": lambda entry: entry.path,
    "name": lambda entry: entry.name,
    "parent": lambda entry: paths.of_folder(entry.folder),
    "kind": lambda entry: schema.KINDS[entry.kind],
    "extension": lambda entry: entry.extension,
    "size": lambda entry: entry.size,
    "mtime": lambda entry: times.rfc3339(entry.mtime),
    "ctime": lambda entry: times.rfc3339(entry.ctime),
}
"""The fields available to `{{entry.…}}`."""

TABLE = ops.load()


def values_of(entry: PlanEntry) -> dict[str, str | int]:
    return {name: value(entry) for name, value in FIELDS.items()}


@dataclass(slots=True)
class Tally:
    """Number of outcomes applied and failed, counted once per entry, and the first error."""

    applied: int = 0
    failed: int = 0
    error: str | None = None

    def fail(self, what: str, error: str) -> None:
        self.failed += 1
        if self.error is None:
            self.error = f"{what}: {error}"[:2000]


def check(outcomes: Sequence[Outcome], field: str, depth: int = 1) -> None:
    """Raises InvalidParams, which names the field, if an outcome could never be applied."""
    if depth > MAX_DEPTH:
        raise InvalidParams(f"`{field}`: nested more than {MAX_DEPTH} levels deep", field=field)
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
        why = "unknown operation" if operation is None else "plans cannot call"
        near = did_you_mean(outcome.tool, TABLE) if operation is None else ""
        raise InvalidParams(
            f"`{field}.tool`: {why} {outcome.tool[:200]!r}{near or '; `linckia tools` lists the available ones'}",
            field=f"{field}.tool",
        )
    sample = PlanEntry(1, "/folder/name.txt", "name.txt", "/folder/", schema.FILE, "txt", 1, 0, 0)
    arguments = filled(outcome.arguments, values_of(sample), f"{field}.arguments")
    try:
        operation.parse(arguments)
    except InvalidParams as error:
        where = f"{field}.arguments"
        inner = error.failure.field
        raise InvalidParams(
            f"`{where}` of {operation.name}: {error}", field=f"{where}.{inner}" if inner else where
        ) from None


def may_be_called(operation: Operation[Any]) -> bool:
    """True if plans may call it: anything a client may call, except what the kernel itself handles."""
    return operation.admits(CLIENT) and operation.role in (Role.TOOL, Role.STEP) and operation.service != KERNEL


def calls_of(outcomes: Sequence[Outcome]) -> list[LaterCall]:
    """Return the distinct calls that the outcomes make for each entry."""
    return list({msgspec.json.encode(call): call for call in ops_of_plans.calls_of(outcomes)}.values())


def check_grant(outcomes: Sequence[Outcome]) -> None:
    """Raises Forbidden if the outcomes call something that the current client may not call itself.

    Plans run while no client is waiting, so this is checked both when a client writes a plan and when it executes one.
    """
    if (grant := grants.current.get()) is None:
        return
    for call in calls_of(outcomes):
        if refusal := TABLE[call.operation].refusal(grant):
            raise Forbidden(f"`outcomes`: {refusal}", field="outcomes")


class OutcomeRunner:
    """Applies the outcomes of one plan.

    Args:
        mandates: the kernel's, one for each of `calls_of(outcomes)`.
    """

    def __init__(
        self, core: Core, classifying: ClassifierTools, outcomes: Sequence[Outcome], mandates: Sequence[str]
    ) -> None:
        self._core = core
        self._classifying = classifying
        self._outcomes = outcomes
        calls = map(msgspec.json.encode, calls_of(outcomes))
        self._mandates = dict(zip(calls, mandates, strict=False))

    async def do(self, entries: Sequence[PlanEntry], tally: Tally) -> None:
        """Apply each outcome to all entries."""
        for outcome in self._outcomes:
            await self._do(outcome, entries, tally)

    async def _do(self, outcome: Outcome, entries: Sequence[PlanEntry], tally: Tally) -> list[PlanEntry]:
        """Apply an outcome. Returns the entries for which it succeeded."""
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

    async def _select(self, outcome: SelectionOutcome, entries: Sequence[PlanEntry], tally: Tally) -> list[PlanEntry]:
        def change(db: apsw.Connection) -> list[PlanEntry]:
            id_ = sets.make(db, outcome.selectionSetName)
            if outcome.operation == "remove":
                sets.remove(db, id_, [entry.id for entry in entries])
                return list(entries)
            # Entries may have left the index since they were found.
            there = sets.present(db, [entry.id for entry in entries])
            sets.add(db, id_, there)
            return [entry for entry in entries if entry.id in there]

        done = await self._core.database.write(change)
        tally.applied += len(done)
        return done

    async def _classify(
        self, outcome: ClassifierOutcome, entries: Sequence[PlanEntry], tally: Tally
    ) -> list[PlanEntry]:
        files = [entry for entry in entries if entry.kind == schema.FILE]

        def change(db: apsw.Connection) -> None:
            for entry in files:
                classifying.put(db, entry.path, outcome.operations)

        await self._core.database.write(change)
        self._classifying.wake()
        tally.applied += len(files)
        return files

    async def _call(self, outcome: ToolOutcome, entry: PlanEntry) -> str | None:
        """Call an operation. Returns the error, or None if it succeeded."""
        mandate = self._mandates.get(msgspec.json.encode(LaterCall(outcome.tool, outcome.arguments)))
        if mandate is None:
            return NO_MANDATE
        call = KernelCall(mandate=mandate, entry=values_of(entry))
        for attempt in range(1, ATTEMPTS + 1):
            try:
                # The kernel applies the operation's deadline, which begins once the call is approved.
                await self._core.env.call(call)
                return None
            except (Unavailable, Overloaded) as error:
                if attempt == ATTEMPTS or error.failure.executed is not Executed.NO:
                    return str(error)
                await trio.sleep((error.failure.retry_after_ms or 200 * attempt) / 1000)
            except LinckiaError as error:
                return str(error)
        return None
