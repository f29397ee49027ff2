"""Additional parameters that clients of the references send mean the same here, or nothing; an unknown parameter that
would change the answer is refused by its name.
"""

from __future__ import annotations

from typing import Any

import pytest

from proto import ops
from proto.errors import InvalidParams

TABLE = ops.load()


@pytest.mark.parametrize(
    ("name", "sent", "meant"),
    [
        ("documents_search", {"q": "x", "use_session": True, "verbose": False, "color": "never"}, {"query": "x"}),
        ("documents_search", {"query": "x", "pathPattern": "*.md", "useSession": 1}, {"query": "x", "path": "*.md"}),
        ("documents_search", {"query": "x", "cwd": "/work", "after_context": 2},
         {"query": "x", "path": "/work", "context": 2}),
        ("documents_grep", {"pattern": "x", "use_session": True, "with_filename": True}, {"pattern": "x"}),
        ("documents_list", {"use_session": False, "include_diff": False}, {}),
        ("documents_get", {"name": "a", "includeContent": True, "use_session": True},
         {"name": "a", "include_content": True}),
        ("documents_add", {"directory_path": "/work", "include_patterns": ["*.md"]},
         {"path": "/work", "include": ["*.md"]}),
        ("documents_status", {"verbose": True}, {"detailed": True}),
        ("documents_download", {"url": "http://localhost/a", "concurrency": 4, "timeout_ms": 60000},
         {"url": "http://localhost/a"}),
    ],
)  # fmt: skip
def test_parameters_that_clients_of_a_reference_send_are_accepted(
    name: str, sent: dict[str, Any], meant: dict[str, Any]
) -> None:
    op = TABLE[name]
    assert op.parse(sent) == op.parse(meant)
    assert (
        not set(sent) & (set(op.params.taken) - set(op.params.__struct_fields__)) & set(op.input_schema["properties"])
    )


def test_unknown_parameters_that_would_change_the_answer_are_refused() -> None:
    with pytest.raises(InvalidParams, match="invert"):
        TABLE["documents_grep"].parse({"pattern": "x", "invert": True, "use_session": True})
    with pytest.raises(InvalidParams, match="the same parameter, given twice"):
        TABLE["documents_search"].parse({"query": "x", "cwd": "/a", "path": "/b"})
    # A name that stands for a parameter is a declared one, or nothing; and none is declared itself.
    for op in TABLE.values():
        names = set(op.params.__struct_encode_fields__)
        assert set(op.params.taken.values()) <= names | {""}
        assert not names & set(op.params.taken)
