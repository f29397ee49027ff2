"""A server as registries describe it: `server.json`, by the schema of 2025-12-11, as far as it matters here.

Everything in it was written by strangers. Unknown members are ignored: the schema grows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from kernel.cli.servers.installing.answers import has_hidden
from proto.control.commands import Failed

NAME: Final = r"^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$"

OFFICIAL: Final = "io.modelcontextprotocol.registry/official"
"""Member of `_meta` with what the registry itself says."""

_FREE: Final = ("description", "title", "statusMessage", "placeholder")
"""Members that people read and no program gets; they are shown without control characters."""


class Input(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    description: str = ""
    is_required: bool = False
    format: str = "string"
    value: str | None = None
    is_secret: bool = False
    default: str | None = None
    placeholder: str = ""
    choices: list[str] = []
    variables: dict[str, Input] = {}


class Argument(Input, frozen=True, kw_only=True, rename="camel"):
    type: Literal["positional", "named"]
    name: str = ""
    value_hint: str = ""
    is_repeated: bool = False


class KeyValue(Input, frozen=True, kw_only=True, rename="camel"):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,200}$")]


class Transport(msgspec.Struct, frozen=True, kw_only=True):
    type: str = "stdio"
    url: str = ""
    headers: list[KeyValue] = []
    variables: dict[str, Input] = {}


class Package(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    registry_type: str
    identifier: str
    version: str = ""
    registry_base_url: str = ""
    file_sha256: str = ""
    runtime_hint: str = ""
    transport: Transport = Transport()
    runtime_arguments: list[Argument] = []
    package_arguments: list[Argument] = []
    environment_variables: list[KeyValue] = []


class Repository(msgspec.Struct, frozen=True):
    url: str = ""


class Server(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: Annotated[str, Meta(pattern=NAME, max_length=200)]
    version: Annotated[str, Meta(min_length=1, max_length=255)]
    description: str = ""
    title: str = ""
    repository: Repository = Repository()
    website_url: str = ""
    packages: list[Package] = []
    remotes: list[Transport] = []


class Status(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    status: str = "active"
    status_message: str = ""
    is_latest: bool = True


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A server with what the registry says about it."""

    server: Server
    status: Status = Status()


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list. `problems` says why entries are left out."""

    entries: list[Listed]
    problems: list[str]
    next_cursor: str = ""


def page_from(content: bytes, where: str) -> Page:
    """Return a list of servers; entries with mistakes are left out. Raises Failed."""
    raw = _decoded(content, where)
    entries, problems = [], []
    given = raw.get("servers")
    if not isinstance(given, list):
        raise Failed(f"{where} is not a registry: `servers` is missing in its answer; nothing was changed")
    for number, each in enumerate(given):
        try:
            entries.append(_listed(each))
        except msgspec.ValidationError as error:
            problems.append(f"servers[{number}] is left out: {error}")
    metadata = raw.get("metadata")
    cursor = metadata.get("nextCursor") if isinstance(metadata, dict) else ""
    return Page(entries=entries, problems=problems, next_cursor=cursor if isinstance(cursor, str) else "")


def entry_from(content: bytes, where: str) -> Listed:
    """Return one server, of which nothing is hidden from who reads it. Raises Failed, which names the field."""
    raw = _decoded(content, where)
    try:
        entry = _listed(raw)
    except msgspec.ValidationError as error:
        raise Failed(f"{where} describes the server wrongly: {error}; nothing was changed") from None
    for path, text in _texts(raw.get("server"), ""):
        if has_hidden(text):
            raise Failed(f"`{path}` of the server has control characters or hidden ones; nothing was changed")
    return entry


def _listed(raw: Any) -> Listed:
    if not isinstance(raw, dict) or not isinstance(raw.get("server"), dict):
        raise msgspec.ValidationError("`server` is missing")
    meta = raw.get("_meta")
    own = meta.get(OFFICIAL) if isinstance(meta, dict) else None
    status = own if isinstance(own, dict) else {}
    if "status" not in status and isinstance(raw["server"].get("status"), str):
        status = {**status, "status": raw["server"]["status"]}
    return Listed(server=msgspec.convert(raw["server"], Server), status=msgspec.convert(status, Status))


def _decoded(content: bytes, where: str) -> dict[str, Any]:
    try:
        found = _without_nulls(msgspec.json.decode(content))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Failed(f"{where} did not answer with a JSON object, so it is no registry; nothing was changed")
    return found


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the texts that programs get, names included, with their places."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield f"a name in {path or 'server'}", name
            if not path.startswith("_meta") and name not in _FREE:
                yield from _texts(each, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _texts(each, f"{path}[{number}]")
