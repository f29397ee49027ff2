"""`instructions`: what a client is told of a surface when it connects, for its model: which tools for which purpose."""

from __future__ import annotations

from proto.operation import ALL, COMPACT, CORE

_SEARCHES = """Three things are searched: notes (Markdown below the roots) by search_documents, past conversations by
the tool search, stored documents by the op search of query; search_everything looks in all of them, and is the first
choice when you do not know where."""

_STEPS = """query reads by ops of every service, execute changes by them; {"op": "describe", "params": {"words": "…"}}
in query finds the op for a task, {"target": OP} its parameters. A string $prev.results[0].id hands on a result."""

_LONG = "A long answer is cut or kept: it says how to go on."

_TEXTS = {
    CORE: f"""{_SEARCHES} Notes: read_node_content, write_note, edit_note. Files on disk: grep-files, read-file,
        edit-file, write-file. remember keeps a fact and recall finds it again; a whole text is stored by the op add of
        execute. All else (folders by size, YAML with its comments, plans, versions): {_STEPS} {_LONG}""",
    ALL: f"""{_SEARCHES} Files on disk: grep-files, read-file, edit-file, write-file; index, then navigate, top-files,
        rename-files; deleted ones come back by restore-files. Groups of files: resource-*; rules for files: plan-*.
        YAML: noyalib_* and yaml_*. Notes: search_documents, write_note, edit_note, rename_note, explore_links. Stored
        documents and their versions: ops of query and execute. {_STEPS} {_LONG}""",
    COMPACT: f"""{_STEPS} Ops: search_documents (notes), transcripts_search (past conversations), search, grep, get, add
        (stored documents), index and navigate (files), noyalib_set (YAML); search_everything looks in all. {_LONG}""",
    "documents": """A store of documents with their versions. query reads: search (by meaning and words), grep (exact
        patterns), list, get, graph (code), status; execute changes: add, update, delete, restore, download; session
        labels what is added meanwhile. {"op": "describe", "params": {"target": OP}} gives the parameters of an op.""",
    "yaml": """YAML files edited in place, comments and layout kept byte for byte. noyalib_get reads, noyalib_set
        changes one value, yaml_edit several at once. Paths within a file: server.port, items[0].name. Not for files
        that are no YAML. dry_run shows the diff, if_match guards against a change by others.""",
    "knowledge": """Markdown notes below the roots, and their links. Look here before a task: what was learned, decided,
        tried. search_documents finds by meaning (search_everything also in past conversations and stored documents),
        read_node_content reads, explore_links and graph_neighbors follow links, find_gaps finds links that lack,
        write_note and edit_note write, rename_note takes the links along, inject_tags tags. An answer of 4 KB or more
        is kept: its preview names each hit, scratchpad_read has the whole.""",
    "files": """Files on disk, by an index: call index for a folder first (source-create live keeps it in step).
        navigate and inspect browse; top-files, top-directories, find-duplicates, space-summary tell what takes the
        space; rename-files, move-files, delete-files change the disk (dryRun first), restore-files undoes a deletion.
        resource-set-* group files, resource-search and the like find in a group, query-* save searches over the index,
        plan-* are rules that act on files. grep-files, read-file, edit-file and write-file work on texts, without the
        index.""",
    "transcripts": """Past conversations with language models. search finds turns by meaning and words, each with the
        talk that led to it; transcript_checkout resumes one from a turn's hash; transcript_delete forgets a turn for
        good.""",
}

INSTRUCTIONS = {surface: " ".join(text.split()) for surface, text in _TEXTS.items()}
"""By surface; each costs a model fewer than 300 tokens."""
