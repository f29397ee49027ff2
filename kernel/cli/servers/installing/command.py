"""`linckia mcp search` and `linckia mcp install`: find a server in a registry, show what it would run, and add it.

Nothing is run and nothing is changed before the user has said yes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kernel.cli.servers.client_files import mount_name
from kernel.cli.servers.installing import bundles
from kernel.cli.servers.installing.answers import Answers, one_line
from kernel.cli.servers.installing.download import NotThere, downloaded
from kernel.cli.servers.installing.packages import Plan, bundle_of, plan
from kernel.cli.servers.installing.registry import address_of, one, search
from kernel.cli.servers.installing.server_json import Listed, Package
from kernel.cli.servers.secret_files import store_secrets, without_secrets
from kernel.cli.servers.tables import change, mounts, written
from kernel.cli.servers.testing import tested
from kernel.cli.settings.mount_settings import problem_of
from proto.control.commands import Failed, Usage
from proto.control.terminal import Cell, complain, confirmed, say, show_answer
from proto.json_types import Layer
from proto.mounts import TABLE, service_of

BUNDLE_S: Final = 300.0
"""Time for the download of a bundle."""


def search_servers(arguments: argparse.Namespace, data_dir: Path) -> int:
    """List servers of the registry. Raises Failed, Usage."""
    if not 1 <= arguments.limit <= 500:
        raise Usage("--limit: expected 1 to 500")
    words = [word for each in arguments.words for word in each.split()]
    if not words:
        raise Usage("name at least one word to search for")
    registry, problems = address_of(data_dir, arguments.registry), list[str]()
    found, is_more = search(registry, words, arguments.limit, problems)
    for problem in problems[:5]:
        complain(one_line(problem))
    if not found and not arguments.json:
        say(f"{registry} has no server with {' and '.join(words)} in its name.")
        return 0
    rows: list[list[Cell]] = [
        [each.server.name, one_line(each.server.version, 20), _kinds(each), one_line(_about(each))] for each in found
    ]
    shown = [each.server for each in found]
    show_answer(arguments.json, shown, ("NAME", "VERSION", "RUNS BY", "DESCRIPTION"), rows)
    if not arguments.json:
        if is_more:
            say(f"There are more than {arguments.limit}: add a word, or --limit.")
        say("To install one: linckia mcp install NAME")
    return 0


def _kinds(each: Listed) -> str:
    kinds = [package.registry_type for package in each.server.packages] + ["remote"] * bool(each.server.remotes)
    return ", ".join(one_line(kind, 10) for kind in dict.fromkeys(kinds)) or "-"


def _about(each: Listed) -> str:
    mark = "" if each.status.status == "active" else f"[{each.status.status}] "
    return f"{mark}{each.server.description or each.server.title}"


def install(arguments: argparse.Namespace, data_dir: Path) -> int:
    """Add a server of the registry. Raises Usage, Failed, CallFailed, OSError."""
    asks = sys.stdin.isatty() and not arguments.yes
    if not asks and not (arguments.yes or arguments.dry_run):
        raise Usage("install asks before it changes anything, but stdin is no terminal; add --yes, or --dry-run")
    answers = Answers(_given(arguments), asks=asks and not arguments.dry_run)
    path = Path(arguments.name).expanduser()
    if path.suffix.lower() in (".mcpb", ".dxt") or path.is_file():
        return _from_file(arguments, data_dir, answers, bundles.bundle_at(path))
    return _from_registry(arguments, data_dir, answers)


def _from_registry(arguments: argparse.Namespace, data_dir: Path, answers: Answers) -> int:
    registry = address_of(data_dir, arguments.registry)
    found = one(registry, arguments.name, arguments.version)
    server = found.server
    name = _name(arguments, data_dir, server.name.rpartition("/")[2])
    bundle = None
    if package := bundle_of(server, arguments.use):
        bundle = _downloaded(package)
        made = bundles.plan(bundle, data_dir, name, answers)
    else:
        made = plan(server, answers, arguments.use)
    answers.check()
    about: list[Cell] = [f"{server.name} {one_line(server.version)} of {registry}: {one_line(server.description)}"]
    if source := server.repository.url or server.website_url:
        about.append(f"  from {one_line(source)}")
    if found.status.status != "active":
        said = one_line(found.status.status_message)
        about.append((f"  Its authors say that it is {one_line(found.status.status)}. {said}".rstrip(), "yellow"))
    return _added(arguments, data_dir, name, made, answers, about, bundle)


def _from_file(arguments: argparse.Namespace, data_dir: Path, answers: Answers, bundle: bundles.Bundle) -> int:
    for option, given in (("--use", arguments.use), ("--registry", arguments.registry)):
        if given:
            raise Usage(f"{option} is for servers of a registry, not for a file")
    manifest = bundle.manifest
    name = _name(arguments, data_dir, manifest.name)
    made = bundles.plan(bundle, data_dir, name, answers)
    answers.check()
    who = one_line(manifest.author.name, 100) or "an unknown author"
    title = one_line(manifest.display_name or manifest.name, 100)
    about: list[Cell] = [f"{title} {one_line(manifest.version, 50)} by {who}: {one_line(manifest.description)}"]
    about.append(f"  from {arguments.name}, sha256 {bundle.digest}; nobody has checked who made it")
    return _added(arguments, data_dir, name, made, answers, about, bundle)


def _downloaded(package: Package) -> bundles.Bundle:
    """Return the bundle that a registry names. Raises Failed."""
    url = package.identifier
    if not re.fullmatch(r"https://[^/\s@]+/\S+", url):
        raise Failed(f"`identifier` {one_line(url)!r} of the bundle is no address that starts with https://")
    if not re.fullmatch(r"[0-9a-f]{64}", package.file_sha256):
        raise Failed("`fileSha256` of the bundle is missing in the registry, so it cannot be checked")
    say(f"Downloading {one_line(url)} …", to=sys.stderr, flush=True)
    try:
        content = downloaded(url, limit_bytes=bundles.FILE_BYTES, limit_s=BUNDLE_S)
    except NotThere:
        raise Failed(f"there is no bundle at {one_line(url)}; nothing was changed") from None
    if hashlib.sha256(content).hexdigest() != package.file_sha256:
        raise Failed(f"what is at {one_line(url)} is not what `fileSha256` names; nothing was changed")
    return bundles.bundle_in(content, one_line(url))


def _given(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Return the values of `--set` and `--set-env`, by name. Raises Usage."""
    found: dict[str, list[str]] = {}
    for text in arguments.set or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise Usage("--set: write it as NAME=VALUE")
        found.setdefault(name, []).append(value)
    for text in arguments.set_env or ():
        name, equals, variable = text.partition("=")
        if not name or not equals or not variable:
            raise Usage("--set-env: write it as NAME=VARIABLE")
        if not os.environ.get(variable):
            raise Usage(f"--set-env {name}: the environment has no variable {variable}")
        found.setdefault(name, []).append(os.environ[variable])
    return found


def _name(arguments: argparse.Namespace, data_dir: Path, given: str) -> str:
    """Return the server's name here. Raises Usage."""
    name: str = arguments.as_name or mount_name(given, ())
    if problem := problem_of(name):
        raise Usage(f"--as: {problem}")
    taken = {service_of(each): each for each in {**written(data_dir), **mounts(data_dir)}}
    if other := taken.get(service_of(name)):
        raise Usage(
            f"there already is a server {other!r}: add it under another name with --as NAME, or remove that one with "
            f"`linckia mcp remove {other}`"
        )
    return name


def _added(
    arguments: argparse.Namespace,
    data_dir: Path,
    name: str,
    made: Plan,
    answers: Answers,
    about: list[Cell],
    bundle: bundles.Bundle | None,
) -> int:
    """Show what would be added, ask, add it and test it."""
    table, files = _stored(name, made)
    if arguments.confine and made.confine and "command" in table:
        roots = list(dict.fromkeys([*made.roots, *map(str, _folders(arguments))]))
        table |= {"confine": True} | ({"roots": roots} if roots else {})
    elif arguments.server_roots:
        raise Usage("--root is for a confined server with a command; this one is not confined")
    say(*about, f"As the server {name!r}, Linckia would use:")
    say(*_described(table, made, answers, confines=arguments.confine))
    if arguments.dry_run:
        say("Nothing was changed.")
        return 0
    question = "Add it? [y/N]" if arguments.no_test else "Add it, and start it now? [y/N]"
    if not arguments.yes and not confirmed(question):
        say("Nothing was changed.")
        return 1
    with bundles.unpacked(bundle, data_dir, lambda: {**written(data_dir), **mounts(data_dir)}):
        is_running = _change(data_dir, name, table, files)
    say(f"{name} is added: [{TABLE}.{name}] in {data_dir / 'linckia.toml'}.")
    if not arguments.no_test:
        tested(data_dir, name, mounts(data_dir)[name])
    say("Its tools are served now." if is_running else "Its tools are served from the next start of Linckia.")
    return 0


def _folders(arguments: argparse.Namespace) -> list[Path]:
    """Return the folders of `--root`. Raises Usage."""
    roots = [Path.cwd() / Path(each).expanduser() for each in arguments.server_roots or ()]
    for root in roots:
        if not root.is_dir():
            raise Usage(f"--root: there is no folder {root}")
    return roots


def _stored(name: str, made: Plan) -> tuple[Layer, dict[str, str]]:
    """Return the table without secrets, and the files that have them."""
    plain: dict[str, dict[str, str]] = {}
    table = dict(made.table)
    for key in ("env", "headers"):
        values: Mapping[str, str] = table.pop(key, {})
        plain[key] = {each: value for each, value in values.items() if each not in made.secrets}
        table |= {key: {each: value for each, value in values.items() if each in made.secrets}}
    stored, files = without_secrets(name, table, hides_url=made.hides_url, hidden_args=made.hidden)
    return stored | {key: values for key, values in plain.items() if values}, files


def _described(table: Layer, made: Plan, answers: Answers, *, confines: bool) -> list[Cell]:
    """Return what would be used, without secrets: lines for who has to decide."""
    if "command" in table:
        lines: list[Cell] = [f"  {shlex.join([table['command'], *table.get('args', [])])}"]
    else:
        lines = [f"  {table.get('url') or 'an address that is kept in ' + table['url_from']}"]
    if values := [f"{key}={value}" for key, value in {**table.get("env", {}), **table.get("headers", {})}.items()]:
        lines.append(f"  with {shlex.join(values)}")
    if made.secrets or made.hidden or made.hides_url:
        names = [*sorted(made.secrets), *(["arguments"] if made.hidden else []), *(["the address"] * made.hides_url)]
        lines.append(f"  with secrets, in files that only you can read: {', '.join(names)}")
    if "command" in table:
        lines.append(_walls(table, made, confines=confines))
    lines += [f"  {note}" for note in made.notes]
    if unset := list(dict.fromkeys(each.described for each in answers.optional)):
        lines.append(f"  not set (--set): {', '.join(unset[:20])}")
    return lines


def _walls(table: Layer, made: Plan, *, confines: bool) -> Cell:
    if table.get("confine"):
        places = ", ".join(["its own folder", *table.get("roots", [])])
        return f"  confined: it reads what you may read, connects anywhere, and writes only to {places}"
    if not made.confine and confines:
        return ("  not confined by Linckia: the container's walls are those of its runner", "yellow")
    return ("  not confined: it can do everything that you may do", "yellow")


def _change(data_dir: Path, name: str, table: Layer, files: Mapping[str, str]) -> bool:
    """Write the settings and the files with secrets, all or nothing; return whether a running kernel serves it."""
    made: list[Path] = []
    try:
        made += store_secrets(data_dir, files) if files else []
        return change(data_dir, {(name,): table}) is not None
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        raise
