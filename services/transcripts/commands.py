"""`linckia import-chats`, `proxy`, `resume` and `export-chat`."""

from __future__ import annotations

import argparse
import os
import sys

from proto.control.commands import AddCommand, Group, add_json
from proto.names import module

PROXY = module("services.transcripts.proxy")

IMPORT_EPILOG = """\
examples:
  linckia import-chats
  linckia import-chats ~/.claude/projects ~/code/.aider.chat.history.md
  linckia import-chats conversations.json

Without a path, it looks at the usual places of the agents, shows what it found, and asks. Supports sessions of Claude
Code, Codex CLI, Gemini CLI, Qwen Code, Copilot, Cursor, Cline, Roo Code, Kilo Code, OpenCode, Aider, Goose, Amp and
Zed, exports of ChatGPT, Claude, LibreChat and Open WebUI, and messages in the format of OpenAI's, Anthropic's and
Google's APIs, as JSON or JSON Lines. Of a file that was imported before, only the new part is read. A message that is
already stored, from any source, is not stored twice. Repeat an interrupted import to resume it. Ends with status 1 if
a file is not understood; it is named with what was expected.
"""

PROXY_EPILOG = """\
examples:
  linckia proxy --upstream https://api.openai.com &
  OPENAI_BASE_URL=http://127.0.0.1:8484/v1 my-agent

  linckia proxy --upstream https://api.anthropic.com &
  ANTHROPIC_BASE_URL=http://127.0.0.1:8484 my-agent

Requests and replies pass through byte for byte. Chat completions, responses, messages and Ollama chats are recorded
after the reply; keys and other headers are not. While no kernel runs, turns are spooled.
"""

CHOSEN = "its id, the hash of a turn, or words (default: the latest of the current folder)"

RESUME_EPILOG = """\
examples:
  linckia resume --as codex                       the latest conversation of the current folder
  linckia resume login redirect --as claude       the one about this
  linckia resume 4f9e9df5a3ea --as gemini --dry-run

Writes a new session file into the agent's folder, never over an existing one, and prints the command that resumes it.
With the hash of a turn, the conversation goes on from that turn. If several conversations match, they are listed and
nothing is written. System prompts and turns of sub-agents are left out.
"""

EXPORT_CHAT_EPILOG = """\
examples:
  linckia export-chat > chat.md
  linckia export-chat login redirect --format html --output chat.html

Secrets are masked, also in conversations that were stored without masking. The HTML has no scripts and loads nothing.
"""

GROUP = Group.CHATS


def add(command: AddCommand) -> None:
    """Declare the commands."""
    summary = "import conversations from files that agents left"
    transcripts = command("import-chats", run_import_chats, summary, IMPORT_EPILOG)
    sources = "a session file, a database or a JSON export, or a folder of them (default: the agents' usual places)"
    transcripts.add_argument("files", metavar="FILE", nargs="*", help=sources)
    transcripts.add_argument("--yes", action="store_true", help="import what is found at the usual places unasked")
    transcripts.add_argument("--dry-run", action="store_true", help="only show what is found at the usual places")
    add_json(transcripts, help="counts of files, messages and new turns, as JSON")

    summary = "forward requests to a model's API and record the conversations"
    proxy = command("proxy", run_proxy, summary, PROXY_EPILOG)
    proxy.add_argument("--upstream", metavar="URL", required=True, help="the API, such as https://api.openai.com")
    listen = "default: 127.0.0.1:8484; port 0 picks a free one"
    proxy.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:8484", help=listen)
    proxy.add_argument("--agent", metavar="NAME", default="", help="agent name to record with the turns")
    proxy.add_argument("--project", metavar="NAME", default="", help="project name to record with the turns")

    summary = "go on with a conversation in another agent"
    resume = command("resume", run_resume, summary, RESUME_EPILOG)
    resume.add_argument("query", metavar="QUERY", nargs="*", help=CHOSEN)
    for_whom = "the agent in which it goes on"
    resume.add_argument("--as", dest="agent", choices=("claude", "codex", "gemini"), required=True, help=for_whom)
    resume.add_argument("--project", metavar="DIR", help="the folder to work in (default: the conversation's)")
    instead = "write below DIR instead of the agent's own folder, such as ~/.claude"
    resume.add_argument("--folder", metavar="DIR", help=instead)
    resume.add_argument("--dry-run", action="store_true", help="write nothing; print the path and the counts")
    add_json(resume, help="path, session, counts and command, as JSON")

    summary = "write a conversation as a Markdown or HTML file"
    export = command("export-chat", run_export_chat, summary, EXPORT_CHAT_EPILOG)
    export.add_argument("query", metavar="QUERY", nargs="*", help=CHOSEN)
    export.add_argument("--format", choices=("markdown", "html"), default="markdown", help="default: markdown")
    export.add_argument("-o", "--output", metavar="FILE", help="a new file (default: standard output)")
    export.add_argument("--force", action="store_true", help="replace FILE if it exists")


def run_import_chats(arguments: argparse.Namespace) -> int:
    """Import the files. Exit code 1 if one does not exist, or is not understood. Raises ControlError."""
    from services.transcripts.from_files import import_chats

    return import_chats(arguments)


def run_resume(arguments: argparse.Namespace) -> int:
    """Write the conversation. Exit code 1 if several match. Raises Usage, Failed, ControlError, OSError."""
    from services.transcripts.resuming.resume import resume

    return resume(arguments)


def run_export_chat(arguments: argparse.Namespace) -> int:
    """Write the file. Exit code 1 if several conversations match. Raises Usage, Failed, ControlError, OSError."""
    from services.transcripts.resuming.export_chat import export_chat

    return export_chat(arguments)


def run_proxy(arguments: argparse.Namespace) -> int:
    """Replace this process with the proxy. Raises OSError."""
    options = {name: getattr(arguments, name) for name in ("upstream", "listen", "agent", "project")}
    options["data"] = arguments.data_dir
    given = [f"--{name}={value}" for name, value in options.items()]
    os.execv(sys.executable, [sys.executable, "-P", "-m", PROXY, *given])
