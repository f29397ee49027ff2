"""The names of operations, and the names that they replaced.

Operations are named `noun_verb` (`notes_search`, `files_read`), and are listed by these names everywhere, except on the
surfaces that replace another program: there they keep that program's names. All names of an operation are accepted
everywhere: by tools, steps, tasks, timers, HTTP, the command line, approvals and data that older versions stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Names(NamedTuple):
    """The other names of an operation.

    `former` is its name on the surfaces of other programs, and the name by which data directories know it. `step` is
    its name as a step of the composite tools on the surface `documents`; one that starts with `session.` is an action
    of the tool `documents_session`. `older` is one more by which it can be called.
    """

    former: str = ""
    step: str = ""
    older: str = ""


_FORMER = """
documents: collections=documents_list_collections snapshots=documents_list_snapshots
    compare=documents_compare_snapshots download=download download_check=download_check session=session
tasks: start=task_start get=task_get list=task_list wait=task_wait cancel=task_cancel
timers: create=schedule list=schedule_list cancel=schedule_cancel
files: rename=rename-files move=move-files delete=delete-files index=index browse=navigate inspect=inspect
    diagnose=db-diagnose duplicates=find-duplicates read=read-file grep=grep-files
    edit=edit-file write=write-file
trash: list=list-trash restore=restore-files empty=empty-trash
classifier: run=rerun-classifier progress=classifier-job-progress jobs=list-classifier-jobs
jobs: progress=job-progress list=list-jobs cancel=cancel-job
plans: create=plan-create execute=plan-execute list=plan-list get=plan-get update=plan-update delete=plan-delete
queries: create=query-create execute=query-execute list=query-list get=query-get update=query-update
    delete=query-delete
preferences: get=session-info set=session-set-preferences
sets: search=resource-search children=resource-children parents=resource-parent sum=resource-sum
    time_range=resource-time-range metric_range=resource-metric-range match=resource-is
    fuzzy_match=resource-fuzzy-match create=resource-set-create list=resource-set-list get=resource-set-get
    modify=resource-set-modify delete=resource-set-delete add_child=resource-set-add-child
    remove_child=resource-set-remove-child
sources: create=source-create start=source-start stop=source-stop list=source-list get=source-get
    delete=source-delete stats=source-stats
disk: treemap=disk-treemap top_files=top-files top_folders=top-directories compare=compare-scans free=disk-free
    summary=space-summary
ops: query=query execute=execute describe=describe
notes: search=search_documents read=read_node_content links=explore_links tree=list_directory_structure
    status=knowledge_status gaps=find_gaps duplicates=find_duplicate_notes tagged=query_by_tags
    suggest=suggest_reading search_dates=temporal_search cluster=cluster_documents write=write_note edit=edit_note
    tag=inject_tags rename=rename_note
memory: add=remember recall=recall update=update_memory forget=forget list=list_memories
collections: create=collection_create list=collection_list count=collection_count upsert=collection_upsert
    documents=collection_documents search=collection_search delete=collection_delete drop=collection_drop
chats: search=search list=transcript_list delete=transcript_delete read=transcript_checkout
everything: search=search_everything
yaml: get=noyalib_get set=noyalib_set
"""

_STEPS = """
documents: collections=list_collections snapshots=list_snapshots add list get status verify update delete restore
    search grep graph session_start=session.start session_stop=session.stop session_pin=session.pin
    session_unpin=session.unpin session_watch=session.watch download download_check
ops: describe
"""

_OLDER = """
chats: search=transcripts_search
mcp: echo=mcp.echo
"""


def _read(table: str) -> Iterator[tuple[str, str]]:
    """Yield each name, and the other one; the verb alone is its own other name."""
    for line in table.replace("\n    ", " ").strip().splitlines():
        noun, _, verbs = line.partition(": ")
        for verb, _, other in (each.partition("=") for each in verbs.split()):
            yield f"{noun}_{verb}", other or verb


def _tables() -> dict[str, Names]:
    names: dict[str, Names] = {name: Names(former=other) for name, other in _read(_FORMER)}
    for name, other in _read(_STEPS):
        names[name] = names.get(name, Names())._replace(step=other)
    for name, other in _read(_OLDER):
        names[name] = names.get(name, Names())._replace(older=other)
    return names


OTHER_NAMES: Mapping[str, Names] = _tables()
"""The operations with several names, by the name under which they are declared."""


def current_name(name: str) -> str:
    """Return the name under which an operation with this former name is declared; any other name as it is."""
    return _CURRENT.get(name, name)


def in_former_names(text: str, *, steps: bool) -> str:
    """Return a text with the former names of operations, for the surfaces of other programs. If `steps`, operations
    have their names as steps of the surface `documents`."""
    return _NAME.sub(lambda found: _former(found[0], steps), text)


def _former(name: str, steps: bool) -> str:
    names = OTHER_NAMES[name]
    return (names.step if steps else "") or names.former or name


_CURRENT = {other: name for name, names in OTHER_NAMES.items() for other in (names.former, names.older) if other}
_NAME = re.compile(rf"(?<![\w-])(?:{'|'.join(OTHER_NAMES)})(?![\w-])")
