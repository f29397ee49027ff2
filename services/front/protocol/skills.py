"""The MCP extension `io.modelcontextprotocol/skills`: lists the skills of the package and serves their files.

https://github.com/modelcontextprotocol/ext-skills, `specification/stable/skills.mdx`.
"""

from __future__ import annotations

import base64
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from proto.json_types import JsonObject
from services.front import skill_files
from services.front.protocol.handshake import LIST_FRESH_MS
from services.front.protocol.sdk import Context

_COMPLETE: JsonObject = {"resultType": "complete"}
_FRESH: JsonObject = {"ttlMs": LIST_FRESH_MS, "cacheScope": "public"}
"""They change only with a new version."""


class GetSkillParams(types.RequestParams):
    """Parameters of `skills/get`."""

    uri: str


class ReadDirectoryParams(types.PaginatedRequestParams):
    """Parameters of `resources/directory/read`."""

    uri: str


def install(sdk: Server[JsonObject]) -> None:
    """Serve the methods of the extension."""
    sdk.extensions[skill_files.EXTENSION] = skill_files.SETTINGS
    sdk.add_request_handler("skills/list", types.PaginatedRequestParams, _list)
    sdk.add_request_handler("skills/get", GetSkillParams, _get)
    sdk.add_request_handler("resources/directory/read", ReadDirectoryParams, _read_directory)


def read(uri: str) -> JsonObject | None:
    """Return the result of reading a file of a skill; None if there is no such file."""
    file = skill_files.files().get(uri)
    if file is None:
        return None
    contents: JsonObject = {"uri": uri, "mimeType": file.mime_type}
    try:
        contents["text"] = file.data.decode()
    except UnicodeDecodeError:
        contents["blob"] = base64.b64encode(file.data).decode()
    return {**_COMPLETE, "contents": [contents], **_FRESH}


async def _list(ctx: Context, params: types.PaginatedRequestParams) -> Any:
    _check_cursor(params)
    return {**_COMPLETE, "skills": [each.entry() for each in skill_files.skills().values()], **_FRESH}


async def _get(ctx: Context, params: GetSkillParams) -> Any:
    skill = skill_files.skills().get(params.uri)
    if skill is None:
        known = ", ".join(skill_files.skills())
        message = f"No skill is served at {params.uri[:200]}; the skills are: {known}"
        raise MCPError(code=INVALID_PARAMS, message=message, data={"uri": params.uri})
    return {**_COMPLETE, "skill": skill.entry(), **_FRESH}


async def _read_directory(ctx: Context, params: ReadDirectoryParams) -> Any:
    _check_cursor(params)
    children = skill_files.children(params.uri)
    if children is None:
        message = f"{params.uri[:200]} is not a directory resource; a skill's is {skill_files.SCHEME}NAME"
        raise MCPError(code=INVALID_PARAMS, message=message, data={"uri": params.uri})
    return {**_COMPLETE, "resources": children}


def _check_cursor(params: types.PaginatedRequestParams) -> None:
    if params.cursor is not None:
        raise MCPError(code=INVALID_PARAMS, message="Unknown cursor; this list has one page", data={"field": "cursor"})
