"""Arguments as models write them: null for an optional parameter, and numbers, booleans, lists and objects as text.

`proto.validation` calls this only if strict decoding failed. A string is read as JSON only if its type admits no
string and the JSON value has that type, so a value that could be meant as a string is never converted. Anything
uncertain is left unchanged, and the caller reports the original error.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import NoneType
from typing import Any, TypeAlias

import msgspec
from msgspec import inspect

_Types: TypeAlias = tuple[inspect.Type, ...]

_LISTS = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)
_OBJECTS = (inspect.StructType, inspect.DictType)
_BOOLEANS = {"true": True, "false": False}
"""Compared without case, since models also write Python's `True`."""


def mended(tp: object, value: object) -> object:
    """Convert every part of `value` whose meaning is certain; returns the same object if there is none."""
    return _mended(_choices_of(tp), value)


@lru_cache(maxsize=4096)
def _choices_of(tp: Any) -> _Types:
    return _choices(inspect.type_info(tp))


def _choices(info: inspect.Type) -> _Types:
    """The members of a union, or the type alone."""
    if isinstance(info, inspect.Metadata):
        return _choices(info.type)
    return info.types if isinstance(info, inspect.UnionType) else (info,)


def _mended(choices: _Types, value: object) -> object:
    if isinstance(value, str):
        value = _read(choices, value)
    if isinstance(value, Mapping):
        return _of_object(choices, value)
    if isinstance(value, list):
        lists = [each for each in choices if isinstance(each, _LISTS)]
        if len(lists) == 1:
            return _of_items(_choices(lists[0].item_type), value)
    return value


def _of_items(choices: _Types, items: list[object]) -> list[object]:
    put = [_mended(choices, each) for each in items]
    return items if all(new is old for new, old in zip(put, items, strict=True)) else put


def _of_object(choices: _Types, value: Mapping[str, object]) -> object:
    candidates = [each for each in choices if isinstance(each, _OBJECTS)]
    if len(candidates) > 1:
        # The tag says which Struct is meant.
        structs = [each for each in candidates if isinstance(each, inspect.StructType) and each.tag is not None]
        candidates = [each for each in structs if value.get(each.tag_field or "") == each.tag]
    if len(candidates) != 1:
        return value
    (found,) = candidates
    put: dict[str, object] = {}
    fields = {field.encode_name: field for field in found.fields} if isinstance(found, inspect.StructType) else {}
    for name, item in value.items():
        if isinstance(found, inspect.DictType):
            put[name] = _mended(_choices(found.value_type), item)
        elif (field := fields.get(name)) is None:
            put[name] = item
        else:
            new = _mended(_choices(field.type), item)
            if new is not None or field.required or _takes_null(_choices(field.type)):
                put[name] = new
    unchanged = len(put) == len(value) and all(put[name] is item for name, item in value.items())
    return value if unchanged else put


def _takes_null(choices: _Types) -> bool:
    return any(isinstance(each, inspect.NoneType | inspect.AnyType | inspect.RawType) for each in choices)


def _read(choices: _Types, text: str) -> object:
    """Decode `text` as JSON; returns it unchanged if a string is admitted or the value has none of the types."""
    kinds: set[type] = {NoneType}
    for each in choices:
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
                return text
    if bool in kinds and (found := _BOOLEANS.get(text.strip().lower())) is not None:
        return found
    try:
        read: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text
    if type(read) is float and int in kinds and float not in kinds and read.is_integer():
        return int(read)
    return read if type(read) in kinds else text
