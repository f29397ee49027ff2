"""`linckia install-client`: enters Linckia in the settings of an MCP client, and takes it out again.

The change is shown and confirmed. A copy of the file is kept beside it, so that `--undo` restores it to the byte; if
the file has changed since, `--undo` takes out only Linckia's entry.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import shutil
import stat
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from kernel.cli.care.exposure import require_out_of_reach
from kernel.cli.clients.jsonc import NotJson, member_at, with_member, without_member
from kernel.cli.clients.places import settings_file
from kernel.cli.settings.layers import Flags
from kernel.cli.settings.loading import load
from kernel.cli.stdio import real_root
from kernel.configure import tokens
from kernel.configure.config import ConfigError
from proto.control.address import find_data_dir
from proto.control.client import Client, NoKernel
from proto.control.commands import Failed, Usage
from proto.control.terminal import complain, say
from proto.grants import Token
from proto.host.durable import replace_file
from proto.host.extras import checkout_script
from proto.json_types import JsonObject
from proto.names import module
from proto.ops.kernel import KernelStatusParams, KernelTokensChanged

BACKUP_ENDING = ".before-linckia"


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """How a client writes a server down."""

    table: str
    """Name of the object or table that lists servers."""
    extra: JsonObject = {}
    """Further members of a server that is started."""
    http: Callable[[str, str], JsonObject] | None = None
    """Returns a server at a URL with a bearer token; None if the client can only start servers."""


def _bearer(kind: str | None, key: str = "url", **extra: object) -> Callable[[str, str], JsonObject]:
    def server(url: str, token: str) -> JsonObject:
        headers = {"Authorization": f"Bearer {token}"}
        return ({} if kind is None else {"type": kind}) | {key: url, "headers": headers} | extra

    return server


FORMATS: Mapping[str, Format] = {
    # Both hide the tools of a server behind a search of their own, unless they are told not to.
    "claude-code": Format(
        table="mcpServers", extra={"type": "stdio", "alwaysLoad": True}, http=_bearer("http", alwaysLoad=True)
    ),
    "copilot-cli": Format(
        table="mcpServers",
        extra={"type": "stdio", "tools": ["*"], "deferTools": "never"},
        http=_bearer("http", tools=["*"], deferTools="never"),
    ),
    "claude-desktop": Format(table="mcpServers"),
    "cursor": Format(table="mcpServers", http=_bearer(None)),
    "vscode": Format(table="servers", extra={"type": "stdio"}, http=_bearer("http")),
    "codex": Format(
        table="mcp_servers", http=lambda url, token: {"url": url, "http_headers": {"Authorization": f"Bearer {token}"}}
    ),
    "gemini": Format(table="mcpServers", http=_bearer(None, "httpUrl")),
    "zed": Format(table="context_servers", extra={"source": "custom"}, http=_bearer(None)),
}


def install_client(arguments: argparse.Namespace) -> int:
    """Show, confirm and make the change. Raises Usage, Failed, ControlError, OSError."""
    place = settings_file(arguments.client, Path.home(), Path.cwd(), os.environ, project=arguments.project)
    if place is None:
        raise Usage(f"{arguments.client} has no settings file for a project; leave --project out")
    # A link stays a link: its target is changed.
    place = place.resolve()
    path = (FORMATS[arguments.client].table, arguments.name)
    if arguments.undo:
        return _undo(arguments, place, path)
    if arguments.http:
        require_out_of_reach(place, arguments, "its token")
    old = _read(place)
    entry = _entry(arguments)
    if old is not None and _member(place, old, path) == entry:
        say(f"{place} has this entry already; nothing was changed.")
        return 0
    new = _with(place, old or "", path, entry)
    if not _confirmed(arguments, place, old, new):
        return 0 if arguments.dry_run else 1
    if arguments.http:
        new = _with(place, old or "", path, _with_token(arguments, entry))
    backup = _backup_of(place)
    # An entry of ours means that the backup shows what was there before the first one.
    if old is not None and not (backup.exists() and _member(place, old, path) is not None):
        _write(backup, place.read_bytes(), like=place)
    place.parent.mkdir(parents=True, exist_ok=True)
    _write(place, new.encode(), like=place)
    undo = f"linckia install-client {arguments.client} --undo" + (" --project" if arguments.project else "")
    undo += "" if arguments.name == "linckia" else f" --name {arguments.name}"
    say(f"{place} is changed. Start {arguments.client} again. To undo this: {undo}")
    return 0


def _has_roots(arguments: argparse.Namespace) -> bool:
    """Return whether the settings name roots, which a kernel has that is started without PATH."""
    with contextlib.suppress(ConfigError):
        return bool(load(Flags(data_dir=str(arguments.data_dir)), os.environ).roots)
    return False


def _undo(arguments: argparse.Namespace, place: Path, path: tuple[str, str]) -> int:
    old = _read(place)
    if old is None or (entry := _member(place, old, path)) is None:
        raise Failed(f"{place} has no server {path[1]!r}; nothing was changed")
    backup = _backup_of(place)
    before = _read(backup)
    new: str | None
    if before is None:
        # There was no file, unless it has changed since.
        new = None if _with(place, "", path, entry) == old else _without(place, old, path)
    elif _with(place, before, path, entry) == old:
        new = before
    elif (earlier := _member(backup, before, path)) is not None:
        new = _with(place, old, path, earlier)
    else:
        new = _without(place, old, path)
    if not _confirmed(arguments, place, old, new):
        return 0 if arguments.dry_run else 1
    if new is None:
        place.unlink()
        say(f"{place} is removed, as it had nothing else.")
    else:
        content = backup.read_bytes() if new == before else new.encode()
        _write(place, content, like=place)
        say(f"{place} is {'as it was before' if new == before else 'without the entry, and otherwise unchanged'}.")
    backup.unlink(missing_ok=True)
    if isinstance(entry, dict) and "command" not in entry:
        _replace_token(arguments.data_dir, _token_name(arguments), None)
    return 0


def _entry(arguments: argparse.Namespace) -> JsonObject:
    """Return the client's entry for Linckia; over HTTP, with a placeholder for the token. Raises Usage, Failed."""
    form = FORMATS[arguments.client]
    if arguments.http:
        if form.http is None:
            raise Usage(f"{arguments.client} can only start servers; leave --http out")
        if arguments.paths:
            raise Usage("--http uses the roots of the running kernel; leave PATH out")
        return form.http(_url(arguments), "…")
    command, *words = program()
    words += ["stdio", *map(real_root, arguments.paths)]
    # The client does not have this environment.
    words += ["--data", str(arguments.data_dir)] if arguments.data_dir != find_data_dir(None, {}) else []
    words += ["--surface", arguments.surface] if arguments.surface else []
    if not arguments.paths and not _has_roots(arguments):
        complain("no PATH is given, so operations on files will be refused; notes need the folder that holds them")
    return form.extra | {"command": command, "args": words}


def _url(arguments: argparse.Namespace) -> str:
    with Client(arguments.data_dir) as client:
        url = client.call(KernelStatusParams()).http_url
    if url is None:
        raise Failed("the running kernel does not serve HTTP; start it without --no-http")
    return f"{url}/{arguments.surface or 'core'}"


def _with_token(arguments: argparse.Namespace, entry: JsonObject) -> JsonObject:
    """Make a token for this client, and return the entry with it. Raises Failed, ControlError."""
    name, secret = _token_name(arguments), tokens.new()
    surfaces = (arguments.surface or "core",)
    made = Token(name=name, sha256=tokens.hash_of(secret), created=time.time(), surfaces=surfaces)
    _replace_token(arguments.data_dir, name, made)
    form = FORMATS[arguments.client]
    assert form.http is not None
    return form.http(str(entry.get("url") or entry.get("httpUrl")), secret)


def _token_name(arguments: argparse.Namespace) -> str:
    return f"{arguments.client}-{arguments.name}"


def _replace_token(data_dir: Path, name: str, made: Token | None) -> None:
    """Store the token with this name, or revoke it; a running kernel applies it at once. Raises ControlError."""
    with tokens.editing(data_dir):
        there = tokens.listed(data_dir)
        others = [each for each in there if each.name != name]
        if made is None and len(others) == len(there):
            return
        tokens.store(data_dir, others if made is None else [*others, made])
    with contextlib.suppress(NoKernel), Client(data_dir) as client:
        client.call(KernelTokensChanged(action="revoke" if made is None else "create", name=name))


def program() -> list[str]:
    """Return the command that starts Linckia from any folder."""
    if (script := checkout_script()) is not None:
        return [str(script)]
    installed = Path(sys.prefix) / "bin" / "linckia"
    return [str(installed)] if installed.exists() else [sys.executable, "-P", "-m", module("kernel.cli")]


def _confirmed(arguments: argparse.Namespace, place: Path, old: str | None, new: str | None) -> bool:
    """Show the change and ask, unless told not to. Raises Failed if nobody can be asked."""
    said = difflib.unified_diff(
        (old or "").splitlines(), (new or "").splitlines(), str(place), str(place), "now", "then", lineterm=""
    )
    say(*said)
    if arguments.dry_run:
        say("Nothing was changed.")
        return False
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise Failed("nobody can be asked here; run it again with --yes to make this change. Nothing was changed")
    with contextlib.suppress(EOFError):
        what = "Create this file" if old is None else "Make this change"
        if input(f"{what}? [y/N] ").strip().lower() in ("y", "yes"):
            return True
    say("Nothing was changed.")
    return False


def _with(place: Path, text: str, path: tuple[str, str], entry: object) -> str:
    if place.suffix == ".toml":
        return _toml(place, text, path, entry)
    try:
        return with_member(text, path, entry)
    except NotJson as error:
        raise Failed(f"{place} is not valid JSON ({error}); nothing was changed") from None


def _without(place: Path, text: str, path: tuple[str, str]) -> str:
    if place.suffix == ".toml":
        return _toml(place, text, path, None)
    try:
        return without_member(text, path)
    except NotJson as error:
        raise Failed(f"{place} is not valid JSON ({error}); nothing was changed") from None


def _member(place: Path, text: str, path: tuple[str, str]) -> object:
    try:
        if ".toml" in place.suffixes:
            table = tomllib.loads(text).get(path[0], {})
            return table.get(path[1]) if isinstance(table, dict) else None
        return member_at(text, path)
    except (NotJson, tomllib.TOMLDecodeError) as error:
        raise Failed(f"{place} cannot be read ({error}); nothing was changed") from None


def _toml(place: Path, text: str, path: tuple[str, str], entry: object) -> str:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(text)
        table = document.get(path[0])
        if table is None:
            table = tomlkit.table(is_super_table=True)
            document[path[0]] = table
        if entry is None:
            del table[path[1]]
        else:
            table[path[1]] = entry
        return tomlkit.dumps(document)
    except (TOMLKitError, TypeError) as error:
        raise Failed(f"{place} is not valid TOML ({error}); nothing was changed") from None


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise Failed(f"{path} is not UTF-8 ({error}); nothing was changed") from None


def _backup_of(place: Path) -> Path:
    return place.with_name(place.name + BACKUP_ENDING)


def _write(path: Path, content: bytes, *, like: Path) -> None:
    """Replace a file, with the mode and owner of `like` if that exists."""
    there = like.stat() if like.exists() else None
    replace_file(path, content)
    if there is not None:
        path.chmod(stat.S_IMODE(there.st_mode))
        with contextlib.suppress(OSError):
            shutil.chown(path, there.st_uid, there.st_gid)
