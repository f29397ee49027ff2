"""Encodes a graph of operators as an ONNX file.

It writes only the messages and fields that such a graph needs; field numbers are those of `onnx/onnx.proto`. The
package `onnx`, which writes all of the format, takes 35 MB on disk.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

IR_VERSION = 9
FLOAT, INT32 = 1, 6
"""Types of tensors (TensorProto.DataType)."""

_TYPES = {"float32": FLOAT, "uint8": 2, "int8": 3, "int32": INT32, "int64": 7}
_ATTRIBUTE_FLOAT, _ATTRIBUTE_INT, _ATTRIBUTE_INTS = 1, 2, 7
_VARINT, _BYTES, _FLOAT = 0, 2, 5
"""Wire types of protobuf."""

Attribute = int | float | Sequence[int]
Shape = Sequence[int | str]
"""Length of each axis; a name for one that varies."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """An operator with one output; `domain` is empty for those of the ONNX standard."""

    kind: str
    inputs: tuple[str, ...]
    output: str
    domain: str = ""
    attributes: Mapping[str, Attribute] = {}


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output of the graph."""

    name: str
    type: int
    shape: Shape


class Constant(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor stored in the file."""

    name: str
    value: npt.NDArray[np.generic]


def encoded(
    nodes: Iterable[Node],
    constants: Iterable[Constant],
    *,
    inputs: Iterable[Value],
    outputs: Iterable[Value],
    operators: Mapping[str, int],
) -> bytes:
    """Encode a model (ModelProto).

    Args:
        nodes: in an order in which each comes after its inputs.
        operators: versions of the operator sets by domain.

    Raises:
        KeyError: a constant has a type that is not supported.
    """
    graph = [_field(1, _node(node)) for node in nodes]
    graph.append(_field(2, "encoder"))
    for constant in constants:
        graph += _tensor(constant)
    graph += [_field(11, _value(value)) for value in inputs]
    graph += [_field(12, _value(value)) for value in outputs]
    sets = [_field(8, _field(1, domain) + _field(2, version)) for domain, version in operators.items()]
    return b"".join([_field(1, IR_VERSION), *sets, _head(7, _BYTES), _varint(sum(map(len, graph))), *graph])


def _node(node: Node) -> bytes:
    fields = [*(_field(1, name) for name in node.inputs), _field(2, node.output), _field(4, node.kind)]
    fields += [_field(5, _attribute(name, value)) for name, value in node.attributes.items()]
    return b"".join([*fields, _field(7, node.domain)])


def _attribute(name: str, value: Attribute) -> bytes:
    if isinstance(value, float):
        return _field(1, name) + _field(2, value) + _field(20, _ATTRIBUTE_FLOAT)
    if isinstance(value, int):
        return _field(1, name) + _field(3, value) + _field(20, _ATTRIBUTE_INT)
    return _field(1, name) + b"".join(_field(8, each) for each in value) + _field(20, _ATTRIBUTE_INTS)


def _tensor(constant: Constant) -> list[bytes]:
    """Return field 5 of the graph, in parts, since joining them would copy the weights."""
    value = constant.value
    data = np.ascontiguousarray(value, value.dtype.newbyteorder("<")).tobytes()
    head = [*(_field(1, length) for length in value.shape), _field(2, _TYPES[value.dtype.name])]
    head += [_field(8, constant.name), _head(9, _BYTES), _varint(len(data))]
    return [_head(5, _BYTES), _varint(sum(map(len, head)) + len(data)), *head, data]


def _value(value: Value) -> bytes:
    axes = [_field(1, length) if isinstance(length, int) else _field(2, length) for length in value.shape]
    shape = b"".join(_field(1, axis) for axis in axes)
    return _field(1, value.name) + _field(2, _field(1, _field(1, value.type) + _field(2, shape)))


def _field(number: int, value: bytes | str | float) -> bytes:
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return _head(number, _BYTES) + _varint(len(value)) + value
    if isinstance(value, int):
        return _head(number, _VARINT) + _varint(value)
    return _head(number, _FLOAT) + struct.pack("<f", value)


def _head(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
