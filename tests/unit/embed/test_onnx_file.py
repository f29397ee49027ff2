"""The ONNX writer against the package `onnx`, which writes and checks the whole format."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from services.embed.onnx_file import FLOAT, INT32, Constant, Node, Value, encoded

TABLE = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
CONSTANTS: dict[str, npt.NDArray[np.generic]] = {
    "table": TABLE,
    "columns": np.asfortranarray(TABLE),
    "bytes": np.array([0, 127, 128, 255], np.uint8),
    "signed": np.array([[-128, 127]], np.int8),
    "one": np.array(-(2**40), np.int64),
    "none": np.zeros((0, 4), np.float32),
}


def written() -> bytes:
    return encoded(
        [
            Node(kind="MatMul", inputs=("x", "table"), output="a"),
            Node(kind="ReduceMax", inputs=("a",), output="b", attributes={"axes": [-1, 300], "keepdims": 1}),
            Node(kind="Layer", inputs=("b", "mask"), output="y", domain="com.example", attributes={"epsilon": 1e-12}),
        ],
        [Constant(name=name, value=value) for name, value in CONSTANTS.items()],
        inputs=[Value(name="x", type=FLOAT, shape=["count", 3]), Value(name="mask", type=INT32, shape=["count"])],
        outputs=[Value(name="y", type=FLOAT, shape=["count", "length", 4])],
        operators={"": 17, "com.example": 1},
    )


def expected() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "table"], ["a"]),
        helper.make_node("ReduceMax", ["a"], ["b"], axes=[-1, 300], keepdims=1),
        helper.make_node("Layer", ["b", "mask"], ["y"], domain="com.example", epsilon=1e-12),
    ]
    graph = helper.make_graph(
        nodes,
        "encoder",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["count", 3]),
            helper.make_tensor_value_info("mask", TensorProto.INT32, ["count"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["count", "length", 4])],
        [numpy_helper.from_array(np.array(value, order="C"), name) for name, value in CONSTANTS.items()],
    )
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9)


def message(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without the order and the empty strings that both writers may choose freely."""
    for node in model.graph.node:
        node.ClearField("name")
        if not node.domain:
            node.ClearField("domain")
        attributes = sorted(node.attribute, key=lambda attribute: attribute.name)
        del node.attribute[:]
        node.attribute.extend(attributes)
    return model


def test_the_file_equals_the_one_written_by_the_package_onnx() -> None:
    assert message(onnx.load_from_string(written())) == message(expected())


def test_constants_come_back_as_they_were() -> None:
    for tensor in onnx.load_from_string(written()).graph.initializer:
        value = numpy_helper.to_array(tensor)
        assert value.dtype == CONSTANTS[tensor.name].dtype
        np.testing.assert_array_equal(value, CONSTANTS[tensor.name])


def test_the_package_onnx_finds_no_fault_with_a_file() -> None:
    model = encoded(
        [Node(kind="MatMul", inputs=("x", "table"), output="y")],
        [Constant(name="table", value=np.ones((3, 4), np.float32))],
        inputs=[Value(name="x", type=FLOAT, shape=["count", 3])],
        outputs=[Value(name="y", type=FLOAT, shape=["count", 4])],
        operators={"": 17},
    )
    onnx.checker.check_model(onnx.load_from_string(model), full_check=True)
