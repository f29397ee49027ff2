"""The steps allowed on a surface, from the table of operations, and messages about names that are not.

On `documents`, the steps are the operations on documents. On other surfaces, every operation that a client may call as
a tool or as a step is one: reading operations in `query`, all others in `execute`.
"""

from __future__ import annotations

import enum
import re
from functools import cached_property

import msgspec

from proto.errors import Failure, InvalidParams
from proto.json_types import JsonObject
from proto.operation import CLIENT, REFERENCES, Access, Operation, Role
from proto.ops import Table
from proto.suggestions import did_you_mean
from proto.vocabulary import current_name, in_former_names
from proto.wire.front import CALL_MOUNTED, SERVICE
from services.front.surfaces.finding import Index

QUERY, EXECUTE, SESSION, DESCRIBE = "ops_query", "ops_execute", "documents_session", "ops_describe"

NAMES = frozenset({QUERY, EXECUTE, SESSION, DESCRIBE, CALL_MOUNTED})
"""Operations that the composite tools handle themselves."""

DOCUMENTS = "documents"
"""The surface whose steps are only its own."""

_ACTION = "session."
_OUR_WORD = re.compile(r"(?<!\S)[^\s/'\"]+(?!\S)")
_LISTED = 20
"""Maximum number of names that an error lists; if there are more, it suggests similar ones and where to find the
rest."""


class Category(enum.StrEnum):
    """The composite tool to which a step belongs."""

    QUERY = "query"
    EXECUTE = "execute"
    SESSION = "session"

    @property
    def tool(self) -> str:
        """Name of the tool."""
        return {Category.QUERY: QUERY, Category.EXECUTE: EXECUTE}.get(self, SESSION)


PLACE = {
    Category.QUERY: f"only reads: call it in `{QUERY}`",
    Category.EXECUTE: f"changes what is stored: call it in `{EXECUTE}`",
    Category.SESSION: f"is an action of the tool `{SESSION}`",
}


class Steps:
    """The steps of one surface: operations by the names that clients use, grouped in `ops` by composite tool."""

    def __init__(self, surface: str, table: Table) -> None:
        self.surface = surface
        self.update(table)

    def update(self, table: Table) -> None:
        """Replace the steps by those of another table."""
        self.__dict__.pop("index", None)
        self.ops: dict[Category, dict[str, Operation[object]]] = {category: {} for category in Category}
        self.query, self.execute, self.session = self.ops.values()
        steps = _documents(table) if self.surface == DOCUMENTS else _everything(table)
        for name, op in steps.items():
            (self.query if op.access is Access.READ else self.execute)[name] = op
        for op in table.values():
            if op.role is Role.STEP and op.step.startswith(_ACTION) and op.admits(CLIENT):
                self.session[op.step.removeprefix(_ACTION)] = op
        self._others: dict[str, tuple[Category, Operation[object]]] = {}
        # Those that are only steps come first, since tools can also be called directly.
        every = [(category, op) for category, ops in self.ops.items() for op in ops.values()]
        for category, op in sorted(every, key=lambda each: each[1].role is not Role.STEP):
            for name in (op.step, op.name, *op.former):
                self._others.setdefault(name, (category, op))

    @cached_property
    def index(self) -> Index:
        """Index for finding steps by words."""
        return Index({name: op for ops in self.ops.values() for name, op in ops.items()})

    def find(self, name: str) -> tuple[Category, Operation[object]] | None:
        """Return the step with this name and its category, or None."""
        for category, ops in self.ops.items():
            if name in ops:
                return category, ops[name]
        action = self.session.get(name.removeprefix(_ACTION))
        return (Category.SESSION, action) if action is not None else self._others.get(name)

    def names(self) -> list[str]:
        """Return the names of all steps on the surface."""
        return [name for ops in self.ops.values() for name in ops]

    def step(self, tool: Category, name: str, field: str) -> Operation[object]:
        """Return the operation of a step of `tool`. Raises InvalidParams: there is no such step, or it belongs to
        another tool, which the message names."""
        found = self.find(name)
        if found is not None and found[0] is tool:
            return found[1]
        if current_name(name) in (QUERY, EXECUTE, SESSION):
            said = f"`{name}` is a tool, which cannot be a step"
        elif found is not None:
            said = f"`{name}` {PLACE[found[0]]}"
        elif len(ops := self.ops[tool]) <= _LISTED:
            said = f"unknown op `{name[:100]}`; known: {', '.join(ops) or 'none'}"
        else:
            # One of another tool may be meant; the next error then says which tool.
            hint = did_you_mean(name, self.names(), before="")
            near = f"{hint} " if hint else ""
            said = f'unknown op `{name[:100]}`; {near}{{"op": "{DESCRIBE}"}} in `{QUERY}` lists all'
        raise InvalidParams(f"{field}: {self.spoken(said)}", field=field)

    def spoken(self, text: str) -> str:
        """Return a text with the names of this surface."""
        return in_former_names(text, steps=self.surface == DOCUMENTS) if self.surface in REFERENCES else text

    def spoken_failure(self, failure: Failure) -> Failure:
        """Return a failure whose message has the names of this surface."""
        # Words with a slash or in quotes are the client's own.
        said = _OUR_WORD.sub(lambda word: self.spoken(word[0]), failure.message)
        return failure if said == failure.message else msgspec.structs.replace(failure, message=said)

    def spoken_in(self, schema: JsonObject) -> JsonObject:
        """Return a schema whose texts have the names of this surface."""
        if self.surface not in REFERENCES:
            return schema
        spoken: JsonObject = msgspec.json.decode(self.spoken(msgspec.json.encode(schema).decode()))
        return spoken


def _is_step(op: Operation[object]) -> bool:
    return (
        op.role in (Role.TOOL, Role.STEP)
        and op.admits(CLIENT)
        # If a call ends with a question, the client makes it again, but its other steps have already been executed.
        and not op.asks
        and not (op.service == SERVICE and op.name in (QUERY, EXECUTE, SESSION))
        and not op.step.startswith(_ACTION)
    )


_ORDER = "list list_collections list_snapshots get status search grep graph describe add update delete restore download"


def _documents(table: Table) -> dict[str, Operation[object]]:
    here = {op.step: op for op in table.values() if _is_step(op) and op.role is Role.STEP and DOCUMENTS in op.surfaces}
    first = {name: here[name] for name in _ORDER.split() if name in here}
    return {**first, **here}


def _everything(table: Table) -> dict[str, Operation[object]]:
    return {op.name: op for op in filter(_is_step, table.values())}
