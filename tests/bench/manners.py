"""Measures whether an agent finds its tool: tasks in words, each with the operation that it should begin with.

Operations that clients may call are ranked by their descriptions: by words (the answer of `describe` with `words`) and
by meaning (the packaged embedding model compares the task with title and first sentence; the rest describes when *not*
to use the operation, which vectors do not distinguish). A tool counts as found if it is among the first three.

    scripts/bench manners [--show]
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from proto import ops
from proto.operation import Operation
from proto.ops.embed import TextKind
from services.embed.weights import PACKAGED
from services.front.surfaces.describe import about
from services.front.surfaces.finding import Index
from services.front.surfaces.steps import Steps

FIRST = 3
SHARE = 0.95

TASKS = (
    ("restore yesterday's version of the stored folder", "documents_restore"),
    ("undelete the file that I deleted by mistake", "trash_restore"),
    ("which pictures of 2019 are duplicates", "files_duplicates"),
    ("set the port in all compose files", "yaml_set"),
    ("what did we decide about the login in last week's chat", "chats_search"),
    ("find my notes about kubernetes networking", "notes_search"),
    ("was it a note, a chat or a file? look for the licence question everywhere", "everything_search"),
    ("read the section on backups of the deploy guide note", "notes_read"),
    ("which stored source files contain the regular expression TODO.*urgent", "documents_grep"),
    ("what takes up all the space on this disk", "disk_top_files"),
    ("how much free space is left on the file systems", "disk_free"),
    ("draw a picture of the disk usage of a folder", "disk_treemap"),
    ("which folders grew since the scan of last month", "disk_compare"),
    ("list what is in the folder Downloads, largest first", "files_browse"),
    ("when was this photo taken, show its EXIF metadata", "files_inspect"),
    ("grep the project on disk for a regular expression", "files_grep"),
    ("read lines 10 to 40 of a source file on disk", "files_read"),
    ("replace this exact text in a source file", "files_edit"),
    ("create a new file on disk with this content", "files_write"),
    ("rename a hundred photos by their date", "files_rename"),
    ("move the PDFs to another folder", "files_move"),
    ("throw these temporary files away", "files_delete"),
    ("free the space of the trash for good", "trash_empty"),
    ("scan my home folder into the index", "files_index"),
    ("how far has the scan come", "jobs_progress"),
    ("stop the running scan", "jobs_cancel"),
    ("keep the index in step with every change of a folder from now on", "sources_create"),
    ("each new video in Downloads shall go into a group by itself, automatically", "plans_create"),
    ("make a named group of files for the holiday photos", "sets_create"),
    ("sum up the size of all files in the group holiday", "sets_sum"),
    ("save a query for large videos, to run it again later", "queries_create"),
    ("which notes link to this note", "notes_links"),
    ("which notes are similar but lack a link between them", "notes_gaps"),
    ("which of my notes say the same twice", "notes_duplicates"),
    ("list the broken links in my notes, and the notes that nothing links to", "notes_status"),
    ("add the tags draft and security to a Markdown file", "notes_tag"),
    ("write a new Markdown note with the minutes of the meeting", "notes_write"),
    ("append a line to my todo note", "notes_edit"),
    ("rename a note, and fix the wikilinks to it in other notes", "notes_rename"),
    ("group all my notes into topics", "notes_cluster"),
    ("what should I read before I begin to migrate the database", "notes_suggest"),
    ("notes from January 2026 about the budget", "notes_search_dates"),
    ("which functions call parse_config in the stored code", "documents_graph"),
    ("store a text so that it is found later by search", "documents_add"),
    ("remember that the user wants short answers", "memory_add"),
    ("what do you remember about the user's preferences", "memory_recall"),
    ("delete that memory, it is wrong", "memory_forget"),
    ("download a data set from a URL and check its checksum", "documents_download"),
    ("which of my chats of last month cost the most", "chats_list"),
    ("go on with the conversation of yesterday where it ended", "chats_read"),
    ("check a YAML file against its JSON Schema", "yaml_validate"),
    ("append an item to a list in a YAML file", "yaml_append"),
    ("which services have crashed and why", "kernel_status"),
)  # fmt: skip
"""Tasks, each with the step that should come first."""

WANTED = math.floor(SHARE * len(TASKS))


def operations() -> Mapping[str, Operation[object]]:
    """Return all operations that clients may call, by their names in `describe`."""
    steps = Steps("all", ops.load())
    return {name: op for category, group in steps.ops.items() if category != "session" for name, op in group.items()}


def by_words(every: Mapping[str, Operation[object]]) -> list[list[str]]:
    """Return the operations for each task, best match first."""
    index = Index(every)
    return [index.ranked(task) for task, _ in TASKS]


def by_meaning(every: Mapping[str, Operation[object]]) -> list[list[str]]:
    """Return the same ranking by the cosine of the packaged model's vectors."""
    from services.embed.main import load
    from services.embed.serving import EmbedSettings

    names = list(every)
    with tempfile.TemporaryDirectory() as folder:
        model = load(EmbedSettings(model=PACKAGED[1]), "cpu", Path(folder))
        said = [f"{every[name].title}. {about(every[name])}" for name in names]
        passages = model.tokenizer.encode(said, TextKind.PASSAGE).ids
        queries = model.tokenizer.encode([task for task, _ in TASKS], TextKind.QUERY).ids
        scores = model.encoder.compute(queries) @ model.encoder.compute(passages).T
    return [[names[n] for n in np.argsort(-row)] for row in scores]


def show(title: str, rankings: list[list[str]], *, each: bool) -> int:
    """Return how many are found among the first; prints those that are not, or each one."""
    paired = list(zip(rankings, TASKS, strict=True))
    places = [ranking.index(right) if right in ranking else None for ranking, (_, right) in paired]
    found = sum(place is not None and place < FIRST for place in places)
    print(f"{title:12} {found} of {len(TASKS)} among the first {FIRST}; {sum(place == 0 for place in places)} first")
    for (ranking, (task, right)), place in zip(paired, places, strict=True):
        if each or place is None or place >= FIRST:
            print(f"    {'-' if place is None else place + 1:>3}  {right:22} {task}   [{', '.join(ranking[:FIRST])}]")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench manners", description=__doc__.splitlines()[0])
    parser.add_argument("--show", action="store_true", help="print every task with what comes first")
    each = parser.parse_args().show
    every = operations()
    print(f"{len(every)} operations, {len(TASKS)} tasks")
    found = [show("by words", by_words(every), each=each), show("by meaning", by_meaning(every), each=each)]
    sys.exit(0 if min(found) >= WANTED else 1)


if __name__ == "__main__":
    main()
