"""Changes to the tables `[mcp.NAME]` of `linckia.toml`, which a running kernel applies at once."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import tomllib
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernel.cli.servers.secret_files import FOLDER, has_secret, secrets_of
from kernel.cli.settings.layers import Flags
from kernel.cli.settings.loading import load
from kernel.cli.settings.mount_settings import has_variables, is_variable
from kernel.cli.settings_file import REMOVED, SettingsFile, edited
from kernel.configure.config import ConfigError
from proto.control.address import log_dir
from proto.control.client import CallFailed, Client, NoKernel
from proto.control.commands import Failed, Usage
from proto.json_types import Layer
from proto.mounts import TABLE, service_of
from proto.ops.kernel import KernelReloadMounts, MountsReloaded
from proto.suggestions import nearest

RELOADED_S = 60.0


def flags_for(data_dir: Path) -> Flags:
    """Return the settings of a command line that names only the data directory."""
    return Flags(data_dir=str(data_dir))


def mounts(data_dir: Path) -> dict[str, Layer]:
    """Return the tables of the enabled servers in the settings files and the environment. Raises Usage."""
    try:
        return load(flags_for(data_dir), os.environ).mounts
    except ConfigError as error:
        raise Usage(str(error)) from None


def written(data_dir: Path) -> dict[str, Layer]:
    """Return the tables in `linckia.toml` alone, as they are written. Raises Usage."""
    try:
        tables = tomllib.loads(SettingsFile(data_dir).text).get(TABLE, {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Usage(f"linckia.toml is not valid TOML: {error}") from None
    return {name: table for name, table in tables.items() if isinstance(table, dict)}


def known(data_dir: Path, name: str) -> str:
    """Return the name of a server in any settings. Raises Usage, with a suggestion."""
    there = {**written(data_dir), **mounts(data_dir)}
    if name not in there:
        hint = nearest(name, there) if there else "; there are none: see `linckia mcp add --help`"
        raise Usage(f"there is no server {name!r}{hint}")
    return name


def server_of(table: Layer) -> str:
    """Return the command line or URL of a server, for people, without secrets; of such a URL, only the server."""
    if "command" in table:
        args = list(table.get("args", []))
        for place, secret in secrets_of(args).items():
            args[place] = args[place].replace(secret, "…")
        return shlex.join([table["command"], *args])
    if source := table.get("url_from"):
        return f"URL in {source}"
    url = str(table.get("url", ""))
    if not has_secret(url):
        return url
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return "…"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/…"


def change(data_dir: Path, changes: Mapping[Sequence[str], object]) -> MountsReloaded | None:
    """Change settings below `[mcp]`, all or none, and return what a running kernel did; None if none runs.

    Raises Failed, Usage, CallFailed; all settings are then as before.
    """
    settings = SettingsFile(data_dir)
    text = settings.text
    for path, value in changes.items():
        text = edited(text, (TABLE, *path), value)
    settings.write(text)
    try:
        load(flags_for(data_dir), os.environ)
        return reload(data_dir)
    except (ConfigError, CallFailed) as error:
        settings.undo()
        raise Failed(f"nothing was changed: {error}") from None


def reload(data_dir: Path) -> MountsReloaded | None:
    """Let a running kernel read the settings again; None if none runs. Raises CallFailed."""
    try:
        with Client(data_dir) as client:
            return client.call(KernelReloadMounts(), timeout_s=RELOADED_S)
    except NoKernel:
        return None


def remove(data_dir: Path, name: str) -> None:
    """Remove a server's table, and the files with secrets that were made for it. Raises Failed, Usage, CallFailed."""
    if name not in written(data_dir):
        known(data_dir, name)
        raise Failed(
            f"{name} is not in linckia.toml of {data_dir}; remove it where it is set, or `linckia mcp disable`"
        )
    change(data_dir, {(name,): REMOVED})
    for path in secret_files(data_dir, name):
        path.unlink(missing_ok=True)
    # As if it were full: another server of this name begins with a new log.
    path = log_dir(data_dir) / f"{service_of(name)}.log"
    with contextlib.suppress(FileNotFoundError):
        path.replace(path.with_suffix(".log.1"))


def secret_files(data_dir: Path, name: str) -> list[Path]:
    """Return the files with secrets that `linckia mcp import` or `linckia wrap` made for a server."""
    folder = data_dir / FOLDER
    return [path for path in sorted(folder.glob(f"{name}.*")) if path.is_file()]


def table_of(arguments: argparse.Namespace) -> Layer:
    """Return the table for the options of `linckia mcp add` and `linckia wrap`. Raises Usage."""
    url = getattr(arguments, "url", None)
    if bool(arguments.server) == bool(url):
        raise Usage("name the server: `-- COMMAND ARG…`" + (", or --url URL, not both" if "url" in arguments else ""))
    for option in ("env", "env_from", "cwd") if url else ("headers", "headers_from"):
        if getattr(arguments, option, None):
            name = {"headers": "header", "headers_from": "header-env"}.get(option, option.replace("_", "-"))
            raise Usage(f"--{name} is for a server {'with a command' if url else 'with --url'}")
    table: Layer = {"url": url} if url else _command(arguments.server, arguments.cwd)
    pairs = ("env", "headers", "headers_from")
    for key, given in ((key, getattr(arguments, key, None)) for key in pairs):
        if given:
            table[key] = dict(_pair(each, f"--{key.removesuffix('s').replace('s_from', '-env')}") for each in given)
    for key in ("headers_from", "env_from"):
        if sources := getattr(arguments, key, None):
            table[key] = _sources(table[key] if key == "headers_from" else sources)
    table |= _walls(arguments) if hasattr(arguments, "confine") else {}
    table |= {"share": arguments.share} if arguments.share else {}
    table |= {"start": "eager"} if arguments.eager else {}
    return table | {name: True for name in ("pin", "stateful") if getattr(arguments, name)}


def _walls(arguments: argparse.Namespace) -> Layer:
    """Return the keys that say what the server may write to. Raises Usage."""
    roots = [Path.cwd() / Path(each).expanduser() for each in arguments.server_roots or ()]
    for root in roots:
        if not root.is_dir():
            raise Usage(f"--root: there is no folder {root}")
    return ({"roots": list(map(str, roots))} if roots else {}) | ({"confine": True} if arguments.confine else {})


def _command(server: Sequence[str], cwd: str | None) -> Layer:
    command, *args = server
    here = Path.cwd()
    folder = here if cwd is None else here / Path(cwd).expanduser()
    if not folder.is_dir():
        raise Usage(f"--cwd: there is no folder {folder}")
    if "/" in command:
        command = str(folder / Path(command).expanduser())
    table: Layer = {"command": command, "args": args}
    # A path that exists from here was probably meant from here.
    if cwd is not None or any(_is_relative_path(each, here) for each in args):
        table["cwd"] = str(folder)
    return table if args else {key: value for key, value in table.items() if key != "args"}


def _is_relative_path(text: str, folder: Path) -> bool:
    return not text.startswith(("/", "-")) and (text in (".", "..") or (len(text) < 4096 and (folder / text).exists()))


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise Usage(f"{option}: write it as K=V")
    return name, value


def _sources(given: object) -> object:
    """Return `env_from` or `headers_from` with absolute paths: the command's relative ones start from here."""

    def path(text: str) -> str:
        return str(Path.cwd() / Path(text).expanduser())

    if isinstance(given, dict):
        return {name: each if has_variables(each) else path(each) for name, each in given.items()}
    return [each if is_variable(each) else path(each) for each in given] if isinstance(given, list) else given
