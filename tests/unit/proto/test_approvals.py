"""Which calls wait for an approval, by the entries of `approvals.require`."""

from __future__ import annotations

import pytest

from proto import approvals, ops
from proto.approvals import ApprovalSettings, Rules
from proto.errors import InvalidParams
from proto.mounts import CHANGE, READ, REPEAT, MountRequest, operations_of

TABLE = ops.load()


def chosen(*require: str) -> set[str]:
    """The operations of these that wait."""
    rules = Rules(ApprovalSettings(require=require))
    names = ("yaml_get", "yaml_set", "files_delete", "memory_add", "memory_forget", "mcp_echo")
    return {name for name in names if name in TABLE and rules.choose(TABLE[name])}


def test_operations_are_chosen_by_their_access_or_by_name() -> None:
    assert chosen() == set()
    assert chosen("destructive") < chosen("write")
    assert "memory_forget" in chosen("destructive")
    assert "yaml_get" not in chosen("write")
    assert chosen("noyalib_*") == {"yaml_get", "yaml_set"}
    # A former name.
    assert chosen("mcp.echo") == set()
    assert chosen("mcp_echo") == {"mcp_echo"}


@pytest.mark.parametrize(
    ("entry", "kinds"),
    [
        ("write", {REPEAT, CHANGE}),
        ("destructive", {CHANGE}),
        ("mounts", {REPEAT, CHANGE}),
        ("mount:github", {REPEAT, CHANGE}),
        ("mount:other", set()),
        ("mcp.github.create_*", {READ, REPEAT, CHANGE}),
        ("mcp.*", {READ, REPEAT, CHANGE}),
        ("mcp.github.delete_*", set()),
    ],
)
def test_tools_of_mounted_servers_are_chosen_by_server_or_by_name(entry: str, kinds: set[str]) -> None:
    rules = Rules(ApprovalSettings(require=(entry,)))
    operations = operations_of("github")
    assert {kind for kind, op in operations.items() if rules.choose(op, "create_issue")} == kinds
    if entry.startswith("mcp."):
        assert not rules.choose(operations[READ], "")
        # A tool that the kernel cannot see may be any.
        assert rules.choose(operations[READ], None)


def test_a_request_cannot_hide_its_tool() -> None:
    MountRequest(method="tools/call", name="echo", params=b'{"name":"echo"}').check()
    MountRequest(method="resources/read", name="x://y", params=b"{}").check()
    for params in (b'{"name":"delete"}', b"{}", b"[]"):
        with pytest.raises(InvalidParams, match="params"):
            MountRequest(method="tools/call", name="echo", params=params).check()
    assert approvals.tool_of("tools/call", "") is None


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("noyalib_sett", "did you mean yaml_set"),
        ("destructiv", "did you mean destructive"),
        ("mount:githb", "did you mean github"),
        ("mcp.githb.*", "did you mean github"),
        ("mcp.github", "names no tool"),
        ("execute", "no operation that clients may call"),
        ("approval_decide", "no operation that clients may call"),
    ],
)
def test_an_entry_that_chooses_nothing_is_refused(entry: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        approvals.check([entry], TABLE.values(), ["github"])


def test_entries_that_choose_something_are_accepted() -> None:
    entries = ["destructive", "write", "mounts", "mount:github", "mcp.github.*", "mcp.*.delete_*", "noyalib_*"]
    approvals.check(entries, TABLE.values(), ["github"])
