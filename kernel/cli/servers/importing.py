"""`linckia mcp import`: adds the servers that MCP clients have in their settings, which do not change.

Values of variables and headers, which are often secret, and arguments that look like secrets go to files in the data
directory (`mcp/NAME.env`, mode 0600), so that `linckia.toml` contains none.

A running kernel serves what is added at once, and so starts programs. The user's own files name programs that the user
has chosen. A project's files may come from somebody else: they are read only with `--project`, and each of their
servers is added only if the user agrees.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from kernel.cli.clients.places import Found, Place, places, servers
from kernel.cli.servers.client_files import Variables, mount_name, names_variable, service_name, table_of
from kernel.cli.servers.secret_files import resolved, store_secrets, without_secrets
from kernel.cli.servers.tables import change, mounts, server_of, written
from kernel.cli.settings.mount_settings import files_of, is_variable, with_real_paths
from kernel.configure.config import ConfigError
from proto.control.commands import Usage
from proto.control.terminal import complain, confirmed, say, show_table
from proto.json_types import Layer
from proto.mounts import REFERENCE
from proto.names import module

ADVICE = """\
In the settings of your clients, replace these servers by Linckia, which serves them all:
  {"mcpServers": {"linckia": {"command": "linckia", "args": ["stdio"]}}}
Or keep a server of its own, supervised: {"command": "linckia", "args": ["wrap", "--", COMMAND, ARG…]}"""


CONFINED = """\
They are confined: each may write only to its own folder and to the `roots` of its table. This finds what it needs:
  linckia mcp test --learn NAME"""


class _New(msgspec.Struct, frozen=True):
    """A server to add."""

    name: str
    table: Layer
    found: Found

    def stored(self) -> tuple[Layer, dict[str, str]]:
        """Return the table without secrets, and the files that have them."""
        members = self.found.server.members
        hides_url = any(names_variable(members.get(key)) for key in ("url", "serverUrl", "httpUrl"))
        hidden = [place for place, text in enumerate(members.get("args") or ()) if names_variable(text)]
        return without_secrets(self.name, self.table, hides_url=hides_url, hidden_args=hidden)

    @property
    def shown(self) -> str:
        """The command line or URL, without secrets."""
        return server_of({**self.table, "args": self.stored()[0].get("args", [])})


def import_servers(arguments: argparse.Namespace, data_dir: Path) -> int:
    """Add all new servers, or only show them. Returns 1 if an entry or a file has a mistake; the others are added.

    Raises Usage, Failed, CallFailed, OSError.
    """
    asks = arguments.project and not (arguments.yes or arguments.dry_run)
    if asks and not sys.stdin.isatty():
        raise Usage("--project asks about each server, but stdin is no terminal; add --yes if you trust the project")
    problems: list[str] = []
    new, notes = _chosen(data_dir, arguments.clients or (), os.environ, problems, with_project=arguments.project)
    for line in (*problems, *notes):
        complain(line)
    code = 1 if problems else 0
    if not arguments.project:
        for path in _project_files(arguments.clients or ()):
            complain(f"{path} belongs to a project and is not read; --project asks about each of its servers")
    if not new:
        say("There are no new servers in the settings of your MCP clients.")
        return code
    show_table(("NAME", "FROM", "COMMAND OR URL"), [[each.name, str(each.found.path), each.shown] for each in new])
    if arguments.dry_run:
        say("Nothing was changed.")
        return code
    if asks:
        new = [each for each in new if not each.found.is_project or _is_wanted(each, confine=arguments.confine)]
        if not new:
            say("Nothing was changed.")
            return code
    is_running = _add(data_dir, new, confine=arguments.confine) is not None
    count = "1 server is" if len(new) == 1 else f"{len(new)} servers are"
    say(f"{count} added to {data_dir / 'linckia.toml'}, and served {'now' if is_running else 'once Linckia starts'}.")
    if arguments.confine:
        say(*CONFINED.split("\n"))
    _warn_of_variables(new)
    say(*ADVICE.split("\n"))
    return code


def _is_wanted(new: _New, *, confine: bool) -> bool:
    """Ask whether a project's server may be added, and so started."""
    table = new.table
    rights = "confined: it may read what you may" if confine else "with all your rights"
    say(f"{new.name}: {new.found.path} wants Linckia to use this server, {rights}:")
    say(f"  {new.shown}")
    if "command" in table:
        say(f"  in the folder {table.get('cwd') or Path.home()}")
    if variables := [*table.get("env", {}), *table.get("env_from", [])]:
        say(f"  with {', '.join(variables)}")
    return confirmed("Add it? [y/N]")


def _project_files(clients: Sequence[str]) -> list[Path]:
    """Return the files of the project in this folder that list servers."""
    return [
        place.path
        for place in places(Path.home(), Path.cwd(), os.environ)
        if place.is_project and (not clients or place.client in clients) and place.path.is_file() and _lists(place)
    ]


def _lists(place: Place) -> bool:
    return any(True for _ in servers(place, []))


def _chosen(
    data_dir: Path, clients: Sequence[str], environment: Mapping[str, str], problems: list[str], *, with_project: bool
) -> tuple[list[_New], list[str]]:
    """Return the servers to add, and what the user should know of them; `problems` gets why others are skipped."""
    new: list[_New] = []
    notes: list[str] = []
    there = {**written(data_dir), **mounts(data_dir)}
    same = [_program(resolved(with_real_paths(table, data_dir), data_dir)) for table in there.values()]
    for found in _found(clients, environment, problems, with_project=with_project):
        where = f"{found.path}: {found.server.name}"
        if _is_linckia(found):
            continue
        try:
            table, said = table_of(found.server, Variables(environment, found.workspace), where)
        except ConfigError as error:
            problems.append(f"{error}; the server is skipped")
            continue
        notes += said
        if table.get("cwd") == str(Path.home()):
            del table["cwd"]
        table = with_real_paths(table, found.workspace)
        if table in same:
            continue
        same.append(table)
        taken = [*map(service_name, there), *(service_name(each.name) for each in new)]
        new.append(_New(name := _name(found, taken), table, found))
        if name != found.server.name:
            notes.append(f"{where} is called {name} here")
    return new, notes


def _program(table: Layer) -> Layer:
    """Return the table without what Linckia adds to those of clients."""
    return {key: value for key, value in table.items() if key not in ("confine", "roots", "network")}


def _found(
    clients: Sequence[str], environment: Mapping[str, str], problems: list[str], *, with_project: bool
) -> Iterator[Found]:
    for place in places(Path.home(), Path.cwd(), environment):
        if (clients and place.client not in clients) or (place.is_project and not with_project):
            continue
        yield from servers(place, problems)


def _name(found: Found, taken: Sequence[str]) -> str:
    """Return a name for the server: the client's, or one that also names the project or the client."""
    plain = mount_name(found.server.name, ())
    if service_name(plain) in taken:
        place = found.client if found.workspace == Path.home() else found.workspace.name
        plain = f"{plain[:20].rstrip('-_')}-{place}"
    return mount_name(plain, taken)


def _is_linckia(found: Found) -> bool:
    members = found.server.members
    args = members.get("args")
    words = [str(members.get("command", "")), *map(str, args if isinstance(args, list) else ())]
    return any(
        Path(word).name == "linckia" or word in ("linckia.kernel.cli", module("kernel.cli")) for word in words
    ) or (found.server.name == "linckia")


def _add(data_dir: Path, new: Sequence[_New], *, confine: bool) -> object:
    changes: dict[Sequence[str], object] = {}
    made: list[Path] = []
    try:
        for each in new:
            table, files = each.stored()
            made += store_secrets(data_dir, files)
            changes[(each.name,)] = table | ({"confine": True} if confine else {})
        return change(data_dir, changes)
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        raise


def _variables_of(table: Layer) -> list[str]:
    """Return the variables of Linckia's environment that a table names."""
    found = list(filter(is_variable, table.get("env_from", [])))
    for source in table.get("headers_from", {}).values():
        found += REFERENCE.findall(source) or filter(is_variable, [source])
    return found


def _warn_of_variables(new: Sequence[_New]) -> None:
    for each in new:
        for variable in dict.fromkeys(_variables_of(each.table)):
            if variable not in os.environ:
                complain(f"{each.name} needs the environment variable {variable}; set it where Linckia starts")
        for path in files_of(each.table):
            if not Path(path).is_file():
                complain(f"{each.name} needs the file {path}, which is not there")
