"""Arguments as models write them: null for an optional parameter, and numbers, booleans, lists and objects as text.

`proto.validation` calls this only if strict decoding failed. A string is read as JSON only if its type admits no
string and the JSON value has that type, so a value that could be meant as a string is never converted. Anything
uncertain is left unchanged, and the caller reports the original error.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import cached_property, lru_cache
from types import NoneType
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

_LISTS = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)
_ANYTHING = (inspect.NoneType, inspect.AnyType, inspect.RawType)
_BOOLEANS = {"true": True, "false": False}
"""Compared without case, since models also write Python's `True`."""


def converted(tp: object, value: object) -> object:
    """Convert every part of `value` whose meaning is certain; return the same object if there is nothing to convert."""
    return _of(tp).convert(value)


@lru_cache(maxsize=4096)
def _of(tp: Any) -> _Converter:
    return _Converter(inspect.type_info(tp))


def _choices(info: inspect.Type) -> tuple[inspect.Type, ...]:
    """Return the members of a union, or the type itself, without the descriptions around them."""
    if isinstance(info, inspect.Metadata):
        return _choices(info.type)
    if isinstance(info, inspect.UnionType):
        return tuple(choice for each in info.types for choice in _choices(each))
    return (info,)


class _Field(NamedTuple):
    converter: _Converter
    may_be_absent: bool
    """Whether null means that the field is absent: it is optional, and its type does not admit null."""


class _Converter:
    """Converts values for one type. Since types nest, converters for members are created when first needed."""

    def __init__(self, info: inspect.Type) -> None:
        self._types = _choices(info)
        self._kinds = _kinds(self._types)
        self.takes_null = any(isinstance(each, _ANYTHING) for each in self._types)

    @cached_property
    def is_idle(self) -> bool:
        """Whether it never changes anything, as for strings and lists of strings."""
        members = (self._item, self._value)
        return self._kinds is None and not self._structs and all(each is None or each.is_idle for each in members)

    @cached_property
    def _item(self) -> _Converter | None:
        lists = [each for each in self._types if isinstance(each, _LISTS)]
        return _Converter(lists[0].item_type) if len(lists) == 1 else None

    @cached_property
    def _value(self) -> _Converter | None:
        mappings = [each for each in self._types if isinstance(each, inspect.DictType)]
        return _Converter(mappings[0].value_type) if len(mappings) == 1 else None

    @cached_property
    def _structs(self) -> list[inspect.StructType]:
        return [each for each in self._types if isinstance(each, inspect.StructType)]

    def convert(self, value: object) -> object:
        """See `converted`."""
        if isinstance(value, str):
            value = value if self._kinds is None else _read(self._kinds, value)
        if isinstance(value, list):
            if self._item is None or self._item.is_idle:
                return value
            items = list(map(self._item.convert, value))
            return value if all(map(operator.is_, items, value)) else items
        if not isinstance(value, Mapping):
            return value
        if self._value is not None and not self._structs:
            if self._value.is_idle:
                return value
            convert = self._value.convert
            put = {key: convert(item) for key, item in value.items()}
            return value if all(map(operator.is_, put.values(), value.values())) else put
        structs = self._structs
        if len(structs) > 1:
            # The tag says which Struct is meant.
            structs = [each for each in structs if each.tag is not None and value.get(each.tag_field or "") == each.tag]
        return _of_struct(structs[0].cls, value) if len(structs) == 1 else value


@lru_cache(maxsize=4096)
def _fields(cls: type[msgspec.Struct]) -> Mapping[str, _Field]:
    info = inspect.type_info(cls)
    found = {}
    for field in info.fields if isinstance(info, inspect.StructType) else ():
        converter = _Converter(field.type)
        found[field.encode_name] = _Field(converter, not field.required and not converter.takes_null)
    return found


def _of_struct(cls: type[msgspec.Struct], value: Mapping[str, object]) -> object:
    fields = _fields(cls)
    put: dict[str, object] = {}
    gone = []
    for name, old in value.items():
        if (field := fields.get(name)) is None or (old is not None and field.converter.is_idle):
            continue
        new = None if old is None else field.converter.convert(old)
        if new is None and field.may_be_absent:
            gone.append(name)
        elif new is not old:
            put[name] = new
    if not (put or gone):
        return value
    changed = {**value, **put}
    for name in gone:
        del changed[name]
    return changed


def _kinds(types: tuple[inspect.Type, ...]) -> frozenset[type] | None:
    """Return the Python types that JSON of these types decodes to; None if one of them admits a string."""
    kinds: set[type] = {NoneType}
    for each in types:
        match each:
            case inspect.BoolType():
                kinds.add(bool)
            case inspect.IntType():
                kinds.add(int)
            case inspect.FloatType():
                kinds |= {int, float}
            case inspect.NoneType():
                pass
            case inspect.LiteralType() if all(isinstance(value, int) for value in each.values):
                kinds.add(int)
            case inspect.StructType() | inspect.DictType():
                kinds.add(dict)
            case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
                kinds.add(list)
            case _:
                return None
    return frozenset(kinds)


def _read(kinds: frozenset[type], text: str) -> object:
    """Decode `text` as JSON; return it unchanged if the value has none of these types."""
    if bool in kinds and (found := _BOOLEANS.get(text.strip().lower())) is not None:
        return found
    try:
        read: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text
    if type(read) is float and int in kinds and float not in kinds and read.is_integer():
        return int(read)
    return read if type(read) in kinds else text
