"""The steps allowed on a surface, from the table of operations, and messages about names that are not.

On `documents`, the steps are the operations on documents. On other surfaces, every operation that a client may call as
a tool or as a step is one: reading operations in `query`, all others in `execute`.
"""

from __future__ import annotations

import enum
from functools import cached_property

from proto.errors import InvalidParams
from proto.operation import CLIENT, Access, Operation, Role
from proto.ops import Table
from proto.suggestions import did_you_mean
from proto.wire.front import CALL_MOUNTED, SERVICE
from services.front.surfaces.finding import Index

QUERY, EXECUTE, SESSION, DESCRIBE = "query", "execute", "session", "describe"

NAMES = frozenset({QUERY, EXECUTE, SESSION, DESCRIBE, CALL_MOUNTED})
"""Operations that the composite tools handle themselves."""

DOCUMENTS = "documents"
"""The surface whose steps are only its own."""

_ACTION = "session."
_LISTED = 20
"""Maximum number of names that an error lists; if there are more, it suggests similar ones and where to find the
rest."""


class Category(enum.StrEnum):
    """The composite tool to which a step belongs."""

    QUERY = QUERY
    EXECUTE = EXECUTE
    SESSION = SESSION


PLACE = {
    Category.QUERY: "only reads: call it in `query`",
    Category.EXECUTE: "changes what is stored: call it in `execute`",
    Category.SESSION: "is an action of the tool `session`",
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
        # An operation's own name and its former names are accepted too, though not listed.
        every = ((category, op) for category, ops in self.ops.items() for op in ops.values())
        named = [(name, category, op) for category, op in every for name in (op.name, *op.former)]
        self._aliases = {name: (category, op) for name, category, op in named} if self.surface != DOCUMENTS else {}

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
        return (Category.SESSION, action) if action is not None else self._aliases.get(name)

    def names(self) -> list[str]:
        """Return the names of all steps on the surface."""
        return [name for ops in self.ops.values() for name in ops]

    def step(self, tool: Category, name: str, field: str) -> Operation[object]:
        """Return the operation of a step of `tool`. Raises InvalidParams: there is no such step, or it belongs to
        another tool, which the message names."""
        found = self.find(name)
        if found is not None and found[0] is tool:
            return found[1]
        if name in (QUERY, EXECUTE, SESSION):
            said = f"`{name}` is a tool, which cannot be a step"
        elif found is not None:
            said = f"`{name}` {PLACE[found[0]]}"
        elif len(ops := self.ops[tool]) <= _LISTED:
            said = f"unknown op `{name[:100]}`; known: {', '.join(ops) or 'none'}"
        else:
            near = f"{hint} " if (hint := did_you_mean(name, ops, before="")) else ""
            said = f'unknown op `{name[:100]}`; {near}{{"op": "{DESCRIBE}"}} in `{QUERY}` lists all'
        raise InvalidParams(f"{field}: {said}", field=field)


def _is_step(op: Operation[object]) -> bool:
    return (
        op.role in (Role.TOOL, Role.STEP)
        and op.admits(CLIENT)
        # If a call ends with a question, the client makes it again, but its other steps have already been executed.
        and not op.asks
        and not (op.service == SERVICE and op.name in (QUERY, EXECUTE, SESSION))
        and not op.step.startswith(_ACTION)
    )


def _documents(table: Table) -> dict[str, Operation[object]]:
    here = (op for op in table.values() if _is_step(op) and op.role is Role.STEP and DOCUMENTS in op.surfaces)
    # The kernel's own `describe` comes last.
    return {op.step: op for op in sorted(here, key=lambda op: op.service == SERVICE)}


def _everything(table: Table) -> dict[str, Operation[object]]:
    steps: dict[str, Operation[object]] = {}
    # Operations that are only steps have priority for their name, since tools can also be called directly.
    for op in sorted(filter(_is_step, table.values()), key=lambda op: op.role is not Role.STEP):
        for name in (op.step, op.name, f"{op.service}_{op.name}"):
            if steps.setdefault(name, op) is op:
                break
        else:
            raise ValueError(f"operation {op.name}: its name as a step is already taken; give it another one (`step=`)")
    return steps
