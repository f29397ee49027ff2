"""What the audit log says that a call is about."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto import ops
from proto.operation import Access, Params
from proto.ops.observation import KernelPageCall
from proto.target import described, names
from proto.wire.frames import TARGET_CHARS
from services.documents.operations.adding import DocumentsAdd
from services.fetch.operations import Download
from services.files.operations.changes import DeleteFiles, MoveFiles, Relocation
from services.yaml.operations import NoyalibSet, SetEdit, YamlEdit

NAMELESS = {
    "graph_epoch": "it waits for the graph as a whole",
    "kernel_backup": "to where the settings say",
    "kernel_shutdown": "there is one system",
    "kernel_tokens_changed": "the tokens are in their file",
    "kernel_reload_mounts": "the mounts are in the settings",
    "files_import_runs": "an export as a whole",
    "kernel_call": "what it calls has a line of its own",
    "kernel_take_over": "the call has a line of its own",
    "memory_import": "an export as a whole",
    "memory_join": "a sync of many",
    "preferences_set": "those of the session",
    "changes_collect": "the records of all services",
    "notes_changes": "records of calls that have lines of their own",
    "yaml_changes": "records of calls that have lines of their own",
    "transcript_join": "a sync of many",
    "transcript_restore": "an export as a whole",
    "transcript_ingest": "a body that is read by its service alone",
}
"""Operations that change something and name nothing."""


@pytest.mark.parametrize(
    ("params", "told"),
    [
        (NoyalibSet(file="/n/a.yaml", path="a.b", value="s3cret"), "file=/n/a.yaml path=a.b"),
        (YamlEdit(file="/n/a.yaml", edits=[SetEdit(path="a", value="s3cret")]), "file=/n/a.yaml edits=(path=a)"),
        (DeleteFiles(paths=[f"/n/{n}" for n in range(9)]), "paths=/n/0,/n/1,/n/2,+6"),
        (MoveFiles(moves=[Relocation(from_="/a b", to="/c")]), 'moves=(from="/a b" to=/c)'),
        (DocumentsAdd(content="s3cret", name="x"), "name=x"),
        (Download(url="https://u:p4ss@h.example/a?key=s3cret#f"), "url=https://h.example/a"),
        (KernelPageCall(operation="kernel_stop", key="s3cret"), "operation=kernel_stop"),
    ],
)
def test_the_target_consists_of_the_parameters_that_name_things(params: Params[object], told: str) -> None:
    assert described(params) == told


def test_every_operation_that_changes_something_says_what_it_is_about() -> None:
    for op in ops.load(()).values():
        if op.access is not Access.READ:
            named = [field.encode_name for field in msgspec.structs.fields(op.params) if names(field.encode_name)]
            nested = {"copies", "renames", "moves", "groups", "nodes", "operations", "wanted"}
            assert named or nested.intersection(op.params.__struct_fields__) or op.name in NAMELESS, op.name


@pytest.mark.parametrize("name", ["content", "text", "value", "key", "token", "password", "query", "body", "message"])
def test_contents_and_secrets_name_nothing(name: str) -> None:
    assert not names(name)
    assert not names(f"file_{name}")


@given(st.text(st.characters(), max_size=2000), st.lists(st.text(st.characters(), max_size=300), max_size=9))
def test_the_target_is_bounded_and_can_always_be_sent(path: str, paths: list[str]) -> None:
    for params in (NoyalibSet(file=path, path=path, value=""), DeleteFiles(paths=paths)):
        told = described(params)
        assert len(told) <= TARGET_CHARS
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(told)) == told
        assert "\n" not in told
