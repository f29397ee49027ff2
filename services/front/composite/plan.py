"""Steps as a client wrote them, checked before any of them runs.

Whatever can be known beforehand is: the op, the names of its parameters, and every value but those that the last
step's result will give.  Whether a reading step has all that it needs is its own to say, at its turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import structs

from linckia.proto.errors import InvalidParams
from linckia.proto.json_types import JsonObject
from linckia.proto.lenient import converted
from linckia.proto.operation import Operation, Params
from linckia.proto.surfaces.steps import Category, Steps
from linckia.proto.validation import respelled, validate

T = TypeVar("T")


class Planned(msgspec.Struct, frozen=True):
    """A step that may run; `arguments` are under the names that the operation declares."""

    where: str
    name: str
    operation: Operation[object]
    arguments: dict[str, object]
    references: frozenset[str]

    def params(self, previous: object) -> Params[object]:
        """The step's parameters, references resolved in `previous`; one that leads nowhere counts as absent.  Raises
        InvalidParams: names the parameter, and the reference where that is what it lacks."""
        arguments = dict(self.arguments)
        lost = {}
        for name in self.references:
            reference = str(arguments.pop(name))
            value = resolve(reference, previous)
            if value is None:
                lost[name] = reference
            else:
                arguments[name] = value
        try:
            return self.operation.parse(arguments)
        except InvalidParams as error:
            said = str(error)
            if lost:
                gone = ", ".join(f"`{name}` ({reference})" for name, reference in sorted(lost.items()))
                said += f"; the last step's result has nothing for {gone}"
            raise InvalidParams(said, field=error.failure.field) from None


def plan(tool: Category, steps: Steps, given: list[JsonObject], field: str, *, chained: bool) -> list[Planned]:
    """The steps, in order; `chained`, their parameters may refer to the result before.  Raises InvalidParams: of the
    first that cannot run; names it by its place in `field`."""
    planned = [_planned(tool, steps, step, f"{field}[{n}]", chained=chained) for n, step in enumerate(given)]
    first = planned[0]
    if first.references:
        # Nothing comes before it, so what its references give is known already.
        _named(first.where, first.name, first.params, {})
    return planned


def _planned(tool: Category, steps: Steps, step: JsonObject, where: str, *, chained: bool) -> Planned:
    if step.get("op") is None:
        raise InvalidParams(f"{where}: missing required parameter `op`", field=f"{where}.op")
    name = step["op"]
    if not isinstance(name, str):
        raise InvalidParams(f"{where}.op: it is the name of an op, as a string", field=f"{where}.op")
    operation = steps.step(tool, name, f"{where}.op")
    params = converted(dict[str, Any], step.get("params"))
    if not isinstance(params, dict | None):
        raise InvalidParams(f"{where}.params: expected an object", field=f"{where}.params")
    beside = {key: value for key, value in step.items() if key not in ("op", "params")}
    return check(operation, name, beside, params or {}, where, chained=chained)


def check(
    operation: Operation[object],
    name: str,
    beside: Mapping[str, object],
    params: Mapping[str, object],
    where: str,
    *,
    chained: bool,
) -> Planned:
    """Parameters of one step, checked; those in `params` win over those `beside` it.  Raises InvalidParams: names the
    step, and the parameter as it was written."""
    tp = operation.params
    arguments = dict(_named(where, name, respelled, tp, beside))
    inner = _named(where, name, respelled, tp, params)
    arguments |= {key: value for key, value in inner.items() if value is not None or key not in arguments}
    references = frozenset(key for key, value in arguments.items() if chained and is_reference(value))
    parsed = _named(where, name, validate, _with_anything_for(tp, references) if references else tp, arguments)
    if not chained:
        _named(where, name, parsed.check)
    return Planned(where, name, operation, arguments, references)


def _named(where: str, name: str, call: Callable[..., T], *args: Any) -> T:
    """What `call` answers; an error of it says at which step."""
    try:
        return call(*args)
    except InvalidParams as error:
        field = error.failure.field
        raise InvalidParams(
            f"{where} ({name}): {error}", field=f"{where}.params.{field}" if field else f"{where}.params"
        ) from None


@lru_cache(maxsize=1024)
def _with_anything_for(tp: type[Params[object]], names: frozenset[str]) -> type[Params[object]]:
    """Parameters as `tp` that take any value for `names`, which are checked once they are known."""
    # As `msgspec.defstruct` takes them, in three forms.
    fields: list[Any] = []
    for field in structs.fields(tp):
        # Of the two that there is no more than one of, the other says so itself; each is of its field's own type.
        default: dict[str, Any] = {"default": field.default, "default_factory": field.default_factory}
        kind = Any if field.encode_name in names else field.type
        fields.append((field.name, kind, msgspec.field(name=field.encode_name, **default)))
    relaxed = msgspec.defstruct(
        tp.__name__, fields, bases=(Params,), kw_only=True, forbid_unknown_fields=True, frozen=True
    )
    return cast("type[Params[object]]", relaxed)


# A parameter that is a string and starts with `$prev` is the last step's result or a part of it, with its JSON type.
# Text within lists and objects, and `$prev` in the middle of a text, stay as they are.

MARK = "$prev"

_PATH = re.compile(r"\$prev((?:\.[^.\[\]]+|\[[0-9]{1,9}\])*)")
_PIECE = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]")


def is_reference(value: object) -> bool:
    """Whether the value of a parameter is replaced before the step runs."""
    return isinstance(value, str) and value.startswith(MARK)


def resolve(reference: str, previous: object) -> object:
    """What `reference` names in the last step's result; None where that leads nowhere."""
    match = _PATH.fullmatch(reference)
    if match is None:
        return None
    found = previous
    for field, index in _PIECE.findall(match[1]):
        if field and isinstance(found, Mapping) and field in found:
            found = found[field]
        elif index and isinstance(found, list) and int(index) < len(found):
            found = found[int(index)]
        else:
            return None
    return found
