"""Checks all steps of a composite call before any of them runs.

It checks the op, the names of its parameters, and every value except those that come from the previous step's result.
Whether a chained step has all required parameters is checked when the step runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

import msgspec
from msgspec import structs

from proto.errors import InvalidParams
from proto.json_types import JsonObject
from proto.lenient import converted
from proto.operation import REFERENCES, Operation, Params
from proto.suggestions import close
from proto.validation import respelled, validate
from services.front.surfaces.steps import Category, Steps

T = TypeVar("T")


class Planned(msgspec.Struct, frozen=True):
    """A checked step; `arguments` are keyed by the names that the operation declares."""

    where: str
    name: str
    operation: Operation[object]
    arguments: dict[str, object]
    references: frozenset[str]
    reference: bool = False
    """Whether errors name parameters as the operation declares them."""

    def params(self, previous: object) -> Params[object]:
        """Return the step's parameters, with references resolved in `previous`; unresolved ones count as absent.

        Raises:
            InvalidParams: a parameter is missing or invalid; the message names unresolved references.
        """
        arguments = dict(self.arguments)
        unresolved = {}
        for name in self.references:
            reference = str(arguments.pop(name))
            value = resolve(reference, previous)
            if value is None:
                unresolved[name] = reference
            else:
                arguments[name] = value
        try:
            return self.operation.parse(arguments, reference=self.reference)
        except InvalidParams as error:
            message = str(error)
            if unresolved:
                missing = ", ".join(f"`{name}` ({reference})" for name, reference in sorted(unresolved.items()))
                message += f"; the last step's result has nothing for {missing}"
                message += "".join(dict.fromkeys(_there(each, previous) for each in sorted(unresolved.values())))
            raise InvalidParams(message, field=error.failure.field) from None


def plan(tool: Category, steps: Steps, given: list[JsonObject], field: str, *, chained: bool) -> list[Planned]:
    """Check the steps and return them in order.

    Args:
        field: the parameter that holds the steps, for error messages.
        chained: whether parameters may refer to the previous step's result.

    Raises:
        InvalidParams: a step is wrong; names the first such step by its index in `field`.
    """
    planned = [_planned(tool, steps, step, f"{field}[{n}]", chained=chained) for n, step in enumerate(given)]
    first = planned[0]
    if first.references:
        # No result precedes the first step, so its references are unresolved.
        _named(first.where, first.name, first.params, {})
    return planned


def _planned(tool: Category, steps: Steps, step: JsonObject, where: str, *, chained: bool) -> Planned:
    if step.get("op") is None:
        raise InvalidParams(f"{where}: missing required parameter `op`", field=f"{where}.op")
    name = step["op"]
    if not isinstance(name, str):
        raise InvalidParams(f"{where}.op: expected the name of an op, as a string", field=f"{where}.op")
    operation = steps.step(tool, name, f"{where}.op")
    params = converted(dict[str, Any], step.get("params"))
    if not isinstance(params, dict | None):
        raise InvalidParams(f"{where}.params: expected an object", field=f"{where}.params")
    outer = {key: value for key, value in step.items() if key not in ("op", "params")}
    reference = steps.surface in REFERENCES
    return check(operation, name, outer, params or {}, where, chained=chained, reference=reference)


def check(
    operation: Operation[object],
    name: str,
    outer: Mapping[str, object],
    params: Mapping[str, object],
    where: str,
    *,
    chained: bool,
    reference: bool,
) -> Planned:
    """Check the parameters of one step; those in `params` override the `outer` ones, written next to `op`.

    Raises:
        InvalidParams: names the step, and the parameter as it was written.
    """
    if operation.is_foreign:
        given = {**outer, **params}
        return Planned(
            where, name, operation, given, frozenset(key for key in given if chained and is_reference(given[key]))
        )
    tp = operation.params
    arguments = dict(_named(where, name, respelled, tp, outer))
    inner = _named(where, name, respelled, tp, params)
    arguments |= {key: value for key, value in inner.items() if value is not None or key not in arguments}
    references = frozenset(key for key, value in arguments.items() if chained and is_reference(value))
    checked = partial(validate, _with_anything_for(tp, references) if references else tp, reference=reference)
    parsed = _named(where, name, checked, arguments)
    if not chained:
        _named(where, name, parsed.check)
    return Planned(where, name, operation, arguments, references, reference)


def _named(where: str, name: str, call: Callable[..., T], *args: Any) -> T:
    """Return what `call` returns; InvalidParams that it raises is raised again with the name of the step."""
    try:
        return call(*args)
    except InvalidParams as error:
        field = error.failure.field
        raise InvalidParams(
            f"{where} ({name}): {error}", field=f"{where}.params.{field}" if field else f"{where}.params"
        ) from None


@lru_cache(maxsize=1024)
def _with_anything_for(tp: type[Params[object]], names: frozenset[str]) -> type[Params[object]]:
    """Return a variant of `tp` that accepts any value for `names`, which are checked once they are resolved."""
    # Field definitions as `msgspec.defstruct` takes them.
    fields: list[Any] = []
    for field in structs.fields(tp):
        # At most one of the two is set; the other is `NODEFAULT`.  Any: each has the type of its field.
        default: dict[str, Any] = {"default": field.default, "default_factory": field.default_factory}
        kind = Any if field.encode_name in names else field.type
        fields.append((field.name, kind, msgspec.field(name=field.encode_name, **default)))
    relaxed = msgspec.defstruct(
        tp.__name__,
        fields,
        bases=(Params,),
        kw_only=True,
        forbid_unknown_fields=True,
        frozen=True,
        namespace={"common": tp.common, "taken": tp.taken},
    )
    return cast("type[Params[object]]", relaxed)


# A string parameter that starts with `$prev` stands for the previous step's result or a part of it, with its JSON type.
# Strings inside lists and objects are not replaced, nor is `$prev` in the middle of a string.

MARK = "$prev"

_LISTED = 20
"""Most members that an error lists, the most similar one first."""

_PATH = re.compile(r"\$prev((?:\.[^.\[\]]+|\[[0-9]{1,9}\])*)")
_PIECE = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]")


def is_reference(value: object) -> bool:
    """Whether this parameter value is a reference, replaced before the step runs."""
    return isinstance(value, str) and value.startswith(MARK)


def resolve(reference: str, previous: object) -> object:
    """Return what `reference` names in the previous step's result; None if it names nothing."""
    found, rest = _followed(reference, previous)
    return None if rest else found


def _followed(reference: str, previous: object) -> tuple[object, str]:
    """Follow a reference as far as it leads. Return what is there, and the rest of the reference."""
    match = _PATH.fullmatch(reference)
    if match is None:
        return previous, reference
    found = previous
    for piece in _PIECE.finditer(match[1]):
        field, index = piece.groups()
        if field and isinstance(found, Mapping) and field in found:
            found = found[field]
        elif index and isinstance(found, list) and int(index) < len(found):
            found = found[int(index)]
        else:
            return found, match[1][piece.start() :]
    return found, ""


def _there(reference: str, previous: object) -> str:
    """Return what exists where a reference leads nowhere; "" if that is nothing."""
    found, rest = _followed(reference, previous)
    where = reference.removesuffix(rest) or MARK
    match found:
        case Mapping() if found:
            names = [str(name) for name in found]
            near = close(piece[1], names, 1) if (piece := _PIECE.match(rest)) and piece[1] else []
            listed = ", ".join([*near, *(name for name in names if name not in near)][:_LISTED])
            more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            return f"; `{where}` has: {listed}{more}"
        case list():
            return f"; `{where}` has {len(found)} item{'' if len(found) == 1 else 's'}"
        case str() | int() | float():
            return f"; `{where}` is a {'text' if isinstance(found, str) else 'number or boolean'}"
    return ""
