"""Everyday descriptions of a task find its operation on every surface that reaches all operations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proto import ops
from services.front.surfaces.describe import describe
from services.front.surfaces.finding import _SAID, _terms
from services.front.surfaces.steps import Steps

CASES = Path(__file__).parents[4] / "shared/cases/reports/second/cases.json"
TABLE = ops.load()
STEPS = Steps("all", TABLE)
EVERY = {name: op for group in STEPS.ops.values() for name, op in group.items()}


def named(name: str) -> str:
    """The current name of an operation."""
    found = STEPS.find(name)
    assert found is not None
    return found[1].name


SHOWN = 5
"""Twelve are answered; a reader looks at the first five."""

TASKS = [
    ("undo a deletion", {"trash_restore", "documents_restore"}),
    ("get back a deleted file", {"trash_restore"}),
    ("I deleted something by accident, how do I recover it", {"trash_restore"}),
    ("unerase", {"trash_restore"}),
    ("bring back an older version of a stored folder", {"documents_restore"}),
    ("restore documents that were deleted", {"documents_restore"}),
    ("rename a note", {"notes_rename"}),
    ("give a note a different title and keep links working", {"notes_rename"}),
    ("who calls this function", {"documents_graph"}),
    ("where is this class used", {"documents_graph"}),
    ("find usages of a function", {"documents_graph"}),
    ("how much did this conversation cost", {"chats_list"}),
    ("how many tokens did I spend on chats", {"chats_list"}),
    ("what did we talk about last week", {"chats_search"}),
    ("continue an old chat", {"chats_read"}),
    ("erase a message from a past conversation", {"chats_delete"}),
    ("which files are the same", {"files_duplicates"}),
    ("photos that exist more than once", {"files_duplicates"}),
    ("what is filling up my disk", {"disk_top_files"}),
    ("biggest folders", {"disk_top_folders"}),
    ("how much room is left on the drive", {"disk_free"}),
    ("remove a file", {"files_delete"}),
    ("get rid of a folder", {"files_delete"}),
    ("what is in the trash", {"trash_list"}),
    ("empty the recycle bin", {"trash_empty"}),
    ("put a file somewhere else", {"files_move"}),
    ("compare two files", {"files_diff"}),
    ("diff a file with an older version of it", {"files_diff"}),
    ("copy a folder", {"files_copy"}),
    ("make a copy of a file", {"files_copy"}),
    ("change a few lines in a text file", {"files_edit"}),
    ("show me the contents of a file", {"files_read"}),
    ("look for a regex in my source code", {"files_grep"}),
    ("jot down a meeting note", {"notes_write"}),
    ("add a paragraph to a note", {"notes_edit"}),
    ("which notes point to this one", {"notes_links"}),
    ("find dead links in my notes", {"notes_status"}),
    ("notes with the tag budget", {"notes_tagged"}),
    ("how are these two notes connected", {"graph_path"}),
    ("what does the user like", {"memory_recall"}),
    ("keep in mind that the user prefers tabs", {"memory_add"}),
    ("erase a memory about me", {"memory_forget"}),
    ("change the port in a config file", {"yaml_set"}),
    ("delete a key from a yaml file", {"yaml_delete"}),
    ("merge two yaml files", {"yaml_merge"}),
    ("check a config against a schema", {"yaml_validate"}),
    ("fetch a web page and keep it", {"documents_download"}),
    ("save a document for later", {"documents_add"}),
    ("label a stored document", {"documents_update"}),
    ("list older versions of a folder", {"documents_snapshots"}),
    ("sort new downloads automatically", {"plans_create"}),
    ("watch a folder for changes", {"sources_create", "watch"}),
    ("is the search service running", {"kernel_status"}),
    ("restart a service that hangs", {"services_restart"}),
    ("look everywhere for the licence question", {"everything_search"}),
]


@pytest.mark.parametrize(("task", "wanted"), TASKS)
def test_a_task_in_everyday_words_finds_its_operation(task: str, wanted: set[str]) -> None:
    assert wanted <= set(STEPS.index.ranked(task)[:SHOWN])


OWN = [
    {"words": "files in a directory", "first_three": ["files_browse"]},
    {"words": "what did I miss since yesterday", "first_three": ["events_read"]},
    {"words": "set an alarm for every morning", "first_three": ["timers_create"]},
    {"words": "who am I", "first_three": ["memory_recall", "memory_list"]},
    {"words": "is my background job done yet", "first_three": ["tasks_get", "tasks_list"]},
    {"words": "mkdir projects", "first_three": ["folders_create"]},
    {"words": "make a new directory", "first_three": ["folders_create"]},
    {"words": "create an empty folder", "first_three": ["folders_create"]},
    {"words": "send an email to Ana", "none": True},
    {"words": "run a shell command", "none": True},
    {"words": "write a new note in a folder", "first_three": ["notes_write"]},
    {"words": "add a folder to the documents", "first_three": ["documents_add"]},
]  # fmt: skip

# What was reported before folders could be made is superseded.
REPORTED = list(
    {
        case["words"]: case for case in (*(json.loads(CASES.read_text())["describe"] if CASES.exists() else ()), *OWN)
    }.values()
)


@pytest.mark.parametrize("surface", ["core", "all", "compact"])
@pytest.mark.parametrize("case", REPORTED, ids=lambda case: str(case["words"]))
def test_the_right_operation_is_among_the_first_three_or_none_is_claimed(surface: str, case: dict[str, Any]) -> None:
    found = describe(Steps(surface, TABLE), None, case["words"])
    if case.get("none"):
        assert found["ops"] == []
        assert found["note"].startswith("nothing ")
    else:
        wanted = {named(name) for name in case["first_three"]}
        assert wanted & {each["op"] for each in found["ops"][:3]}, found["ops"][:5]


@pytest.mark.parametrize("surface", ["core", "all", "compact"])
def test_describe_finds_what_undoes_a_deletion(surface: str) -> None:
    found = describe(Steps(surface, TABLE), None, "undo a deletion")["ops"]
    assert found[0]["op"] == "trash_restore"
    assert {"trash_restore", "documents_restore"} <= {each["op"] for each in found}
    assert {each["in"] for each in found if each["op"].startswith("documents_restore")} == {"ops_execute"}


def test_mentions_of_other_operations_in_a_description_do_not_count() -> None:
    # `Other files: files_rename.` is in what notes_rename says of itself.
    assert STEPS.index.ranked("wikilinks markdown")
    assert STEPS.index.ranked("files_rename")[0] == "files_rename"
    assert "memory_recall" not in STEPS.index.ranked("chats")[:SHOWN]


def test_every_word_that_stands_for_another_is_one_that_some_description_has() -> None:
    told = {
        word for line in _SAID.replace("\n    ", " ").strip().splitlines() for word in _terms(line.partition("->")[2])
    }
    has = {word for name, op in EVERY.items() for word in _terms(f"{name} {op.title} {op.description}")}
    assert told <= has


def test_unknown_words_find_nothing_and_case_does_not_matter() -> None:
    assert STEPS.index.ranked("qwxyz") == []
    assert STEPS.index.ranked("") == []
    assert STEPS.index.ranked("UNDO  A\nDELETION") == STEPS.index.ranked("undo a deletion")


@pytest.mark.parametrize(("surface", "name"), [("core", "path"), ("all", "path"), ("compact", "path")])
def test_describe_has_the_names_that_the_surface_lists(surface: str, name: str) -> None:
    schema = describe(Steps(surface, TABLE), "files_index")["paramsSchema"]
    assert schema["required"] == [name]
    assert name in schema["properties"]
    assert "root" not in schema["properties"]
    assert "root" in describe(Steps("documents", TABLE), "watch")["paramsSchema"]["properties"]
