"""Files of agents that other tools counted or read wrongly, through the import as the command does it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.transcripts.operations.conversations import Conversation, Form, TranscriptCheckout
from services.transcripts.operations.intake import ImportResult, TranscriptImport, TranscriptImportState
from services.transcripts.records import parts
from tests.in_process import Bench
from tests.unit.transcripts.rig import Json, serving
from tests.unit.transcripts.test_listing import listed

CASES = Path(__file__).resolve().parents[3].parent / "shared" / "cases" / "reports" / "transcripts"


async def bring_in(bench: Bench, path: Path) -> list[ImportResult]:
    """A file on disk, in the parts that the command reads it in."""
    state = await bench.call(TranscriptImportState(source=str(path)))
    with path.open("rb") as file:
        return [
            await bench.call(
                TranscriptImport(
                    source=str(path),
                    start=part.start,
                    position=part.position,
                    tail=part.tail,
                    records=part.records,
                    final=part.final,
                )
            )
            for part in parts(file, state.position, state.tail)
        ]


def written(path: Path, lines: Sequence[Json | str]) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


async def turns(bench: Bench, conversation: Conversation) -> list[tuple[str, str]]:
    """What the messages up to the newest are, as role and text."""
    found = await bench.call(TranscriptCheckout(hash=conversation.hash, form=Form.STORED))
    return [
        (message["role"], "|".join(part.get("text") or part.get("tool_output") or part.get("tool_name", "")
                                   for part in message["content"]))
        for message in found.messages
    ]  # fmt: skip


def case(name: str) -> Path:
    path = CASES / f"{name}.jsonl"
    if not path.exists():
        pytest.skip("the shared cases are not beside this checkout")
    return path


async def test_codex_sessions_that_begin_alike_are_conversations_of_their_projects(tmp_path: Path) -> None:
    files = [case(f"codex/project-{name}") for name in ("api-1", "api-2", "other-1")]
    async with serving(tmp_path) as bench:
        for file in files:
            (result,) = await bring_in(bench, file)
            assert (result.unreadable, result.problem) == (0, "")
        found = await listed(bench)
        assert sorted(one.project for one in found) == ["/home/u/api", "/home/u/api", "/home/u/other"]
        assert len({one.title for one in found}) == 3
        assert [(one.tokens.input, one.tokens.output) for one in found] == [(1000, 10)] * 3


async def test_claude_sessions_that_begin_with_one_word_stay_two(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        for name in ("alpha", "beta"):
            await bring_in(bench, case(f"claude/continue-{name}"))
        found = await listed(bench)
        assert [(one.project, one.title, one.turns, one.tokens.input) for one in found] == [
            ("/home/u/beta", "continue", 2, 100), ("/home/u/alpha", "continue", 2, 100),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("codex/usage-after-tool-output", (2200, 80)),
        ("codex/usage-records", (60020, 600)),
        ("gemini/resumed-with-set", (300, 85)),
        ("gemini/rewritten-message", (2100, 30)),
        ("claude/one-hour-cache", (2_000_010, 100)),
        ("claude/compacted", (1500, 80)),
        ("claude/torn-line", (1000, 100)),
    ],
)
async def test_a_session_is_one_conversation_with_the_tokens_that_its_file_states(
    tmp_path: Path, name: str, tokens: tuple[int, int]
) -> None:
    async with serving(tmp_path) as bench:
        results = await bring_in(bench, case(name))
        (one,) = await listed(bench)
        assert ((one.tokens.input, one.tokens.output), one.tokens.estimated) == (tokens, False)
        if "torn" not in name:
            assert [(result.unreadable, result.problem) for result in results] == [(0, "")]


async def test_a_resumed_gemini_session_keeps_its_messages(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await bring_in(bench, case("gemini/resumed-with-set"))
        (one,) = await listed(bench)
        assert [role for role, _ in await turns(bench, one)] == ["user", "assistant"] * 2


async def test_a_gemini_message_that_is_written_again_is_one_as_last_written(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await bring_in(bench, case("gemini/rewritten-message"))
        (one,) = await listed(bench)
        assert await turns(bench, one) == [
            ("user", "GB: run the linter"),
            ("assistant", "GB: running.|run_shell_command"),
            ("tool", "ok"),
            ("user", "GB: also the tests"),
            ("assistant", "GB: both pass."),
        ]


async def test_an_hour_in_the_cache_costs_twice_the_input(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await bring_in(bench, case("claude/one-hour-cache"))
        (one,) = await listed(bench)
        assert one.cost_usd == pytest.approx(12 + 10 * 3e-6 + 100 * 15e-6)


async def test_a_compacted_claude_session_continues(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await bring_in(bench, case("claude/compacted"))
        (one,) = await listed(bench)
        told = [text for _, text in await turns(bench, one)]
        assert (told[0], told[-1], len(told)) == ("Write the parser for config files", "Tests are there.", 5)
        assert one.title == "Write the parser for config files"


async def test_a_torn_line_loses_nothing_that_follows_it_and_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        (result,) = await bring_in(bench, case("claude/torn-line"))
        (one,) = await listed(bench)
        told = [text for _, text in await turns(bench, one)]
        assert [text for text in told if "question" in text] == [
            f"Z question number {n} about kiwis" for n in range(10)
        ]
        assert len(told) == 20
        assert "is not JSON" in result.problem
