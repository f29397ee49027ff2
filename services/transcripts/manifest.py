"""The manifest of `transcripts` for the kernel."""

from __future__ import annotations

from proto.manifest import GIB, STALL_S, AgentFolder, Follows, Keep, Manifest, ShortTable, Store

SCHEMA_VERSION = 6

_DATA, _CONFIG = ("XDG_DATA_HOME", "~/.local/share"), ("XDG_CONFIG_HOME", "~/.config")
_EXTENSIONS = "Code/User/globalStorage"

AGENTS = {
    "claude": AgentFolder("CLAUDE_CONFIG_DIR", "~/.claude", "projects"),
    "codex": AgentFolder("CODEX_HOME", "~/.codex", "sessions"),
    "gemini": AgentFolder("", "~/.gemini", "tmp"),
    "qwen": AgentFolder("", "~/.qwen", "projects"),
    "copilot": AgentFolder("COPILOT_HOME", "~/.copilot", "session-state"),
    "copilot-chat": AgentFolder(*_CONFIG, "Code/User/workspaceStorage"),
    "cursor": AgentFolder(*_CONFIG, "Cursor/User/globalStorage"),
    "cline": AgentFolder(*_CONFIG, f"{_EXTENSIONS}/saoudrizwan.claude-dev/tasks"),
    "roo": AgentFolder(*_CONFIG, f"{_EXTENSIONS}/rooveterinaryinc.roo-cline/tasks"),
    "kilo": AgentFolder(*_CONFIG, f"{_EXTENSIONS}/kilocode.kilo-code/tasks"),
    "opencode": AgentFolder(*_DATA, "opencode"),
    "goose": AgentFolder(*_DATA, "goose/sessions"),
    "amp": AgentFolder(*_DATA, "amp/threads"),
    "zed": AgentFolder(*_DATA, "zed/threads"),
}
"""Where agents keep their conversations on Linux."""

MANIFESTS = (
    Manifest(
        name="transcripts",
        order=120,
        stall_s=STALL_S,
        memory_limit_bytes=2 * GIB,
        # Calls that wait for the same commit share it.
        in_flight=256,
        table=ShortTable("transcripts"),
        follows=Follows("follow", AGENTS),
        optional=True,
        # It delivers pending turns to the search first, then it may be stopped.
        rests=True,
        stores=(Store("transcripts.db", Keep.SOURCE, schema=SCHEMA_VERSION, movable=True),),
    ),
)
