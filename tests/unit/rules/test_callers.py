"""Who may call what: each operation names its callers, and names no other than those that do call it."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from kernel.configure import catalog
from proto.operation import CLIENT, OPERATOR, SYNC, Access, Operation, Params, Role, operation, operation_of
from proto.ops import load
from proto.wire.front import SERVICE as FRONT
from services.front.listing import callers

ROOT = Path()
KERNEL = "kernel"
OUTSIDE = {CLIENT, OPERATOR, SYNC, KERNEL}
"""Callers that are no service."""


def called() -> Mapping[str, set[str]]:
    """By operation: the services whose code makes its parameters, outside the service that owns it."""
    by_operation: dict[str, set[str]] = defaultdict(set)
    for op in load().values():
        # Completed parameters name it, and the front calls it.
        by_operation[op.completion or ""].add(FRONT)
    for entry in catalog.ENTRIES:
        for module in closure(entry.spec.module):
            for op in made(module):
                if op.service != entry.service:
                    by_operation[op.name].add(entry.service)
    return by_operation


def closure(module: str) -> set[str]:
    """The modules of services that this one imports, itself among them."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in found and name.startswith("services.") and source(name) is not None:
            found.add(name)
            waiting += [f"{base}.{part}" if part else base for base, part, _ in imports(name)]
            waiting += [base for base, _, _ in imports(name)]
    return found


@functools.cache
def source(module: str) -> ast.Module | None:
    path = ROOT.joinpath(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.exists():
            return ast.parse(candidate.read_text(encoding="utf-8"))
    return None


@functools.cache
def imports(module: str) -> list[tuple[str, str, str]]:
    """Module, name in it ('' for the module itself), and the name that it has here."""
    tree = source(module)
    assert tree is not None
    found: list[tuple[str, str, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found += [(node.module, each.name, each.asname or each.name) for each in node.names]
        elif isinstance(node, ast.Import):
            found += [(each.name, "", each.asname or each.name) for each in node.names]
    return found


@functools.cache
def made(module: str) -> list[Operation[object]]:
    """The operations whose parameters the module makes."""
    tree = source(module)
    assert tree is not None
    names = {here: (base, name) for base, name, here in imports(module) if base.startswith(("proto", "services"))}
    return [
        operation
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and (operation := resolved(node.func, names)) is not None
    ]


def resolved(func: ast.expr, names: Mapping[str, tuple[str, str]]) -> Operation[object] | None:
    match func:
        case ast.Name(id=here) if here in names:
            base, name = names[here]
            found = getattr(importlib.import_module(base), name, None)
        case ast.Attribute(value=ast.Name(id=here), attr=attribute) if here in names:
            module = ".".join(filter(None, names[here]))
            found = getattr(importlib.import_module(module), attribute, None) if is_module(module) else None
        case _:
            return None
    if isinstance(found, type) and issubclass(found, Params):
        declared = found.__dict__.get("__operation__")
        return declared if isinstance(declared, Operation) else None
    return None


def is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        # A name in a module that is no package.
        return False


def test_operation_names_the_services_that_call_it_and_no_other() -> None:
    found = called()
    declared = {op.name: set(op.callers) - OUTSIDE for op in load().values()}
    assert declared == {name: found.get(name, set()) for name in declared}


def test_operation_between_services_admits_no_caller_that_it_does_not_name() -> None:
    @operation("test.between", service="x", access=Access.READ, deadline_s=1, role=Role.INTERNAL)
    class Between(Params[str], frozen=True, kw_only=True):
        """An operation without callers yet."""

    @operation("test.outside", service="x", access=Access.READ, deadline_s=1)
    class Outside(Params[str], frozen=True, kw_only=True):
        """An operation for clients."""

    names = {entry.service for entry in catalog.ENTRIES} | OUTSIDE
    assert [name for name in names if operation_of(Between).admits(name)] == []
    assert {name for name in names if operation_of(Outside).admits(name)} == {CLIENT, OPERATOR}


def test_the_table_of_callers_is_complete_and_destructive_operations_admit_few() -> None:
    table = load()
    printed = callers(table)
    assert printed.keys() == table.keys()
    assert printed["retrieve_delete"] == ["documents", "knowledge", "memory", OPERATOR, "transcripts"]
    assert printed["graph_delete"] == ["documents", "knowledge", OPERATOR]
    assert printed["documents_put_commit"] == ["fetch", OPERATOR]
    assert printed["kernel_stop"] == [OPERATOR]
    assert all("*" not in op.callers for op in table.values())
