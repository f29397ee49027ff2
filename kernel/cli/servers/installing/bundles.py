"""Bundles (`.mcpb`, formerly `.dxt`): zip files with a server and a manifest, unpacked into the data directory.

A bundle is read once, as a whole, so that what is unpacked is what was shown. It comes from strangers: nothing is
written outside its own folder, which is named after its content, and only up to a size.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import re
import shutil
import stat
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from kernel.cli.servers.installing.answers import Answers, Question, has_hidden, one_line
from kernel.cli.servers.installing.packages import Plan
from kernel.cli.servers.secret_files import BUNDLES, FOLDER
from proto.control.commands import Failed
from proto.control.terminal import size
from proto.host.durable import sync_folder
from proto.json_types import Layer
from proto.mounts import SECRET_NAME, service_of

FILE_BYTES: Final = 256 * 1024 * 1024
UNPACKED_BYTES: Final = 1024 * 1024 * 1024
MANIFEST_BYTES: Final = 1024 * 1024
ENTRIES: Final = 50_000
PATH_CHARS: Final = 1000

_PIECE = 1024 * 1024
_VARIABLE = re.compile(r"\$\{([^${}]{1,200})\}")
_PLATFORM: Final = {"linux": "linux", "darwin": "darwin"}.get(sys.platform, sys.platform)


class _Command(msgspec.Struct, frozen=True, kw_only=True):
    command: str = ""
    args: list[str] = []
    env: dict[str, str] = {}
    platform_overrides: dict[str, _Command] = {}


class _Server(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["node", "python", "binary", "uv"]
    entry_point: str
    mcp_config: _Command | None = None


class _Option(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["string", "number", "boolean", "directory", "file"]
    title: str = ""
    description: str = ""
    required: bool = False
    default: str | float | bool | list[str] | None = None
    multiple: bool = False
    sensitive: bool = False
    min: float | None = None
    max: float | None = None


class _Compatibility(msgspec.Struct, frozen=True, kw_only=True):
    platforms: list[str] = []
    runtimes: dict[str, str] = {}


class _Author(msgspec.Struct, frozen=True):
    name: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`manifest.json`, as far as it matters here; other members are ignored."""

    name: str
    version: str
    server: _Server
    manifest_version: str = ""
    dxt_version: str = ""
    display_name: str = ""
    description: str = ""
    author: _Author = _Author()
    compatibility: _Compatibility = _Compatibility()
    user_config: dict[str, _Option] = {}


class _Project(msgspec.Struct, frozen=True):
    dependencies: list[str] = []


class _Pyproject(msgspec.Struct, frozen=True):
    project: _Project = _Project()


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle that has been checked, and not been unpacked."""

    content: bytes
    digest: str
    manifest: Manifest
    names: frozenset[str]

    def folder(self, data_dir: Path) -> Path:
        """Return where it is unpacked."""
        return data_dir / FOLDER / BUNDLES / self.digest


def bundle_at(path: Path) -> Bundle:
    """Return the bundle in a file. Raises Failed."""
    try:
        with path.open("rb") as stream:
            content = stream.read(FILE_BYTES + 1)
    except OSError as error:
        raise Failed(f"cannot read {path}: {error.strerror}") from None
    return bundle_in(content, str(path))


def bundle_in(content: bytes, where: str) -> Bundle:
    """Return a bundle from its bytes, after checking each entry. Raises Failed, which says what is wrong."""
    if len(content) > FILE_BYTES:
        raise Failed(f"{where} is larger than {size(FILE_BYTES)}; nothing was changed")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = _checked(archive.infolist(), where)
            manifest = _manifest(_read(archive, "manifest.json", MANIFEST_BYTES, where), where)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, RuntimeError) as error:
        raise Failed(f"{where} is no bundle: {one_line(str(error), 100)}; nothing was changed") from None
    if manifest.server.entry_point not in names:
        raise Failed(f"{where}: `server.entry_point` is {one_line(manifest.server.entry_point)!r}, which is not in it")
    return Bundle(
        content=content, digest=hashlib.sha256(content).hexdigest(), manifest=manifest, names=frozenset(names)
    )


def _checked(entries: list[zipfile.ZipInfo], where: str) -> set[str]:
    """Return the names of the files. Raises Failed for what would be written elsewhere, or would fill the disk."""
    if len(entries) > ENTRIES:
        raise Failed(f"{where} has more than {ENTRIES:,} files; nothing was changed")
    if sum(each.file_size for each in entries) > UNPACKED_BYTES:
        raise Failed(f"{where} would take more than {size(UNPACKED_BYTES)} unpacked; nothing was changed")
    files: set[str] = set()
    folders: set[str] = set()
    for each in entries:
        # `filename` ends at a NUL.
        name = each.orig_filename
        shown = f"{where}: the file {one_line(name, 100)!r}"
        parts = name.rstrip("/").split("/")
        is_odd = name.startswith("/") or "\\" in name or ":" in parts[0] or has_hidden(name) or len(name) > PATH_CHARS
        if is_odd or any(part in ("", ".", "..") for part in parts):
            raise Failed(f"{shown} would be outside its folder; nothing was changed")
        kind = stat.S_IFMT(each.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise Failed(f"{shown} is a link or a device, and no bundle needs one; nothing was changed")
        if each.flag_bits & 0x1 or each.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Failed(f"{shown} is encrypted or packed in an unusual way; nothing was changed")
        parents = {"/".join(parts[:depth]) for depth in range(1, len(parts))}
        own = "/".join(parts)
        if own in files or (not each.is_dir() and own in folders) or parents & files:
            raise Failed(f"{shown} is in it twice; nothing was changed")
        folders |= parents | ({own} if each.is_dir() else set())
        files |= set() if each.is_dir() else {own}
    return files


def _read(archive: zipfile.ZipFile, name: str, limit: int, where: str) -> bytes:
    try:
        with archive.open(name) as stream:
            content = stream.read(limit + 1)
    except KeyError:
        raise Failed(f"{where} has no manifest.json, so it is no bundle; nothing was changed") from None
    if len(content) > limit:
        raise Failed(f"{where}: {name} is larger than {size(limit)}; nothing was changed")
    return content


def _manifest(content: bytes, where: str) -> Manifest:
    try:
        found = msgspec.json.decode(content, type=Manifest)
        texts = json.dumps(msgspec.json.decode(content).get("server"), ensure_ascii=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError) as error:
        raise Failed(f"{where}: manifest.json: {one_line(str(error))}; nothing was changed") from None
    if not (found.manifest_version or found.dxt_version).startswith("0."):
        version = one_line(found.manifest_version or found.dxt_version, 20)
        raise Failed(f"{where}: `manifest_version` is {version!r}; Linckia knows 0.1 to 0.4")
    # JSON shows control characters as escapes.
    if has_hidden(texts) or re.search(r"\\u00[01]|\\[nrbft]|\\u007f", texts):
        raise Failed(f"{where}: `server` in manifest.json has control characters; nothing was changed")
    return found


def plan(
    bundle: Bundle, data_dir: Path, name: str, answers: Answers, find: Callable[[str], str | None] = shutil.which
) -> Plan:
    """Return how to start a bundle's server. Raises Failed, Usage."""
    manifest, folder = bundle.manifest, bundle.folder(data_dir)
    platforms = manifest.compatibility.platforms
    if platforms and _PLATFORM not in platforms:
        raise Failed(f"{manifest.name} runs only on {', '.join(map(one_line, platforms))}; this is {_PLATFORM}")
    made = Plan(table={}, kind="mcpb")
    values, secrets = _values(manifest, answers, made)
    values |= {"__dirname": [str(folder)], **_places()}
    command = _command(bundle, folder, data_dir, name)
    env = {}
    for key, text in command.env.items():
        if (filled := _filled(text, values)) is not None:
            env[key] = filled
            made.secrets |= {key} if SECRET_NAME.search(key) or _names(text) & secrets else set()
    args: list[str] = []
    for text in command.args:
        words = _words(text, values)
        made.hidden += range(len(args), len(args) + len(words)) if _names(text) & secrets else []
        args += words
    program = _program(_filled(command.command, values) or "", bundle, folder, find)
    made.table = {"command": program, "args": args, "cwd": str(folder)} | ({"env": env} if env else {})
    needs = [f"{one_line(each, 20)} {one_line(what, 40)}" for each, what in manifest.compatibility.runtimes.items()]
    made.notes += [f"it needs {', '.join(needs)}"] if needs else []
    return made


def _values(manifest: Manifest, answers: Answers, made: Plan) -> tuple[dict[str, list[str]], set[str]]:
    """Return the values of `user_config`, by variable, and which are secret; folders become roots."""
    found: dict[str, list[str]] = {}
    secrets: set[str] = set()
    for key, option in manifest.user_config.items():
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", key):
            raise Failed(f"`user_config` in manifest.json has an odd name: {one_line(key)!r}")
        values = answers.of(_question(key, option))
        if values:
            found[f"user_config.{key}"] = values
        if option.sensitive:
            secrets.add(f"user_config.{key}")
        if option.type == "directory":
            made.roots += values
    return found, secrets


def _question(key: str, option: _Option) -> Question:
    given = option.default if isinstance(option.default, list) else [option.default]
    texts = [str(each).lower() if isinstance(each, bool) else _number(each) for each in given if each is not None]
    defaults = [_filled(each, _places()) or "" for each in texts if each != ""]
    if option.type == "directory":
        # Not everybody has a desktop.
        defaults = [each for each in defaults if Path(each).expanduser().is_dir()]
    return Question(
        name=key,
        text=": ".join(filter(None, (option.title, option.description))),
        required=option.required,
        secret=option.sensitive,
        default=tuple(defaults),
        kind=option.type,
        many=option.multiple,
        least=option.min,
        most=option.max,
    )


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) and value == int(value) else str(value)


def _places() -> dict[str, list[str]]:
    home = Path.home()
    folders = {name: [str(home / name.title())] for name in ("DESKTOP", "DOCUMENTS", "DOWNLOADS")}
    return {"HOME": [str(home)], **folders, "pathSeparator": [os.sep], "/": [os.sep]}


def _command(bundle: Bundle, folder: Path, data_dir: Path, name: str) -> _Command:
    """Return the command for this platform, with its variables. Raises Failed."""
    server = bundle.manifest.server
    if server.type == "uv":
        return _with_uv(bundle, folder, data_dir / "services" / service_of(name))
    if server.mcp_config is None or not server.mcp_config.command:
        raise Failed("`server.mcp_config.command` is missing in manifest.json; nothing was changed")
    given = server.mcp_config
    own = given.platform_overrides.get(_PLATFORM, _Command())
    return _Command(command=own.command or given.command, args=own.args or given.args, env=own.env or given.env)


def _with_uv(bundle: Bundle, folder: Path, own: Path) -> _Command:
    """Return a command that installs what the bundle needs into the server's own folder."""
    server = bundle.manifest.server
    env = server.mcp_config.env if server.mcp_config else {}
    if "pyproject.toml" not in bundle.names:
        raise Failed("the bundle has no pyproject.toml, which the type `uv` needs; nothing was changed")
    if "uv.lock" in bundle.names:
        run = ["run", "--frozen", "--directory", str(folder), server.entry_point]
        return _Command(command="uv", args=run, env={**env, "UV_PROJECT_ENVIRONMENT": str(own / "venv")})
    needs = [f"--with={each}" for each in _dependencies(bundle)]
    # Without a lock file, uv would write one into the bundle.
    return _Command(command="uv", args=["run", "--no-project", *needs, str(folder / server.entry_point)], env=env)


def _dependencies(bundle: Bundle) -> list[str]:
    """Return what the project of a bundle needs. Raises Failed."""
    where = "pyproject.toml of the bundle"
    with zipfile.ZipFile(io.BytesIO(bundle.content)) as archive:
        content = _read(archive, "pyproject.toml", MANIFEST_BYTES, where)
    try:
        project = msgspec.toml.decode(content, type=_Pyproject).project
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Failed(f"{where}: {one_line(str(error))}; nothing was changed") from None
    if any(map(has_hidden, project.dependencies)):
        raise Failed(f"{where}: `project.dependencies` has control characters; nothing was changed")
    return project.dependencies


def _program(command: str, bundle: Bundle, folder: Path, find: Callable[[str], str | None]) -> str:
    """Return the path of the program: one of the bundle, or of this machine. Raises Failed."""
    inside = os.path.relpath(command, folder) if os.path.isabs(command) else os.path.normpath(command)
    if inside in bundle.names:
        return str(folder / inside)
    if "/" in command:
        raise Failed(f"`server.mcp_config.command` is {one_line(command)!r}, which is not in the bundle")
    # Many systems have no `python`.
    for name in (command, *(["python3"] if command == "python" else [])):
        if found := find(name):
            return str(Path(found).absolute())
    raise Failed(f"the server needs {one_line(command)}, which is not installed; install it, and try again")


def _names(text: str) -> set[str]:
    return set(_VARIABLE.findall(text))


def _words(text: str, values: Mapping[str, list[str]]) -> list[str]:
    """Return an argument with values in place of variables: several if it is a list, none if one has no value."""
    if (whole := _VARIABLE.fullmatch(text)) and (whole[1] in values or whole[1].startswith("user_config.")):
        return values.get(whole[1], [])
    filled = _filled(text, values)
    return [] if filled is None else [filled]


def _filled(text: str, values: Mapping[str, list[str]]) -> str | None:
    """Return a text with values in place of variables; None if an option has no value. In one pass: a value may look
    like a variable."""
    if any(name.startswith("user_config.") and not values.get(name) for name in _names(text)):
        return None
    return _VARIABLE.sub(lambda found: ",".join(values[found[1]]) if found[1] in values else found[0], text)


@contextlib.contextmanager
def unpacked(bundle: Bundle | None, data_dir: Path, named: Callable[[], Any]) -> Iterator[None]:
    """Unpack a bundle while the settings are changed, and keep it if they are.

    Args:
        named: returns the tables of all servers; folders that none of them names are removed.

    Raises Failed, OSError.
    """
    if bundle is None:
        yield
        return
    folder = bundle.folder(data_dir)
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(folder.parent):
        sweep(folder.parent, named())
        try:
            if not folder.exists():
                _unpack(bundle, folder)
            yield
        except BaseException:
            sweep(folder.parent, named())
            raise


def remove_unused(data_dir: Path, named: Callable[[], Any]) -> None:
    """Remove the bundles that no table names. Raises OSError."""
    folder = data_dir / FOLDER / BUNDLES
    if folder.is_dir():
        with _alone(folder):
            sweep(folder, named())


def sweep(folder: Path, tables: Layer) -> None:
    """Remove what no table names, such as what an interrupted command left."""
    text = json.dumps(tables, default=str)
    for path in folder.iterdir():
        if path.is_dir() and path.name not in text:
            shutil.rmtree(path)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other command changes the bundles."""
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _unpack(bundle: Bundle, folder: Path) -> None:
    new = folder.with_name(f"{folder.name[:16]}.new")
    new.mkdir(mode=0o700)
    left = UNPACKED_BYTES
    where = f"the bundle {bundle.manifest.name}"
    try:
        with zipfile.ZipFile(io.BytesIO(bundle.content)) as archive:
            for each in archive.infolist():
                path = new / each.orig_filename
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                if each.is_dir():
                    path.mkdir(mode=0o700, exist_ok=True)
                else:
                    left = _write(archive, each, path, left, where)
    except (zipfile.BadZipFile, EOFError, ValueError, RuntimeError) as error:
        raise Failed(f"{where} is damaged: {one_line(str(error), 100)}; nothing was changed") from None
    # Thousands of files, at once.
    os.sync()
    new.rename(folder)
    sync_folder(folder.parent)


def _write(archive: zipfile.ZipFile, each: zipfile.ZipInfo, path: Path, left: int, where: str) -> int:
    """Write a file; return how many bytes may still be written. Raises Failed."""
    mode = 0o700 if (each.external_attr >> 16) & 0o111 else 0o600
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with archive.open(each) as stream, open(descriptor, "wb") as out:
        while piece := stream.read(_PIECE):
            left -= len(piece)
            if left < 0:
                raise Failed(f"{where} would take more than {size(UNPACKED_BYTES)} unpacked; nothing was changed")
            out.write(piece)
    return left
