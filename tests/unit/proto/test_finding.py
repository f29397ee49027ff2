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

SHOWN = 5
"""Twelve are answered; a reader looks at the first five."""

TASKS = [
    ("undo a deletion", {"restore-files", "restore"}),
    ("get back a deleted file", {"restore-files"}),
    ("I deleted something by accident, how do I recover it", {"restore-files"}),
    ("unerase", {"restore-files"}),
    ("bring back an older version of a stored folder", {"restore"}),
    ("restore documents that were deleted", {"restore"}),
    ("rename a note", {"rename_note"}),
    ("give a note a different title and keep links working", {"rename_note"}),
    ("who calls this function", {"graph"}),
    ("where is this class used", {"graph"}),
    ("find usages of a function", {"graph"}),
    ("how much did this conversation cost", {"transcript_list"}),
    ("how many tokens did I spend on chats", {"transcript_list"}),
    ("what did we talk about last week", {"transcripts_search"}),
    ("continue an old chat", {"transcript_checkout"}),
    ("erase a message from a past conversation", {"transcript_delete"}),
    ("which files are the same", {"find-duplicates"}),
    ("photos that exist more than once", {"find-duplicates"}),
    ("what is filling up my disk", {"top-files"}),
    ("biggest folders", {"top-directories"}),
    ("how much room is left on the drive", {"disk-free"}),
    ("remove a file", {"delete-files"}),
    ("get rid of a folder", {"delete-files"}),
    ("what is in the trash", {"list-trash"}),
    ("empty the recycle bin", {"empty-trash"}),
    ("put a file somewhere else", {"move-files"}),
    ("change a few lines in a text file", {"edit-file"}),
    ("show me the contents of a file", {"read-file"}),
    ("look for a regex in my source code", {"grep-files"}),
    ("jot down a meeting note", {"write_note"}),
    ("add a paragraph to a note", {"edit_note"}),
    ("which notes point to this one", {"explore_links"}),
    ("find dead links in my notes", {"knowledge_status"}),
    ("notes with the tag budget", {"query_by_tags"}),
    ("how are these two notes connected", {"graph_path"}),
    ("what does the user like", {"recall"}),
    ("keep in mind that the user prefers tabs", {"remember"}),
    ("erase a memory about me", {"forget"}),
    ("change the port in a config file", {"noyalib_set"}),
    ("delete a key from a yaml file", {"yaml_delete"}),
    ("check a config against a schema", {"yaml_validate"}),
    ("fetch a web page and keep it", {"download"}),
    ("save a document for later", {"add"}),
    ("label a stored document", {"update"}),
    ("list older versions of a folder", {"list_snapshots"}),
    ("sort new downloads automatically", {"plan-create"}),
    ("watch a folder for changes", {"source-create", "watch"}),
    ("is the search service running", {"kernel_status"}),
    ("look everywhere for the licence question", {"search_everything"}),
]


@pytest.mark.parametrize(("task", "wanted"), TASKS)
def test_a_task_in_everyday_words_finds_its_operation(task: str, wanted: set[str]) -> None:
    assert wanted <= set(STEPS.index.ranked(task)[:SHOWN])


REPORTED = [
    *(json.loads(CASES.read_text())["describe"] if CASES.exists() else []),
    {"words": "files in a directory", "first_three": ["navigate"]},
    {"words": "what did I miss since yesterday", "first_three": ["events_read"]},
    {"words": "set an alarm for every morning", "first_three": ["schedule"]},
    {"words": "who am I", "first_three": ["recall", "list_memories"]},
    {"words": "is my background job done yet", "first_three": ["task_get", "task_list"]},
    {"words": "mkdir projects", "none": True},
    {"words": "make a new directory", "none": True},
    {"words": "send an email to Ana", "none": True},
    {"words": "run a shell command", "none": True},
    {"words": "write a new note in a folder", "first_three": ["write_note"]},
    {"words": "add a folder to the documents", "first_three": ["add"]},
]  # fmt: skip


@pytest.mark.parametrize("surface", ["core", "all", "compact"])
@pytest.mark.parametrize("case", REPORTED, ids=lambda case: str(case["words"]))
def test_the_right_operation_is_among_the_first_three_or_none_is_claimed(surface: str, case: dict[str, Any]) -> None:
    found = describe(Steps(surface, TABLE), None, case["words"])
    if case.get("none"):
        assert found["ops"] == []
        assert found["note"].startswith("nothing ")
    else:
        assert set(case["first_three"]) & {each["op"] for each in found["ops"][:3]}, found["ops"][:5]


@pytest.mark.parametrize("surface", ["core", "all", "compact"])
def test_describe_finds_what_undoes_a_deletion(surface: str) -> None:
    found = describe(Steps(surface, TABLE), None, "undo a deletion")["ops"]
    assert found[0]["op"] == "restore-files"
    assert {"restore-files", "restore"} <= {each["op"] for each in found}
    assert {each["in"] for each in found if each["op"].startswith("restore")} == {"execute"}


def test_mentions_of_other_operations_in_a_description_do_not_count() -> None:
    # `Other files: rename-files.` is in what rename_note says of itself.
    assert STEPS.index.ranked("wikilinks markdown")
    assert STEPS.index.ranked("rename-files")[0] == "rename-files"
    assert "recall" not in STEPS.index.ranked("chats")[:SHOWN]


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
    schema = describe(Steps(surface, TABLE), "index")["paramsSchema"]
    assert schema["required"] == [name]
    assert name in schema["properties"]
    assert "root" not in schema["properties"]
    assert "root" in describe(Steps("documents", TABLE), "watch")["paramsSchema"]["properties"]
