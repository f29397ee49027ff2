"""The manifest of `transcripts` for the kernel."""

from __future__ import annotations

from proto.manifest import GIB, STALL_S, AgentFolder, Follows, Keep, Manifest, ShortTable, Store

SCHEMA_VERSION = 5

MANIFESTS = (
    Manifest(
        name="transcripts",
        order=120,
        stall_s=STALL_S,
        memory_limit_bytes=2 * GIB,
        # Calls that wait for the same commit share it.
        in_flight=256,
        table=ShortTable("transcripts"),
        follows=Follows(
            "follow",
            {
                "claude": AgentFolder("CLAUDE_CONFIG_DIR", "~/.claude", "projects"),
                "codex": AgentFolder("CODEX_HOME", "~/.codex", "sessions"),
                "gemini": AgentFolder("", "~/.gemini", "tmp"),
            },
        ),
        optional=True,
        # It delivers pending turns to the search first, then it may be stopped.
        rests=True,
        stores=(Store("transcripts.db", Keep.SOURCE, schema=SCHEMA_VERSION),),
    ),
)
