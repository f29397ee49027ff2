"""Results without what says nothing, for the surfaces that follow no other program's contract.

Left out are members that are null, false, 0 or empty if the result's type declares that as their default, optional
members that are null, and members that the type marks (`proto.operation.IF_ANY` and `FOR_PROGRAMS`). What a client or
a file supplied, of a type that is not declared, stays as it is.

From a result's declared type, a second type is derived once. It omits these members when it is encoded, and takes all
others as they are, without reading them where it can. So JSON that a service wrote is decoded and encoded in C. If a
type has nothing to omit, nothing is done.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec import NODEFAULT, UNSET, Raw, UnsetType, inspect

from proto.operation import FOR_PROGRAMS, IF_ANY, Operation

_LISTS = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)
_SCALARS: dict[type[inspect.Type], Any] = {
    inspect.NoneType: None,
    inspect.BoolType: bool,
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.StrType: str,
}
_EMPTY: tuple[object, ...] = (None, False, 0, "")
"""Values that msgspec compares with a default by identity, since there is only one of each."""


class Terse(NamedTuple):
    """Converts results of one type; what it returns is encoded without the members that say nothing."""

    of_json: Callable[[Raw], object]
    of_plain: Callable[[object], object]

    def __call__(self, value: object) -> object:
        return self.of_json(value) if isinstance(value, Raw) else self.of_plain(value)


def terse(operation: Operation[object]) -> Terse | None:
    """Return what makes an operation's results terse; None if they have nothing to omit."""
    return None if operation.is_content or operation.is_foreign else _of_type(operation.result)


def builtins(operation: Operation[object], value: object) -> object:
    """Return a result in JSON's types without the members that say nothing."""
    convert = terse(operation)
    return value if convert is None else msgspec.to_builtins(convert(value), str_keys=True)


@cache
def _of_type(tp: Any) -> Terse | None:
    info = inspect.type_info(tp)
    of_json, of_plain = _Deriving(Raw).derived(info), _Deriving(Any).derived(info)
    if of_json is None or of_plain is None:
        return None
    decode = msgspec.json.Decoder(of_json).decode

    def convert(value: object) -> object:
        return msgspec.convert(value, of_plain)

    return Terse(decode, convert)


class _Deriving:
    """Derives types that omit members.

    Args:
        untouched: the type of members that are taken as they are.
    """

    def __init__(self, untouched: Any) -> None:
        self._untouched = untouched
        self._known: dict[type, Any] = {}
        """The type derived from each, or None while it is being derived."""
        self._omitting: set[type] = set()

    def derived(self, info: inspect.Type) -> Any:
        """Return the type that omits members; None if it would omit nothing."""
        info = _bare(info)
        match info:
            case inspect.StructType() if not info.array_like:
                return self._struct(info)
            case inspect.DictType():
                value = self.derived(info.value_type) if isinstance(_bare(info.key_type), inspect.StrType) else None
                return None if value is None else dict[str, value]  # type: ignore[valid-type]  # made here
            case inspect.UnionType():
                return self._union(info)
        if isinstance(info, _LISTS):
            item = self.derived(info.item_type)
            return None if item is None else list[item]  # type: ignore[valid-type]  # made here
        return None

    def _union(self, info: inspect.UnionType) -> Any:
        derived = [self.derived(each) for each in info.types]
        if all(each is None for each in derived):
            return None
        union: Any = UnsetType
        for each, made in zip(map(_bare, info.types), derived, strict=True):
            chosen = self._as_it_is(each) if made is None else made
            if chosen is UNSET:
                return None
            union |= chosen
        return union

    def _as_it_is(self, info: inspect.Type) -> Any:
        """Return the type of an alternative that omits nothing; UNSET if there is none that changes nothing."""
        if isinstance(info, inspect.StructType):
            # Not the type itself, which would add its defaults.
            return self._known.get(info.cls) or UNSET
        return _SCALARS.get(type(info), UNSET)

    def _struct(self, info: inspect.StructType) -> Any:
        if info.cls in self._known:
            return self._known[info.cls] if info.cls in self._omitting else None
        # Within itself, a type is taken as it is.
        self._known[info.cls] = None
        fields: list[Any] = []
        omits = False
        for field in info.fields:
            said = _marked(field.type)
            if said == FOR_PROGRAMS:
                omits = True
                continue
            derived = self.derived(field.type)
            kind = self._untouched if derived is None else derived
            default: Any = UNSET
            if (empty := _empty_default(field, said)) is not _NOTHING:
                omits = True
                # Its value is compared with the default, for which it must be read.
                kind = Any if derived is None else derived | UnsetType
                default = empty
            elif derived is not None:
                omits = True
            kind = kind if kind is Any else kind | UnsetType
            given = {"default_factory": default} if isinstance(default, type) else {"default": default}
            fields.append((field.name, kind, msgspec.field(name=field.encode_name, **given)))
        self._known[info.cls] = msgspec.defstruct(
            info.cls.__name__, fields, kw_only=True, omit_defaults=True, gc=False, frozen=True,
            tag=info.tag, tag_field=info.tag_field,
        )  # fmt: skip
        if not omits:
            return None
        self._omitting.add(info.cls)
        return self._known[info.cls]


_NOTHING = object()


def _empty_default(field: inspect.Field, said: str) -> Any:
    """Return the value of a member that says nothing, or the type of such a value; `_NOTHING` if every value counts."""
    if field.default is not NODEFAULT:
        default = msgspec.to_builtins(field.default)
    elif field.default_factory is not NODEFAULT:
        default = msgspec.to_builtins(field.default_factory())
    else:
        default = _NOTHING
    types = _choices(field.type)
    if any(isinstance(each, inspect.AnyType | inspect.RawType) for each in types):
        return _NOTHING
    if default in ([], ()) or (said and any(isinstance(each, _LISTS) for each in types)):
        return list
    if default == {} or (said and any(isinstance(each, inspect.DictType) for each in types)):
        return dict
    if default is _NOTHING and said:
        return next((_ZEROS[type(each)] for each in types if type(each) in _ZEROS), _NOTHING)
    if default is _NOTHING or default is None:
        return None if any(isinstance(each, inspect.NoneType) for each in types) else _NOTHING
    return default if not isinstance(default, float) and any(default is each for each in _EMPTY) else _NOTHING


_ZEROS: dict[type[inspect.Type], object] = {
    inspect.NoneType: None,
    inspect.BoolType: False,
    inspect.IntType: 0,
    inspect.StrType: "",
}


def _choices(info: inspect.Type) -> tuple[inspect.Type, ...]:
    info = _bare(info)
    if isinstance(info, inspect.UnionType):
        return tuple(choice for each in info.types for choice in _choices(each))
    return (info,)


def _bare(info: inspect.Type) -> inspect.Type:
    while isinstance(info, inspect.Metadata):
        info = info.type
    return info


def _marked(info: inspect.Type) -> str:
    """Return how the type marks a member; "" if it does not."""
    while isinstance(info, inspect.Metadata):
        for mark in (FOR_PROGRAMS, IF_ANY):
            if mark in (info.extra_json_schema or {}):
                return mark
        info = info.type
    return ""
