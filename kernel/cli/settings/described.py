"""What settings there are: each with its kind, its default, and what it does, as its docstring says.

Those of services are read from their source, without importing it: the kernel must not load what services load.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import inspect
import operator
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import structs

from kernel.cli.settings.layers import ENVIRONMENT, LayerSettings
from kernel.configure.manifests import PackagedManifest
from proto import approvals
from proto.approvals import ApprovalSettings

LEFT_OUT: Final = ("services", "mcp", "chaos")
"""Tables that have settings of their own, and one for tests."""

COMMON: Final = {"disk_limit_bytes": ("integer", "Size of its folder past which the service is replaced; 0: no limit")}
"""Settings that every service has."""

OPTIONAL: Final = {"enabled": ("boolean", "Whether the service runs")}
"""The same for a service that can be switched off."""

WORKERS: Final = "workers"

_KINDS: Final = {"bool": "boolean", "int": "integer", "float": "number", "str": "string"}


class Module(NamedTuple):
    """The source of a module, and the folder that its package is in."""

    tree: ast.Module
    root: Path

    def imported(self, name: str) -> tuple[Module, str] | None:
        """Return the module that a name is imported from, and its name there; "" if it is that module."""
        for line in self.tree.body:
            for one in line.names if isinstance(line, ast.ImportFrom) and line.module else ():
                if (one.asname or one.name) == name:
                    assert isinstance(line, ast.ImportFrom)
                    place = self.root.joinpath(*str(line.module).split("."))
                    whole = [place / f"{one.name}.py", place / one.name / "__init__.py"]
                    for path, inner in (*((each, "") for each in whole), (place.with_suffix(".py"), one.name)):
                        if path.exists():
                            return Module(ast.parse(path.read_text(encoding="utf-8")), self.root), inner
        return None


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting; `path` is where it is in the settings, with the table of its service in `services`."""

    path: tuple[str, ...]
    name: str
    """As people write it: with the short name of the table."""
    kind: str
    """boolean, integer, number, string, strings, choice, mixed (a number or a word) or json."""
    choices: tuple[str, ...] = ()
    default: object = None
    text: str = ""
    variable: str = ""
    service: str = ""
    declared: str = ""
    """Module and class that check it, for a setting of a service."""
    table: tuple[str, ...] = ()
    """The table to write it to."""


def described(manifests: Iterable[PackagedManifest]) -> list[Setting]:
    """Return all settings. Blocks."""
    variables = {where: name for name, (where, _) in ENVIRONMENT.items()}
    found = list(_of_kernel(LayerSettings, (), variables))
    for each in manifests:
        if each.manifest.name == approvals.SERVICE:
            # The router applies them.
            given = _of_kernel(ApprovalSettings, (approvals.SERVICE,), variables)
            found += [structs.replace(one, path=("services", *one.path)) for one in given]
        found += _of_service(each)
    return found


def field_docs(kind: type) -> dict[str, str]:
    """Return the docstrings below the fields of a class and its bases."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if each.__module__.partition(".")[0] in ("kernel", "proto", "services"):
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
            assert isinstance(tree, ast.ClassDef)
            found |= _docs(tree)
    return found


def _docs(tree: ast.ClassDef) -> dict[str, str]:
    return {
        before.target.id: inspect.cleandoc(str(after.value.value))
        for before, after in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(before, ast.AnnAssign)
        and isinstance(before.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
    }


def _of_kernel(
    kind: type[msgspec.Struct], prefix: tuple[str, ...], variables: Mapping[tuple[str, ...], str]
) -> Iterator[Setting]:
    texts = field_docs(kind)
    for field in structs.fields(kind):
        path = (*prefix, field.encode_name)
        if path[0] in LEFT_OUT:
            continue
        if (inner := _struct(field.type)) is not None:
            yield from _of_kernel(inner, path, variables)
            continue
        ((schema,), _) = msgspec.json.schema_components([field.type], schema_hook=lambda _: {"type": "any"})
        shown, choices = _kind(schema)
        default = None if field.required else _plain(field)
        yield Setting(
            path=path, name=".".join(path), kind=shown, choices=choices, default=default, table=prefix,
            text=schema.get("description") or texts.get(field.name, ""), variable=variables.get(path, ""),
        )  # fmt: skip


def _struct(kind: Any) -> type[msgspec.Struct] | None:
    """Return the table that a setting is, if it is one or null."""
    for each in (kind, *getattr(kind, "__args__", ())):
        if isinstance(each, type) and issubclass(each, msgspec.Struct) and not hasattr(kind, "__origin__"):
            return each
    return None


def _plain(field: structs.FieldInfo) -> object:
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return msgspec.to_builtins(value, enc_hook=str)


def _kind(schema: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    for each in schema.get("anyOf", ()):
        if each.get("type") != "null" and len(schema["anyOf"]) == 2:
            return _kind(each)
    if "enum" in schema:
        return "choice", tuple(map(str, schema["enum"]))
    kind = schema.get("type", "json")
    if kind == "array" and schema.get("items", {}).get("type") == "string":
        return "strings", ()
    return (kind if kind in _KINDS.values() else "json"), ()


def _of_service(found: PackagedManifest) -> Iterator[Setting]:
    manifest = found.manifest
    short = manifest.table

    def setting(name: str, **more: Any) -> Setting:
        own: tuple[str, ...] = ("services", manifest.name)
        separator = "__"
        if short is not None and (not short.lists or name in short.lists):
            own, separator = (short.name,), "_" if short.lists else "__"
        variable = f"LINCKIA_{'__'.join(own)}{separator}{name}".upper()
        return Setting(
            path=("services", manifest.name, name), name=".".join((*own, name)), variable=variable, table=own,
            service=manifest.name, **more,
        )  # fmt: skip

    declared = {name: setting(name, **more) for name, more in _declared(found.package, manifest.name)}
    for name in (*manifest.told_settings, *(("issuer", "jwks_url") if manifest.told_issuer else ())):
        declared.pop(name, None)
    if manifest.pool is not None and WORKERS in declared:
        # The kernel reads it, and tells the service the number.
        declared[WORKERS] = structs.replace(declared[WORKERS], kind="mixed", declared="")
    yield from declared.values()
    for name, (kind, text) in {**COMMON, **(OPTIONAL if manifest.optional else {})}.items():
        if name not in declared:
            default = manifest.disk_limit_bytes if name == "disk_limit_bytes" else True
            yield setting(name, kind=kind, text=text, default=default)


@functools.cache
def _declared(package: str, service: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return the settings that a service declares, each by its name. Blocks.

    They are the fields of a class with the name of the service, such as `EventsSettings`.
    """
    folder, wanted = _folder(package), f"{service.title().replace('_', '')}Settings"
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if f"class {wanted}(" in text:
            module = ".".join((package, *path.relative_to(folder).with_suffix("").parts))
            found = _members(Module(ast.parse(text), folder.parents[package.count(".")]), wanted)
            return tuple((name, {**more, "declared": f"{module}:{wanted}"}) for name, more in found.items())
    return ()


def _folder(package: str) -> Path:
    """Return the folder of a package, without importing it."""
    top, *rest = package.split(".")
    found = importlib.util.find_spec(top)
    places = found.submodule_search_locations if found is not None else None
    return Path(next(iter(places or ("/nonexistent",))), *rest)


def _members(module: Module, wanted: str) -> dict[str, dict[str, Any]]:
    """Return the fields of a class and of the bases that it imports, by name."""
    found: dict[str, dict[str, Any]] = {}
    for each in module.tree.body:
        if isinstance(each, ast.ClassDef) and each.name == wanted:
            for base in map(ast.unparse, each.bases):
                if (place := module.imported(base)) is not None:
                    found |= _members(*place)
            found |= dict(_fields(each, module))
    return found


def _fields(tree: ast.ClassDef, module: Module) -> Iterator[tuple[str, dict[str, Any]]]:
    texts = _docs(tree)
    for each in tree.body:
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
            continue
        kind, text, choices = _annotation(each.annotation)
        default = None if each.value is None else _value(each.value, module)
        if kind == "json" and isinstance(default, str | float):
            # A type with a name of its own.
            kind = "string" if isinstance(default, str) else "number"
        yield (
            each.target.id,
            {"kind": kind, "choices": choices, "default": default, "text": text or texts.get(each.target.id, "")},
        )


_OPERATORS: Final[Mapping[type[ast.operator], Callable[[Any, Any], object]]] = {
    ast.Mult: operator.mul, ast.Add: operator.add, ast.Sub: operator.sub, ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
}  # fmt: skip


def _value(tree: ast.expr, module: Module) -> object:
    """Return the value of a default: a literal, a constant, or numbers with operators; other source as it is."""
    match tree:
        case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
            one, other = _value(left, module), _value(right, module)
            if isinstance(one, int | float) and isinstance(other, int | float):
                return _OPERATORS[type(op)](one, other)
        case ast.Name(name):
            return _constant(name, module)
        case ast.Attribute(_, "AUTO"):
            return "auto"
        case ast.Attribute(ast.Name(outer), name) if (place := module.imported(outer)) is not None:
            return _constant(name, place[0])
        case _:
            with contextlib.suppress(ValueError, TypeError):
                return ast.literal_eval(tree)
    return ast.unparse(tree)


def _constant(name: str, module: Module) -> object:
    """Return the value of a constant that a module defines or imports; its name if that is not known."""
    for each in module.tree.body:
        match each:
            case ast.Assign([ast.Name(target)], value) if target == name:
                return _value(value, module)
            case ast.AnnAssign(ast.Name(target), value=ast.expr() as value) if target == name:
                return _value(value, module)
    place = module.imported(name)
    return name if place is None else _constant(place[1], place[0])


def _annotation(tree: ast.expr) -> tuple[str, str, tuple[str, ...]]:
    """Return the kind, the description and the choices of an annotated field."""
    text = ""
    if isinstance(tree, ast.Subscript) and ast.unparse(tree.value) == "Annotated" and isinstance(tree.slice, ast.Tuple):
        inner, *metas = tree.slice.elts
        for call in metas:
            for keyword in call.keywords if isinstance(call, ast.Call) else ():
                if keyword.arg == "description" and isinstance(keyword.value, ast.Constant):
                    text = str(keyword.value.value)
        kind, below, choices = _annotation(inner)
        return kind, text or below, choices
    if isinstance(tree, ast.BinOp) and ast.unparse(tree.right) == "None":
        return _annotation(tree.left)
    source = ast.unparse(tree)
    if isinstance(tree, ast.Subscript) and ast.unparse(tree.value) == "Literal":
        elements = tree.slice.elts if isinstance(tree.slice, ast.Tuple) else [tree.slice]
        return "choice", "", tuple(str(each.value) for each in elements if isinstance(each, ast.Constant))
    if source in ("list[str]", "tuple[str, ...]"):
        return "strings", "", ()
    return _KINDS.get(source, "json"), "", ()
