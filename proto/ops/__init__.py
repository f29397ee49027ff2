"""The table of operations: those of this package, which services ask of each other, and those of each service.

A service declares its own in `operations.py`, or in a package of that name. There is no other list: `load` imports the
modules and collects their declarations.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

from proto.errors import UnknownOperation
from proto.http import Endpoint
from proto.names import module
from proto.operation import SURFACES, Operation, Params
from proto.suggestions import did_you_mean


class Table(Mapping[str, Operation[object]]):
    """Operations by name, and the endpoints that serve another API's format over HTTP; immutable.

    They are found by their former names, too, but listed by their current ones.
    """

    def __init__(self, operations: Iterable[Operation[object]], endpoints: Iterable[type[Endpoint]] = ()) -> None:
        self.endpoints = tuple(endpoints)
        self.by_name: dict[str, Operation[object]] = {}
        for op in operations:
            other = self.by_name.setdefault(op.name, op)
            if other is not op:
                raise ValueError(f"operation {op.name!r} is declared twice: {other.params!r} and {op.params!r}")
        self._by_former = {name: op for op in self.by_name.values() for name in op.former}
        if taken := self._by_former.keys() & self.by_name.keys():
            raise ValueError(f"a former name belongs to another operation: {', '.join(sorted(taken))}")
        for op in self.by_name.values():
            # Names of steps are accepted, too; `search` is the former name of a tool.
            if op.step not in self.by_name:
                self._by_former.setdefault(op.step, op)

    def __getitem__(self, name: str) -> Operation[object]:
        return self.by_name.get(name) or self._by_former[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def __len__(self) -> int:
        return len(self.by_name)

    def find(self, name: str) -> Operation[object]:
        """Return the operation with this current or former name.

        Raises UnknownOperation, which suggests similar names.
        """
        if (op := self.get(name)) is None:
            raise UnknownOperation(f"unknown operation {name!r}{did_you_mean(name, self.by_name)}", field="name")
        return op

    @cached_property
    def surfaces(self) -> tuple[str, ...]:
        """Names of all tool surfaces: Linckia's own, and those of mounted servers."""
        named = (surface for op in self.by_name.values() for surface in op.surfaces)
        return tuple(dict.fromkeys((*SURFACES, *named)))

    def of_service(self, service: str) -> tuple[Operation[object], ...]:
        return tuple(op for op in self.by_name.values() if op.service == service)


def load(extra: Iterable[str] = ()) -> Table:
    """Load the operations of this package, of every built-in service and of the `extra` modules."""
    declared = [
        value
        for name in (*_below(__name__), *_of_services(), *extra)
        for value in vars(importlib.import_module(name)).values()
        if isinstance(value, type) and issubclass(value, Params) and value.__module__ == name
    ]
    operations = [value.__dict__["__operation__"] for value in declared if "__operation__" in value.__dict__]
    return Table(operations, [value for value in declared if issubclass(value, Endpoint)])


def _of_services() -> Iterator[str]:
    """Return the modules of the services that declare operations; found by their names, since nothing here may import
    them."""
    services = module("services")
    for place in importlib.import_module(services).__path__:
        for found in sorted(Path(place).glob("*/operations*")):
            name = f"{services}.{found.parent.name}.operations"
            if found.suffix == ".py":
                yield name
            elif found.is_dir():
                yield from _below(name)


def _below(package: str) -> list[str]:
    """Return the modules of a package."""
    found = importlib.import_module(package).__path__
    return sorted(info.name for info in pkgutil.walk_packages(found, f"{package}."))
