"""Surfaces: the tools, resources and prompts that a client sees, from the table of operations.

Its lists do not depend on the connection or on calls, and operations that are not on it cannot be called through it.
They change only when mounted servers change. `core` has everything that `all` has, but lists only a few tools.
Operations that do not admit clients are on no surface.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from proto.approvals import ApprovalSettings, Rules
from proto.json_types import JsonObject
from proto.operation import (
    ALL,
    CLIENT,
    COMPACT,
    CORE,
    REFERENCES,
    Access,
    Operation,
    Params,
    Resource,
    Role,
    operation_of,
)
from proto.ops import Table
from proto.ops.tasks import TaskGet
from proto.wire.front import SERVICE
from services.front.operations import steps as front
from services.front.surfaces import schemas
from services.front.surfaces.describe import shown
from services.front.surfaces.steps import Steps
from services.front.terse import Terse, terse

ALWAYS_LOAD, MAX_RESULT_CHARS, ASKS_USER = (
    f"anthropic/{name}" for name in ("alwaysLoad", "maxResultSizeChars", "requiresUserInteraction")
)
"""Members of a tool's `_meta` that Claude Code reads: list it at once, results of this length are not cut, and a person
has to agree to each call."""

LONG_RESULT_CHARS = 200_000

_VARIABLE = re.compile(r"\{(\+?[A-Za-z_][A-Za-z0-9_]*)\}")


class Surface:
    """One surface, in the table's order; lists are in wire form and created once."""

    capabilities: JsonObject | None = None
    """The capabilities that clients are offered, if they do not follow from the lists."""
    server_info: JsonObject | None = None
    """How the server presents itself, if not as Linckia."""
    has_tasks: bool = False
    """Whether clients can use tasks here."""
    callable: Mapping[str, Operation[object]] = {}
    """Whatever clients may call here, as a tool or otherwise, of Linckia's own."""
    rules: Rules = Rules(ApprovalSettings())
    """Which calls wait for a person."""
    is_known: bool = True
    """Whether its lists are known already."""

    def __init__(self, name: str, table: Table) -> None:
        self.name = name
        self.instructions = INSTRUCTIONS[name]
        self.is_whole = name in (ALL, CORE)
        """Whether it has everything that clients may call."""
        self.steps = Steps(name, table)
        """Steps that the composite tools can run here."""
        self._fill(table)

    def mounted_call(self, name: str, arguments: JsonObject) -> tuple[Operation[Any], Params[Any]] | None:
        """Return the operation that calls a tool of a mounted server here, and its parameters; None if there is no such
        tool."""
        tool = self.called.get(name)
        return (tool.routed, tool.parse(arguments)) if tool is not None and tool.is_foreign else None

    def update(self, table: Table) -> None:
        """Replace everything on it by the operations of another table."""
        self.steps.update(table)
        self._fill(table)

    def _fill(self, table: Table) -> None:
        name = self.name
        for cached in ("listed_tools", "listed_prompts", "listed_resources", "listed_templates", "custom_headers"):
            self.__dict__.pop(cached, None)
        here = [op for op in table.values() if op.admits(CLIENT) and (self.is_whole or name in op.surfaces)]
        self.callable = {op.name: op for op in here}
        self.has_tasks = operation_of(TaskGet).name in self.callable
        self.tools: Mapping[str, Operation[object]] = {op.shown_as(name): op for op in here if op.role is Role.TOOL}
        others = {other: op for op in self.tools.values() for other in (op.name, *op.former)}
        self.called = {**others, **self.tools}
        """The tools by all names that a call may use."""
        self.prompts: Mapping[str, Operation[object]] = {op.name: op for op in here if op.role is Role.PROMPT}
        self._resources = [(op.resource, op) for op in here if op.role is Role.RESOURCE and op.resource is not None]
        # If two templates match, the longer one takes precedence.
        by_length = sorted(self._resources, key=lambda each: -len(_VARIABLE.sub("", each[0].uri)))
        self._templates = [each for each in by_length if "{" in each[0].uri]
        self._patterns = [(template_pattern(uri), op) for resource, op in by_length for uri in resource.uris]

    @property
    def is_reference(self) -> bool:
        """Whether it follows another program's contract."""
        return self.name in REFERENCES

    @property
    def listed(self) -> list[Operation[object]]:
        """The tools that it lists."""
        return [op for op in self.tools.values() if self.name != CORE or CORE in op.surfaces]

    @cached_property
    def listed_tools(self) -> list[JsonObject]:
        """`tools` of `tools/list`."""
        tools = [self._tool(op) for op in self.listed if not op.is_foreign]
        if self.name not in REFERENCES:
            schemas.explain_once(tools, briefly=self.name == ALL)
        return tools + [self._tool(op) for op in self.listed if op.is_foreign]

    def bounds(self, op: Operation[object]) -> bool:
        """Return whether long answers of a tool are truncated here: only if no other system's contract defines them."""
        return self.name in (CORE, COMPACT) and not (op.is_content or op.is_exact)

    def terse(self, op: Operation[object]) -> Terse | None:
        """Return what omits the members of a tool's result that say nothing; None if all are kept."""
        return None if self.is_reference else terse(op)

    @cached_property
    def listed_prompts(self) -> list[JsonObject]:
        """`prompts` of `prompts/list`; a prompt's arguments are its operation's parameters."""
        return [self.steps.spoken_in(_prompt(op)) for op in self.prompts.values()]

    @cached_property
    def listed_resources(self) -> list[JsonObject]:
        """`resources` of `resources/list`: those with a fixed URI."""
        return [self._resource(*each, "uri") for each in self._resources if "{" not in each[0].uri]

    @cached_property
    def listed_templates(self) -> list[JsonObject]:
        """`resourceTemplates` of `resources/templates/list`."""
        return [self._resource(*each, "uriTemplate") for each in self._templates]

    @cached_property
    def custom_headers(self) -> frozenset[str]:
        """Tools with parameters that clients mirror in HTTP headers (`x-mcp-header`)."""
        return frozenset(
            op.name for op in self.tools.values() if b"x-mcp-header" in msgspec.json.encode(op.input_schema)
        )

    def _resource(self, resource: Resource, op: Operation[object], key: str) -> JsonObject:
        description = self.steps.spoken(op.description)
        fields = {"name": resource.name, "title": op.title, "description": description, "mimeType": resource.mime_type}
        return {key: resource.uri, **fields}

    def _tool(self, op: Operation[object]) -> JsonObject:
        description, whole = shown(op, self.name, self.steps)
        common = {} if self.name in REFERENCES else op.params.common
        detailed = self.name != ALL
        tool = {
            "name": op.shown_as(self.name),
            "title": op.title_on(self.name),
            "description": description,
            "inputSchema": whole
            if op.is_foreign
            else schemas.parameters(whole, common, description=description, detailed=detailed),
            "annotations": annotations_of(op, whole=self.name in REFERENCES),
        }
        if hints := self._hints(op):
            tool["_meta"] = hints
        # Answers that may be truncated have no output schema.
        if not self.bounds(op) and (result := output_schema(op, self.name)) is not None:
            tool["outputSchema"] = result
        return tool

    def _hints(self, op: Operation[object]) -> JsonObject:
        """Return what clients can do with a tool, besides the annotations of the protocol; nothing where another
        program's contract defines the list."""
        if self.name in REFERENCES or op.is_foreign:
            return {}
        hints: JsonObject = {}
        if self.name == CORE and op.is_essential:
            hints[ALWAYS_LOAD] = True
        if self.name == CORE and op.is_exact:
            hints[MAX_RESULT_CHARS] = LONG_RESULT_CHARS
        if self.rules.choose(op):
            hints[ASKS_USER] = True
        return hints

    def find_resource(self, uri: str) -> tuple[Operation[object], dict[str, str]] | None:
        """Return the operation that reads `uri`, and the arguments in `uri`; None if there is no such operation."""
        found = self._matching(uri)
        bare, mark, query = uri.partition("?")
        if found is not None or not mark:
            return found
        found = self._matching(bare)
        if found is None or found[0].resource is None or not found[0].resource.query:
            return None
        return found[0], dict(urllib.parse.parse_qsl(query, keep_blank_values=True)) | found[1]

    def _matching(self, uri: str) -> tuple[Operation[object], dict[str, str]] | None:
        for pattern, op in self._patterns:
            if (match := pattern.fullmatch(uri)) is not None:
                return op, {key: urllib.parse.unquote(value) for key, value in match.groupdict().items()}
        return None

    def find_template(self, template: str) -> Operation[object] | None:
        """Return the operation of a URI template (or plain URI), as named in completion references."""
        return next((op for resource, op in self._resources if template in resource.uris), None)


def template_pattern(template: str) -> re.Pattern[str]:
    """Return a regular expression for an RFC 6570 template; a variable matches what the template may expand it to.

    `{name}` is simple expansion (level 1), without slashes; `{+name}` is reserved expansion (level 2).
    """
    pieces = _VARIABLE.split(template)
    pieces[::2] = map(re.escape, pieces[::2])
    pieces[1::2] = [f"(?P<{n[1:]}>[^?#]*)" if n.startswith("+") else f"(?P<{n}>[^/?#]+)" for n in pieces[1::2]]
    return re.compile("".join(pieces))


_UNSAID = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True}
"""The protocol's default values."""


def annotations_of(operation: Operation[object], *, whole: bool) -> dict[str, bool]:
    """Return the hints of a tool: what it may do to stored data, and whether it reaches beyond this machine. If not
    `whole`, only those that differ from the defaults."""
    reads = operation.access is Access.READ
    hints = {
        "readOnlyHint": reads,
        "destructiveHint": operation.access is Access.DESTRUCTIVE,
        "idempotentHint": operation.idempotent,
        "openWorldHint": operation.open_world,
    }
    if whole:
        return hints
    # These two hints mean nothing for operations that only read.
    empty = ("destructiveHint", "idempotentHint") if reads else ()
    return {name: hint for name, hint in hints.items() if hint != _UNSAID[name] and name not in empty}


def caches(operation: Operation[object]) -> bool:
    """Return whether long answers of this operation are stored in the scratchpad."""
    kept_on = set(front.SCRATCHPAD_SURFACES) <= set(operation.surfaces)
    return kept_on and operation.service != SERVICE and not operation.is_content


def output_schema(operation: Operation[object], surface: str) -> JsonObject | None:
    """Return the schema of the structured result as a surface lists it.

    If long answers of the operation are stored in the scratchpad, the result may also be `cached`, a reference to one.
    """
    if operation.output_schema is None:
        return None
    whole = operation.output_schema
    schema = schemas.result(whole if surface in REFERENCES else schemas.terse(whole))
    if not caches(operation):
        return schema
    return {"type": "object", "properties": {**schema.get("properties", {}), "cached": {"type": "object"}}}


def _prompt(op: Operation[object]) -> JsonObject:
    properties = op.input_schema.get("properties", {})
    arguments = []
    for field in msgspec.structs.fields(op.params):
        text = properties.get(field.encode_name, {}).get("description")
        described = {"description": text} if text else {}
        arguments.append({"name": field.encode_name, "required": field.required, **described})
    return {"name": op.name, "title": op.title, "description": op.description, "arguments": arguments}


# `instructions`: what a client receives for its model when it connects: which tools to use for which purpose.

_SEARCHES = """Three things are searched: notes (Markdown below the roots) by notes_search, past conversations by
chats_search, stored documents by the op documents_search; everything_search looks in all of them, and is the first
choice when you do not know where."""

_STEPS = """ops_query reads by ops of every service, ops_execute changes by them; {"op": "ops_describe", "params":
{"words": "…"}} in ops_query finds the op for a task, {"target": OP} its parameters. A string $prev.results[0].id hands
on a result."""

_LONG = "A long answer is cut or kept: it says how to go on."

_TEXTS = {
    CORE: f"""{_SEARCHES} Notes: notes_read, notes_write, notes_edit. Files on disk: files_grep, files_read,
        files_edit, files_write. memory_add keeps a fact and memory_recall finds it again; a whole text is stored by the
        op documents_add. All else (folders by size, YAML with its comments, plans, versions): {_STEPS} {_LONG}""",
    ALL: f"""{_SEARCHES} Files on disk: files_grep, files_read, files_edit, files_write; files_index, then
        files_browse, disk_top_files, files_rename; deleted ones come back by trash_restore. Groups of files: sets_*;
        rules for files: plans_*. YAML: yaml_*. Notes: notes_search, notes_write, notes_edit, notes_rename, notes_links.
        Stored documents and their versions: ops documents_*. {_STEPS} {_LONG}""",
    COMPACT: f"""{_STEPS} Ops: notes_search, chats_search (past conversations), documents_search, documents_get and
        documents_add (stored documents), files_index and files_browse, yaml_set; everything_search looks in all.
        {_LONG}""",
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
"""Instructions by surface; each costs a model fewer than 300 tokens."""
