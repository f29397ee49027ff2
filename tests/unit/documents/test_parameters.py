"""Rules that the types of the parameters cannot express are checked before any change of a batch begins."""

from __future__ import annotations

from typing import Any

import pytest

from proto.errors import InvalidParams
from proto.operation import Params, operation_of
from services.documents.operations.adding import DocumentsAdd
from services.documents.operations.change import DocumentsDelete, DocumentsRestore, DocumentsUpdate

OUT = {"output_directory": "out"}


@pytest.mark.parametrize(
    ("params", "arguments", "field"),
    [
        (DocumentsAdd, {}, "path"),
        (DocumentsAdd, {"content": "x"}, "name"),
        (DocumentsAdd, {"content": "x", "name": "n", "path": "p"}, "content"),
        (DocumentsAdd, {"url": "https://example.org/x"}, "url"),
        (DocumentsAdd, {"path": "p", "metadata": ["no pair"]}, "metadata"),
        (DocumentsUpdate, {}, "hash"),
        (DocumentsUpdate, {"name": "n"}, "metadata"),
        (DocumentsUpdate, {"name": "n", "metadata": ["=value"]}, "metadata"),
        (DocumentsDelete, {"dry_run": True}, "name"),
        (DocumentsRestore, OUT, "snapshot_id"),
        (DocumentsRestore, {**OUT, "collection": "c", "snapshot_id": "s"}, "snapshot_id"),
    ],
)
def test_wrong_parameters_are_refused_by_name(
    params: type[Params[Any]], arguments: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidParams) as refused:
        operation_of(params).parse(arguments)
    assert refused.value.failure.field == field


@pytest.mark.parametrize(
    ("params", "arguments"),
    [
        (DocumentsAdd, {"path": "p"}),
        (DocumentsAdd, {"content": "", "name": "n", "metadata": ["k=v=w"]}),
        (DocumentsUpdate, {"path": "p", "remove_tags": ["t"]}),
        (DocumentsDelete, {"tags": ["t"]}),
        (DocumentsDelete, {"snapshot_id": "s"}),
        (DocumentsRestore, {**OUT, "collection": "c"}),
    ],
)
def test_right_parameters_are_accepted(params: type[Params[Any]], arguments: dict[str, object]) -> None:
    assert isinstance(operation_of(params).parse(arguments), params)
