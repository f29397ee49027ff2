"""Every operation that a client may call, called in the way that it has, with plausible parameters."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from proto.operation import Operation, Role
from tests.system.access.tokens import Answer, HttpClient

NAMES: dict[str, Any] = {
    "message": "zebra", "query": "zebra", "pattern": "zebra", "context": "zebra stripes", "name": "zebras",
    "id": "zebra", "source": "zebra", "target": "zebra", "topic": "zebra", "document_name": "note.md", "hash": "0" * 64,
    "tags": ["stripes"], "date_range": "last year", "texts": ["zebra"], "jobId": "1", "steps": [{"op": "ops_describe"}],
    "parent": "zebras", "child": "zebras", "metric": "size", "field": "name", "value": "note.md", "preferences": {},
    "url": "http://localhost/zebra", "body": "{}", "collection": "zebras",
    "text": "zebra", "content": "zebra", "service": "zebra",
}  # fmt: skip
"""Values of required parameters, whichever operation has them."""

PATHS = {"path": "", "root": "", "file": "/plain.yaml", "file_path": "/note.md", "output_directory": "/sub",
         "sourcePath": "/note.md"}  # fmt: skip
"""Required parameters that are paths, and what of the root they are given."""

YAML: dict[str, dict[str, Any]] = {
    "": {"path": "key", "value": "1", "key": "other", "schema": {}, "dry_run": True},
    "yaml_append": {"path": "list"},
    "yaml_merge": {"path": "", "values": {"key": "1"}},
    "yaml_validate": {"path": None, "dry_run": None},
    "yaml_get": {"dry_run": None},
    "yaml_get_comments": {"dry_run": None},
    "yaml_edit": {"edits": [{"op": "set", "path": "key", "value": "1"}]},
}


def special(root: str) -> dict[str, dict[str, Any]]:
    """Parameters whose values do not follow from their names."""
    source = {"type": "filesystem.index", "config": {"path": root}}
    paths = [f"{root}/note.md"]
    edit = {"file": f"{root}/plain.yaml", "path": "key", "value": "1", "dry_run": True}
    return {
        "documents_compare": {"before": "x", "after": "x"},
        "documents_add": {"path": f"{root}/note.md"},
        "documents_get": {"name": "note.md"},
        "documents_delete": {"name": "note.md", "dry_run": True},
        "documents_graph": {"name": "code.py"},
        "documents_search": {"query": "zebra"},
        "documents_update": {"name": "note.md", "tags": ["x"]},
        "documents_session_pin": {"name": "note.md"},
        "documents_session_unpin": {"name": "note.md"},
        "documents_session_start": {"label": "x"},
        "documents_session_watch": {"root": root},
        "documents_restore": {"output_directory": f"{root}/sub", "collection": "x", "dry_run": True},
        "files_move": {"moves": [{"from": f"{root}/note.md", "to": f"{root}/moved.md"}], "dryRun": True},
        "files_copy": {"copies": [{"from": f"{root}/note.md", "to": f"{root}/copy.md"}], "dryRun": True},
        "folders_create": {"paths": [f"{root}/made"], "dryRun": True},
        "files_diff": {"before": {"path": f"{root}/note.md"}, "after": {"path": f"{root}/plain.yaml"}},
        "files_rename": {"renames": [{"from": f"{root}/note.md", "to": f"{root}/renamed.md"}], "dryRun": True},
        "files_delete": {"paths": paths, "dryRun": True},
        "files_read": {"path": f"{root}/note.md"},
        "files_edit": {"path": f"{root}/note.md", "edits": [{"old": "zebra", "new": "zebra", "all": True}]},
        "files_write": {"path": f"{root}/written.txt", "content": "zebra"},
        "trash_restore": {"paths": paths, "dryRun": True},
        "changes_undo": {"path": root, "dry_run": True},
        "files_job": {"id": "1"},
        "media_content": {"path": f"{root}/note.md"},
        "files_node_metadata": {"path": f"{root}/note.md"[1:]},
        "files_node_thumbnail": {"path": f"{root}/note.md"[1:]},
        "files_node": {"path": root[1:]},
        "files_inspect": {"path": f"{root}/note.md"},
        "plans_create": {"name": "zebras", "sources": [source], "outcomes": []},
        "queries_create": {"name": "zebras", "query": {}},
        "sources_create": {"name": "zebras", "type": "manual", "path": root},
        "sets_modify": {"name": "zebras", "operation": "add", "paths": paths},
        "sets_metric_range": {"name": "zebras", "metric": "size", "min": 0},
        "sets_time_range": {"name": "zebras", "field": "mtime"},
        "ops_execute": {"operations": [{"op": "yaml_set", "params": edit}]},
        "ops_query": {"steps": [{"op": "yaml_get", "params": {"file": f"{root}/plain.yaml", "path": "key"}}]},
        "collections_upsert": {"collection": "zebras", "documents": [{"id": "a", "text": "zebra"}]},
        "collections_search": {"collection": "zebras", "query": "zebra"},
        "collections_delete": {"collection": "zebras", "ids": ["a"]},
        "transcript_ingest": {"body": "e30="},
        "notes_write": {"path": f"{root}/written.md", "content": "zebra"},
        "notes_edit": {"path": f"{root}/note.md", "append": "zebra"},
        "notes_rename": {"path": f"{root}/note.md", "to": f"{root}/renamed.md", "dry_run": True},
        "memory_update": {"id": "0" * 12, "text": "zebra"},
        "memory_forget": {"id": "0" * 12},
        "documents_session": {},
        "tasks_start": {"operation": "mcp_echo", "arguments": {"message": "zebra"}},
        "timers_create": {"operation": "mcp_echo", "arguments": {"message": "zebra"}, "at": "1 h"},
    }  # fmt: skip


def arguments_of(op: Operation[object], root: str) -> dict[str, Any]:
    """Plausible ones, about this root."""
    if op.service == "yaml":
        given = {"file": f"{root}/plain.yaml"} | YAML[""] | YAML.get(op.name, {})
        known = op.input_schema["properties"]
        return {name: value for name, value in given.items() if value is not None and name in known}
    if (found := special(root).get(op.name)) is not None:
        return found
    required = op.input_schema.get("required", [])
    return {name: f"{root}{PATHS[name]}" if name in PATHS else NAMES[name] for name in required}


def call(client: HttpClient, op: Operation[object], arguments: dict[str, Any]) -> Answer:
    """The answer."""
    match op.role:
        case Role.TOOL:
            return client.tool(op.name, arguments)
        case Role.STEP if op.step.startswith("session."):
            action = {"action": op.step.removeprefix("session."), "params": arguments}
            return client.tool("documents_session", action)
        case Role.STEP if op.access.value == "read":
            return client.tool("ops_query", {"steps": [{"op": op.name, "params": arguments}]}, surface="compact")
        case Role.STEP:
            return client.tool("ops_execute", {"operations": [{"op": op.name, "params": arguments}]}, surface="compact")
        case Role.PROMPT:
            return client.rpc("prompts/get", {"name": op.name, "arguments": arguments})
        case Role.RESOURCE:
            assert op.resource is not None
            uri = op.resource.uri
            for name, value in arguments.items():
                uri = uri.replace(f"{{+{name}}}", quote(value)).replace(f"{{{name}}}", quote(value, safe=""))
            return client.rpc("resources/read", {"uri": uri})
    if op.http is None:
        return client.request("POST", f"/call/{op.name}", arguments)
    path = op.http.path
    for name, value in arguments.items():
        path = path.replace(f"{{{name}}}", quote(value, safe=""))
    query = "&".join(f"{name}={quote(value)}" for name, value in arguments.items() if f"{{{name}}}" not in op.http.path)
    return client.request(op.http.method, f"{path}?{query}")
