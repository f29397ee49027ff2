"""`linckia import-transcripts` and `linckia proxy`."""

from __future__ import annotations

import argparse
import os
import sys

from proto.control.commands import AddCommand, add_json
from proto.names import module

PROXY = module("services.transcripts.proxy")

IMPORT_EPILOG = """\
examples:
  linckia import-transcripts ~/.claude/projects ~/.codex/sessions ~/.gemini/tmp
  linckia import-transcripts conversations.json

Supports session files of Claude Code, Codex CLI and Gemini CLI, exports of ChatGPT, Claude, LibreChat and Open WebUI,
and messages in the format of OpenAI's, Anthropic's and Google's APIs, as JSON or JSON Lines. Of a file that was
imported before, only the new part is read. A message that is already stored, from any source, is not stored twice.
Repeat an interrupted import to resume it. Ends with status 1 if a file is not understood; it is named with what was
expected.
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


def add(command: AddCommand) -> None:
    """Declare `import-transcripts` and `proxy`."""
    summary = "import conversations from files that agents left"
    transcripts = command("import-transcripts", run_import_transcripts, summary, IMPORT_EPILOG)
    sources = "a session file, a JSON export, or a folder of them"
    transcripts.add_argument("files", metavar="FILE", nargs="+", help=sources)
    add_json(transcripts, help="counts of files, messages and new turns, as JSON")

    summary = "forward requests to a model's API and record the conversations"
    proxy = command("proxy", run_proxy, summary, PROXY_EPILOG)
    proxy.add_argument("--upstream", metavar="URL", required=True, help="the API, such as https://api.openai.com")
    listen = "default: 127.0.0.1:8484; port 0 picks a free one"
    proxy.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:8484", help=listen)
    proxy.add_argument("--agent", metavar="NAME", default="", help="agent name to record with the turns")
    proxy.add_argument("--project", metavar="NAME", default="", help="project name to record with the turns")


def run_import_transcripts(arguments: argparse.Namespace) -> int:
    """Import the files. Exit code 1 if one does not exist, or is not understood. Raises ControlError."""
    from services.transcripts.from_files import import_transcripts

    return import_transcripts(arguments)


def run_proxy(arguments: argparse.Namespace) -> int:
    """Replace this process with the proxy. Raises OSError."""
    options = {name: getattr(arguments, name) for name in ("upstream", "listen", "agent", "project")}
    options["data"] = arguments.data_dir
    given = [f"--{name}={value}" for name, value in options.items()]
    os.execv(sys.executable, [sys.executable, "-P", "-m", PROXY, *given])
