"""The options of `linckia mcp` and `linckia wrap`. Only the standard library, as in `parser`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from proto.control.commands import TAKES_SERVER, AddCommand, add_json

CLIENTS = ("claude-code", "claude-desktop", "cursor", "vscode", "codex", "copilot-cli", "gemini", "zed")
"""The clients whose settings are known."""

PACKAGE_KINDS = ("npm", "pypi", "oci", "nuget", "mcpb", "remote")
"""What `linckia mcp install` can install."""

MCP_EPILOG = """\
examples:
  linckia mcp add github --env-from GITHUB_TOKEN -- npx -y @modelcontextprotocol/server-github
  linckia mcp add docs --url https://example.org/mcp --header-env Authorization=DOCS_TOKEN
  linckia mcp import --dry-run                 show the servers of your MCP clients
  linckia mcp search weather                   find servers in the MCP registry
  linckia mcp install io.github.user/weather   show what that would run, ask, and add it
  linckia mcp list

The servers are tables [mcp.NAME] in linckia.toml of the data directory. A running kernel applies each change at once.
"""

WRAP_EPILOG = """\
example, in the settings of an MCP client:
  "command": "linckia", "args": ["wrap", "--", "npx", "-y", "@modelcontextprotocol/server-filesystem", "/home/me/work"]

Clients that wrap the same command in the same folder share one server, unless --share client is given.
"""


def add_mcp(command: AddCommand) -> None:
    """Add `linckia mcp`."""
    mcp = command(
        "mcp",
        "servers.mcp.mcp",
        "mount other MCP servers: supervised, restarted, and shared by all clients",
        MCP_EPILOG,
    )
    actions = mcp.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)

    def action(
        name: str, help: str, server: str = "the server, as `linckia mcp list` shows it"
    ) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = actions.add_parser(name, help=help, description=help, allow_abbrev=False)
        # No default, which would replace a value given before the action.
        data_help = "data directory (see `linckia mcp --help`)"
        sub.add_argument("--data", metavar="DIR", default=argparse.SUPPRESS, help=data_help)
        if server:
            sub.add_argument("name", metavar="NAME", help=server)
        return sub

    add = action("add", "add a server, and test it", "its name: lower-case letters, digits, - and _")
    _server_options(add)
    root_help = "a folder that the server may write to, besides its own; repeatable"
    add.add_argument("--root", metavar="DIR", dest="server_roots", action="append", help=root_help)
    _add_no_confine(add)
    add.add_argument("--url", metavar="URL", help="address of a server that is reached over HTTP")
    add.add_argument("--header", metavar="K=V", dest="headers", action="append", help="a header for URL; repeatable")
    header_help = "a header with the value of an environment variable, or the content of a file; repeatable"
    add.add_argument("--header-env", metavar="K=VAR", dest="headers_from", action="append", help=header_help)
    add.add_argument("--no-test", action="store_true", help="do not start the server now")

    add_json(action("list", "list the servers, with their state and number of tools", ""))
    test = action("test", "start a server, and show what it offers")
    learn_help = "run it confined, and propose the `roots` and `network` that it needs; asks before it writes them"
    test.add_argument("--learn", action="store_true", help=learn_help)
    call_help = "with --learn: also call this tool, for real"
    test.add_argument("--call", metavar="TOOL", help=call_help)
    test.add_argument("--arguments", metavar="JSON", dest="call_arguments", help="arguments of that call (default: {})")
    test.add_argument("--yes", action="store_true", help="with --learn: write the settings without asking")
    logs = action("logs", "show the log of a server: its stderr, and what is not JSON on its stdout")
    logs.add_argument("--json", action="store_true", help="one object for each line")
    logs.add_argument("-n", "--lines", metavar="N", type=int, default=50, help="number of lines (default: 50)")
    logs.add_argument("-f", "--follow", action="store_true", help="print new lines as they are written")
    action("restart", "restart a server")
    action("enable", "serve a server again that was disabled")
    action("disable", "stop serving a server, but keep its settings")
    action("remove", "remove a server and its settings")
    add_json(action("diff", "show how the definitions of a server's tools have changed since they were approved"))
    action("approve", "approve the definitions that a server offers now")
    found = action("import", "add the servers that are in your own settings of MCP clients", "")
    client_help = f"only this client: {', '.join(CLIENTS)}; repeatable (default: all)"
    found.add_argument("--from", metavar="CLIENT", dest="clients", action="append", choices=CLIENTS, help=client_help)
    project_help = "also those in files of the project in this folder, such as .mcp.json; asks about each server"
    found.add_argument("--project", action="store_true", help=project_help)
    found.add_argument("--yes", action="store_true", help="with --project: add them without asking")
    _add_no_confine(found)
    found.add_argument("--dry-run", action="store_true", help="show what would be added, and change nothing")
    _add_installing(action)


def _add_installing(action: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the actions that read a registry."""
    registry_help = "address of another MCP registry (default: mcp_registry of the settings)"
    found = action("search", "search the MCP registry for servers", "")
    add_json(found)
    found.add_argument("words", metavar="WORD", nargs="+", help="what their names contain")
    found.add_argument("--limit", metavar="N", type=int, default=30, help="number of servers to show (default: 30)")
    found.add_argument("--registry", metavar="URL", help=registry_help)
    help = "add a server of the MCP registry, or a bundle (.mcpb); shows what it would run, and asks"
    install = action("install", help, "its name in the registry, such as io.github.user/weather, or a file (.mcpb)")
    install.add_argument("--as", metavar="NAME", dest="as_name", help="its name here (default: made from its own)")
    install.add_argument("--version", metavar="VERSION", default="latest", help="another version than the latest")
    install.add_argument("--use", choices=PACKAGE_KINDS, help="the kind of package (default: the first that can run)")
    set_help = "a value that the server needs; repeatable"
    install.add_argument("--set", metavar="NAME=VALUE", action="append", help=set_help)
    env_help = "a value from a variable of this command's environment, for secrets; repeatable"
    install.add_argument("--set-env", metavar="NAME=VAR", action="append", help=env_help)
    root_help = "a folder that the server may write to, besides its own; repeatable"
    install.add_argument("--root", metavar="DIR", dest="server_roots", action="append", help=root_help)
    _add_no_confine(install)
    install.add_argument("--registry", metavar="URL", help=registry_help)
    install.add_argument("--dry-run", action="store_true", help="show what would be added, and change nothing")
    install.add_argument("--yes", action="store_true", help="add it without asking")
    install.add_argument("--no-test", action="store_true", help="do not start the server now")


def _add_no_confine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-confine", dest="confine", action="store_false", help="let it do everything that you may do yourself"
    )


def add_wrap(command: AddCommand) -> None:
    """Add `linckia wrap`."""
    summary = "serve another MCP server, supervised, on stdin and stdout; for an MCP client's configuration"
    wrap = command("wrap", "servers.wrap.wrap", summary, WRAP_EPILOG)
    wrap.add_argument("--name", metavar="NAME", help="name of the server (default: made from its command)")
    _server_options(wrap)


def _server_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(**{TAKES_SERVER: True})
    parser.usage = f"{parser.prog} [options] {'NAME ' if parser.prog.endswith('add') else ''}-- COMMAND ARG…"
    parser.add_argument("--env", metavar="K=V", action="append", help="an environment variable; repeatable")
    from_help = "pass on this variable of Linckia's environment, or all in this file of K=V lines; repeatable"
    parser.add_argument("--env-from", metavar="NAME", action="append", help=from_help)
    parser.add_argument("--cwd", metavar="DIR", help="its working directory (default: the home directory)")
    share_help = "whether all clients share one process, or each has its own (default: one, unless --stateful)"
    parser.add_argument("--share", choices=("one", "client"), help=share_help)
    parser.add_argument("--eager", action="store_true", help="start it with Linckia, not with its first call")
    parser.add_argument("--pin", action="store_true", help="hold back changed definitions until they are approved")
    parser.add_argument("--stateful", action="store_true", help="it keeps state between calls")
