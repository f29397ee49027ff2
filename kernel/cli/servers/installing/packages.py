"""From a package or a remote of `server.json` to a table `[mcp.NAME]`: the command or address, with its values."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from kernel.cli.servers.installing.answers import Answers, Question, has_hidden, one_line
from kernel.cli.servers.installing.server_json import Argument, Input, KeyValue, Package, Server, Transport
from kernel.cli.servers.options import PACKAGE_KINDS
from proto.control.commands import Failed, Usage
from proto.json_types import Layer
from proto.mounts import SECRET_NAME, is_url

REMOTE: Final = "remote"

_RUNNERS: Final = {
    "npm": ("npx",),
    "pypi": ("uvx", "pipx"),
    "oci": ("docker", "podman"),
    "nuget": ("dnx",),
}
_COMES_WITH: Final = {
    "npm": "npx, which comes with Node.js",
    "pypi": "uvx, which comes with uv, or pipx",
    "oci": "docker or podman",
    "nuget": "dnx, which comes with .NET 10",
}

_IDENTIFIERS: Final = {
    "npm": re.compile(r"(@[A-Za-z0-9~][A-Za-z0-9._~-]*/)?[A-Za-z0-9~][A-Za-z0-9._~-]*"),
    "pypi": re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"),
    "oci": re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*(@sha256:[0-9a-f]{64})?"),
    "nuget": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*"),
}
"""No identifier can be taken for an option, a path or an address."""

_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+!_-]*")
_RANGE = re.compile(r"latest|.*[*^~<>=|, ].*|.*\.x", re.IGNORECASE)

_PUBLIC: Final = {"npm": ("npmjs", "org"), "pypi": ("pypi", "org"), "oci": ("docker", "io"), "nuget": ("nuget", "org")}
"""The domains of the registries that runners use anyway, or of which the user has set a mirror."""

_INDEX_OPTIONS: Final = {"npm": "--registry", "uvx": "--default-index", "pipx": "--index-url", "nuget": "--source"}

_REFERENCE = re.compile(r"\{([A-Za-z0-9_.-]+)\}")

_KIND_OF = {"filepath": "file", "number": "number", "boolean": "boolean"}

_HAS: Final = frozenset({"-i", "--interactive", "--rm", "run", "-y", "--yes"})
"""Options of runners that every command has anyway."""


class Plan(msgspec.Struct, kw_only=True):
    """What would be added. `hidden` are the places of arguments with secrets, `secrets` the names of variables and
    headers that are secret."""

    table: Layer
    kind: str
    hidden: list[int] = []
    secrets: set[str] = set()
    hides_url: bool = False
    roots: list[str] = []
    confine: bool = True
    notes: list[str] = []


def plan(server: Server, answers: Answers, kind: str | None, find: Callable[[str], str | None] = shutil.which) -> Plan:
    """Return how to start or reach the server: by its first package whose runner is here, or else by its first remote.

    Args:
        kind: only this kind of package, or `remote`.

    Raises Usage, Failed.
    """
    why: list[str] = []
    for package in server.packages:
        if kind not in (None, package.registry_type):
            continue
        if (problem := _problem_of(package, find)) == "":
            return _of_package(package, answers, find)
        why.append(f"{one_line(package.registry_type, 40)}: {problem}")
    for remote in server.remotes:
        if kind not in (None, REMOTE):
            continue
        if remote.type in ("streamable-http", "sse"):
            return _of_remote(remote, answers)
        why.append(f"remote: {one_line(remote.type, 40)} is no transport that Linckia knows")
    if not why:
        have = [*(each.registry_type for each in server.packages), *(REMOTE for _ in server.remotes[:1])]
        offers = f"it has {', '.join(map(one_line, dict.fromkeys(have)))}" if have else "it has none at all"
        lacks = f"no package of the kind {kind}" if kind else "nothing to install"
        raise Failed(f"{server.name} has {lacks}: {offers}")
    raise Failed(f"{server.name} cannot be installed here: {'; '.join(why)}. Nothing was changed.")


def bundle_of(server: Server, kind: str | None, find: Callable[[str], str | None] = shutil.which) -> Package | None:
    """Return the bundle to download if that is what would be installed."""
    for package in server.packages:
        if kind in (None, package.registry_type) and _problem_of(package, find) == "":
            return package if package.registry_type == "mcpb" else None
    return None


def _problem_of(package: Package, find: Callable[[str], str | None]) -> str:
    """Return why a package cannot be used here; empty if it can."""
    kind = package.registry_type
    if package.transport.type != "stdio":
        return f"it listens on a port of its own ({one_line(package.transport.type, 40)}), which Linckia cannot start"
    if kind == "mcpb":
        return ""
    if kind not in _RUNNERS:
        return f"packages of this kind are unknown; Linckia knows {', '.join(PACKAGE_KINDS)}"
    return "" if any(map(find, _RUNNERS[kind])) else f"it needs {_COMES_WITH[kind]}; install that, and try again"


def _of_package(package: Package, answers: Answers, find: Callable[[str], str | None]) -> Plan:
    kind = package.registry_type
    if not _IDENTIFIERS[kind].fullmatch(package.identifier):
        raise Failed(f"`identifier` {one_line(package.identifier)!r} is no name of a package in {kind}")
    runner = _runner(package, find)
    made = Plan(table={}, kind=kind)
    words = _words([*package.runtime_arguments], answers, "runtimeArguments", package.runtime_hint or runner)
    runtime = [word for word in words if word[0] not in _HAS]
    args: list[tuple[str, bool]] = [(each, False) for each in _start(package, runner)]
    values, made.secrets = _values(package.environment_variables, answers)
    if kind == "oci":
        # The container is a child of a service that confinement cannot reach.
        made.confine = False
        args += [(word, False) for name in values for word in ("-e", name)]
    args += [*runtime, *((each, False) for each in _named(package, runner))]
    args += _words(package.package_arguments, answers, "packageArguments", "")
    made.table = {"command": str(find(runner)), "args": [text for text, _ in args]}
    made.table |= {"env": values} if values else {}
    made.hidden = [place for place, (_, is_secret) in enumerate(args) if is_secret]
    return made


def _runner(package: Package, find: Callable[[str], str | None]) -> str:
    names = _RUNNERS[package.registry_type]
    hinted = [package.runtime_hint] if package.runtime_hint in names else []
    return next(name for name in (*hinted, *names) if find(name))


def _start(package: Package, runner: str) -> list[str]:
    """Return the options that a runner always gets."""
    base, option = package.registry_base_url.rstrip("/"), _INDEX_OPTIONS.get(runner, "")
    option = option or _INDEX_OPTIONS.get(package.registry_type, "")
    index: list[str] = []
    if option and base:
        if not is_url(base):
            raise Failed(f"`registryBaseUrl` {one_line(base)!r} is no address")
        host = re.split(r"[/:@?#]", base.partition("://")[2])[0]
        index = [f"{option}={base}"] if tuple(host.split(".")[-2:]) != _PUBLIC[package.registry_type] else []
    if runner == "npx":
        return ["-y", *index]
    if runner == "uvx":
        return index
    if runner == "pipx":
        return ["run", *index]
    return ["--yes", *index] if runner == "dnx" else ["run", "-i", "--rm"]


def _named(package: Package, runner: str) -> list[str]:
    """Return the package with its one version, as the runner takes it."""
    name, version = package.identifier, package.version
    if package.registry_type == "oci":
        if version and ":" not in name.rpartition("/")[2]:
            name = f"{name}:{_exact(version)}"
        tag = name.rpartition("/")[2].partition(":")[2]
        if not tag or tag == "latest":
            raise Failed(f"`identifier` {one_line(name)} names no version; a tag such as :1.2.3 is needed")
        return [name]
    _exact(version)
    if runner == "pipx":
        return ["--spec", f"{name}=={version}", name]
    return [f"{name}@{version}"]


def _exact(version: str) -> str:
    if _RANGE.fullmatch(version) or not _VERSION.fullmatch(version):
        raise Failed(f"`version` {one_line(version)!r} of the package is not one version, such as 1.2.3")
    return version


def _of_remote(remote: Transport, answers: Answers) -> Plan:
    made = Plan(table={}, kind=REMOTE)
    url, made.hides_url = _filled(remote.url, remote.variables, answers, "remotes.url")
    if not is_url(url) or has_hidden(url) or " " in url or _REFERENCE.search(url):
        raise Failed(f"`remotes.url` {one_line(remote.url)!r} is no address that starts with https://")
    headers, made.secrets = _values(remote.headers, answers)
    made.table = {"url": url, "transport": "http" if remote.type == "streamable-http" else "sse"}
    made.table |= {"headers": headers} if headers else {}
    if not any(name.lower() == "authorization" for name in headers):
        # It does nothing unless the server asks for a login.
        made.table["oauth"] = {}
        made.notes.append("if it asks for a login (OAuth), the address to open is shown")
    if url.startswith("http://"):
        made.notes.append("The address is not encrypted (http://): anybody on the way can read and change everything.")
    return made


def _values(inputs: Sequence[KeyValue], answers: Answers) -> tuple[dict[str, str], set[str]]:
    """Return variables or headers that have a value, and the names of the secret ones."""
    found: dict[str, str] = {}
    secrets: set[str] = set()
    for each in inputs:
        values, is_secret = _resolved(each, each.name, answers, secret=bool(SECRET_NAME.search(each.name)))
        if values:
            found[each.name] = values[0]
            secrets |= {each.name} if is_secret else set()
    return found, secrets


def _words(arguments: Sequence[Argument], answers: Answers, where: str, program: str) -> list[tuple[str, bool]]:
    """Return words of the command line, each with whether it is secret."""
    words: list[tuple[str, bool]] = []
    for number, each in enumerate(arguments):
        if each.type == "positional":
            name = each.value_hint or f"{where}-{number + 1}"
            values, is_secret = _resolved(each, name, answers, many=each.is_repeated)
            words += [(value, is_secret) for value in values]
            continue
        if not each.name:
            raise Failed(f"`{where}[{number}].name` is missing: a named argument needs one")
        words += _option(each, answers, is_bare=_takes_no_value(each))
    # Some servers repeat the program itself.
    return words[1:] if words and words[0][0] == program else words


def _takes_no_value(argument: Argument) -> bool:
    """Return whether nothing in an option's description speaks of a value."""
    speaks = argument.value is not None or argument.default or argument.value_hint or argument.placeholder
    return not (speaks or argument.choices or argument.is_secret) and argument.format in ("string", "boolean")


def _option(argument: Argument, answers: Answers, *, is_bare: bool) -> Iterator[tuple[str, bool]]:
    if is_bare and argument.is_required and argument.format == "string":
        yield argument.name, False
        return
    values, is_secret = _resolved(argument, argument.name, answers, many=argument.is_repeated)
    for value in values:
        if argument.format == "boolean" or (is_bare and value in ("true", "false")):
            if value == "true":
                yield argument.name, False
        elif argument.name.endswith("="):
            yield argument.name + value, is_secret
        else:
            yield argument.name, False
            yield value, is_secret


def _resolved(
    given: Input, name: str, answers: Answers, *, secret: bool = False, many: bool = False
) -> tuple[list[str], bool]:
    """Return the values of an input, and whether they are secret. Raises Usage."""
    secret = secret or given.is_secret
    if given.value is not None:
        text, has_secret = _filled(given.value, given.variables, answers, name)
        # A variable that may be left out, and is, takes its argument with it.
        is_left_out = any(each in given.variables for each in _REFERENCE.findall(text)) or not text
        return ([] if is_left_out and _REFERENCE.search(given.value) else [text]), has_secret or given.is_secret
    return answers.of(_question(given, name, secret=secret, many=many)), secret


def _question(given: Input, name: str, *, secret: bool, many: bool = False) -> Question:
    if has_hidden(name):
        raise Usage("a name of the server's settings has control characters")
    hint = f"{given.description} such as {given.placeholder}" if given.placeholder else given.description
    return Question(
        name=name,
        text=hint.strip(),
        required=given.is_required,
        secret=secret,
        default=(given.default,) if given.default is not None else (),
        choices=tuple(given.choices),
        kind=_KIND_OF.get(given.format, "string"),
        many=many,
    )


def _filled(text: str, variables: dict[str, Input], answers: Answers, name: str) -> tuple[str, bool]:
    """Return a template with values in place of `{name}`, and whether one of them is secret."""
    secret = False

    def value(found: re.Match[str]) -> str:
        nonlocal secret
        if (given := variables.get(found[1])) is None:
            return found[0]
        values, is_secret = _resolved(given, found[1], answers)
        secret |= is_secret
        return values[0] if values else found[0]

    return _REFERENCE.sub(value, text), secret
