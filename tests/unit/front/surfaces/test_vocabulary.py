"""Operations have one name on Linckia's own surfaces, keep other programs' names on theirs, and are found by all."""

from __future__ import annotations

import re

import msgspec
import pytest

from proto import ops
from proto.approvals import ApprovalSettings, Rules
from proto.errors import InvalidParams
from proto.operation import ALL, CLIENT, COMPACT, CORE, REFERENCES, SURFACES, Access, Operation, Role
from proto.vocabulary import OTHER_NAMES, current_name
from services.front.surfaces.describe import describe
from services.front.surfaces.finding import _POINTER
from services.front.surfaces.surface import Surface

TABLE = ops.load()
OWN = (CORE, ALL, COMPACT)
TOOLS = [op for op in TABLE.values() if op.admits(CLIENT) and op.role in (Role.TOOL, Role.STEP)]
SURFACE = {name: Surface(name, TABLE) for name in SURFACES}
FORMER = {other for op in TOOLS for other in (*op.former, op.step) if other != op.name}
NAMED = re.compile(rf"(?<![\w./-])(?:{'|'.join(re.escape(each) for each in FORMER if not each.isalpha())})(?![\w-])")
"""Former names that are no English words."""


def names_of(op: Operation[object]) -> list[str]:
    return [op.name, *op.former]


def test_every_name_in_the_table_belongs_to_an_operation() -> None:
    assert set(OTHER_NAMES) <= set(TABLE)


@pytest.mark.parametrize("op", TOOLS, ids=lambda op: op.name)
def test_every_operation_is_a_noun_and_a_verb_in_snake_case(op: Operation[object]) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)+", op.name)


@pytest.mark.parametrize("op", TOOLS, ids=lambda op: op.name)
def test_every_operation_is_found_by_all_its_names_on_every_surface_that_has_it(op: Operation[object]) -> None:
    for name in names_of(op):
        assert TABLE.find(name) is op
        assert current_name(name) == op.name
        for surface in SURFACE.values():
            if op.name not in surface.callable:
                continue
            if op.role is Role.TOOL:
                assert surface.called[name] is op
            # On the surface of documents the steps have the names of that program only.
            if surface.name != "documents" and (found := surface.steps.find(op.name)) is not None:
                other = surface.steps.find(name)
                # `search` is a step of documents, and was the name of the tool for conversations.
                assert other is not None
                assert other[1] is op or other[1].step == name
                assert found[1] is op


@pytest.mark.parametrize("op", [op for op in TOOLS if op.role is Role.STEP], ids=lambda op: op.name)
def test_steps_are_found_by_their_former_names(op: Operation[object]) -> None:
    for surface in SURFACE.values():
        if surface.is_whole or op.name in surface.callable:
            found = surface.steps.find(op.step)
            assert found is not None
            assert found[1] is op


@pytest.mark.parametrize("op", [op for op in TOOLS if op.access is not Access.READ], ids=lambda op: op.name)
def test_approvals_choose_an_operation_by_all_its_names(op: Operation[object]) -> None:
    for name in (*names_of(op), op.step):
        assert Rules(ApprovalSettings(require=(name,))).choose(op)


@pytest.mark.parametrize("surface", OWN)
def test_former_names_are_not_listed_on_own_surfaces(surface: str) -> None:
    seen = SURFACE[surface]
    assert {tool["name"] for tool in seen.listed_tools} <= set(TABLE)
    shown = [*seen.listed_tools, *seen.listed_prompts, *seen.listed_templates, seen.instructions]
    described = [describe(seen.steps, name) for name in seen.steps.names()]
    for each in (*shown, *described, describe(seen.steps, None)):
        assert NAMED.findall(msgspec.json.encode(each).decode()) == []


@pytest.mark.parametrize("op", TOOLS, ids=lambda op: op.name)
def test_operations_that_a_description_points_at_exist_under_that_name(op: Operation[object]) -> None:
    for sentence in re.split(r"(?<=[.;!?])\s+", " ".join(op.description.split())):
        if (pointer := _POINTER.search(sentence)) is not None and len(pointer[1].split()) == pointer[1].count(",") + 1:
            named = set(pointer[1].split(", "))
            assert not named & FORMER, sentence


@pytest.mark.parametrize("surface", REFERENCES)
def test_other_programs_surfaces_keep_their_names(surface: str) -> None:
    seen = SURFACE[surface]
    renamed = {name for name, names in OTHER_NAMES.items() if names.former}
    assert {tool["name"] for tool in seen.listed_tools} & renamed == set()
    shown = msgspec.json.encode([seen.listed_tools, seen.listed_prompts, seen.instructions]).decode()
    assert re.findall(rf"(?<![\w-])(?:{'|'.join(renamed)})(?![\w-])", shown) == []


def test_describe_by_a_former_name_says_the_current_one() -> None:
    steps = SURFACE[ALL].steps
    assert describe(steps, "write-file")["op"] == "files_write"
    assert describe(SURFACE["files"].steps, "write-file")["op"] == "write-file"


@pytest.mark.parametrize(
    ("surface", "said", "shown"),
    [
        (
            "files",
            "/files_read/x is not indexed; call `files_index` first",
            "/files_read/x is not indexed; call `index` first",
        ),
        ("files", "'see trash_list' is missing; see trash_list", "'see trash_list' is missing; see list-trash"),
        (ALL, "see trash_list", "see trash_list"),
    ],
)
def test_failures_have_the_names_of_their_surface(surface: str, said: str, shown: str) -> None:
    failure = InvalidParams(said, field="path").failure
    assert SURFACE[surface].steps.spoken_failure(failure).message == shown


def test_steps_of_documents_are_found_by_all_names_and_outside_of_steps() -> None:
    for op in TOOLS:
        if op.role is Role.STEP and "documents" in op.surfaces:
            assert (found := SURFACE["documents"].steps.find(op.name)) is not None
            assert found[1] is op
            assert op.step == "search" or TABLE.find(op.step) is op


def test_titles_follow_the_names_of_a_surface() -> None:
    listed = {tool["name"]: tool["title"] for tool in SURFACE["files"].listed_tools}
    assert (listed["plan-list"], listed["delete-files"], listed["session-info"]) == (
        "List plans", "Delete files", "Session info",
    )  # fmt: skip
