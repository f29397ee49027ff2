"""Messages that a user types while the agent works are turns, each once, at the place where the model read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.transcripts.operations.conversations import TranscriptDelete, TranscriptsSearch
from services.transcripts.operations.intake import TranscriptImport
from tests.in_process import Bench
from tests.unit.transcripts.rig import Json, serving
from tests.unit.transcripts.test_cases import turns
from tests.unit.transcripts.test_layouts import PNG, claude, codex, contents, result, spoken, take_in, use
from tests.unit.transcripts.test_listing import listed

CASES = Path(__file__).parents[4] / "shared/cases/reports/second/cases.json"


def queue(operation: str, content: Any = None, second: int = 0, **more: Any) -> Json:
    at = f"2026-03-01T10:00:{second:02}.000Z"
    said = {} if content is None else {"content": content}
    return {"type": "queue-operation", "operation": operation, "timestamp": at, "sessionId": "s", **said, **more}


def attached(uuid: str, parent: str | None, prompt: Any, **more: Any) -> Json:
    record = claude(uuid, parent, "attachment", "")
    del record["message"]
    return {**record, "attachment": {"type": "queued_command", "prompt": prompt, "commandMode": "prompt"}, **more}


def says(text: str) -> list[Json]:
    return [{"type": "text", "text": text}]


BEGINS = [
    claude("u1", None, "user", "Build a shed"),
    claude("a1", "u1", "assistant", [use("t1", "Read"), use("t2", "Look")], id="m1"),
    claude("r1", "a1", "user", [result("t1", "five")]),
]
GOES_ON = [
    claude("r2", "a1", "user", [result("t2", "six")]),
    claude("a2", "r2", "assistant", says("Boards it is."), id="m2"),
]
STARTED = [("user", "Build a shed"), ("assistant", "Read|Look"), ("user", "five|six")]
ABSORBED = [queue("enqueue", "use larch boards"), queue("remove", "use larch boards", 1, reason="absorbed_mid_turn")]

LOGS: dict[str, tuple[list[Json], list[tuple[str, str]]]] = {
    "absorbed, without a record": (
        [*BEGINS, *ABSORBED, *GOES_ON],
        [*STARTED, ("user", "use larch boards"), ("assistant", "Boards it is.")],
    ),
    "absorbed, and delivered again as the next message": (
        [*BEGINS, *ABSORBED, *GOES_ON, claude("u2", "a2", "user", "use larch boards"),
         claude("a3", "u2", "assistant", says("Yes."), id="m3")],
        [*STARTED, ("user", "use larch boards"), ("assistant", "Boards it is."), ("assistant", "Yes.")],
    ),
    "absorbed, with an attachment": (
        [*BEGINS, queue("enqueue", "use larch boards"), queue("remove", "use larch boards"), GOES_ON[0],
         attached("q1", "r2", "use larch boards"), claude("a2", "q1", "assistant", says("Boards it is."), id="m2")],
        [*STARTED, ("user", "use larch boards"), ("assistant", "Boards it is.")],
    ),
    "an attachment between the results of one message": (
        [*BEGINS, queue("enqueue", "use larch boards"), attached("q1", "r1", says("use larch boards")), GOES_ON[0],
         queue("remove", "use larch boards"), claude("a2", "q1", "assistant", says("Boards it is."), id="m2")],
        [*STARTED, ("user", "use larch boards"), ("assistant", "Boards it is.")],
    ),
    "absorbed, and not named": (
        [*BEGINS, queue("enqueue", "use larch boards"), queue("remove", reason="absorbed_mid_turn"), *GOES_ON],
        [*STARTED, ("user", "use larch boards"), ("assistant", "Boards it is.")],
    ),
    "an attachment with an image": (
        [*BEGINS, queue("enqueue", "[Image #1] like this"), queue("remove"), GOES_ON[0],
         attached("q1", "r2", [*says("[Image #1] like this"), PNG]),
         claude("a2", "q1", "assistant", says("Boards it is."), id="m2")],
        [*STARTED, ("user", "[Image #1] like this|"), ("assistant", "Boards it is.")],
    ),
    "an attachment without an id": (
        [*BEGINS, GOES_ON[0], attached("", None, "use larch boards"), GOES_ON[1]],
        [*STARTED, ("user", "use larch boards"), ("assistant", "Boards it is.")],
    ),
    "delivered as an ordinary message after the turn": (
        [*BEGINS, queue("enqueue", "use larch boards"), *GOES_ON, queue("dequeue"),
         claude("u2", "a2", "user", "use larch boards"), claude("a3", "u2", "assistant", says("Yes."), id="m3")],
        [*STARTED, ("assistant", "Boards it is."), ("user", "use larch boards"), ("assistant", "Yes.")],
    ),
    "two that are delivered as one": (
        [*BEGINS, queue("enqueue", "use larch boards"), queue("enqueue", "and paint them", 1), *GOES_ON,
         queue("dequeue"), queue("dequeue"), claude("u2", "a2", "user", "use larch boards\nand paint them")],
        [*STARTED, ("assistant", "Boards it is."), ("user", "use larch boards\nand paint them")],
    ),
    "taken from the queue, and no record of it": (
        [*BEGINS, queue("enqueue", "use larch boards"), queue("enqueue", "and paint them", 1), queue("dequeue"),
         queue("dequeue"), *GOES_ON],
        [*STARTED, ("user", "use larch boards"), ("user", "and paint them"), ("assistant", "Boards it is.")],
    ),
    "a short one is not part of a longer message": (
        [*BEGINS, queue("enqueue", "ok"), queue("dequeue"), claude("u2", "r1", "user", "look at this book"),
         claude("a2", "u2", "assistant", says("Boards it is."), id="m2")],
        [("user", "Build a shed"), ("assistant", "Read|Look"), ("user", "five"), ("user", "look at this book"),
         ("user", "ok"), ("assistant", "Boards it is.")],
    ),
    "still waiting at the end": (
        [*BEGINS, *GOES_ON, queue("enqueue", "use larch boards")],
        [*STARTED, ("assistant", "Boards it is."), ("user", "use larch boards")],
    ),
    "taken back to be edited": (
        [*BEGINS, queue("enqueue", "use larch"), queue("popAll", "use larch"), *GOES_ON],
        [*STARTED, ("assistant", "Boards it is.")],
    ),
    "the note of a background task": (
        [*BEGINS, queue("enqueue", "<task-notification>done</task-notification>"), queue("dequeue"), *GOES_ON],
        [*STARTED, ("assistant", "Boards it is.")],
    ),
    "the same words once more, typed later": (
        [*BEGINS, *ABSORBED, *GOES_ON, claude("u2", "a2", "user", "and a door"),
         claude("a3", "u2", "assistant", says("Done."), id="m3"), claude("u3", "a3", "user", "use larch boards")],
        [*STARTED, ("user", "use larch boards"), ("assistant", "Boards it is."), ("user", "and a door"),
         ("assistant", "Done."), ("user", "use larch boards")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("records", "told"), LOGS.values(), ids=LOGS)
async def test_a_message_typed_while_the_agent_works_is_a_turn_once_and_at_its_place(
    tmp_path: Path, records: list[Json], told: list[tuple[str, str]]
) -> None:
    for cut in range(len(records)):
        async with serving(tmp_path / str(cut)) as bench:
            taken = await take_in(bench, records, cut=cut)
            (one,) = await listed(bench)
            assert (await turns(bench, one), one.turns) == (told, len(told)), f"read up to record {cut} before"
            assert (taken.unreadable, taken.mended) == (0, 0)


async def test_the_reported_log_has_the_message(tmp_path: Path) -> None:
    if not CASES.exists():
        pytest.skip("the shared cases are not beside this checkout")
    given = json.loads(CASES.read_text())["claude_log_of_a_message_typed_while_it_works"]
    records = [{**record, "sessionId": "s"} for record in given]
    async with serving(tmp_path) as bench:
        await take_in(bench, [*BEGINS, *records, *GOES_ON])
        (one,) = await listed(bench)
        assert await turns(bench, one) == [
            *STARTED, ("user", "use larch boards for the walls"), ("assistant", "Boards it is."),
        ]  # fmt: skip
        found = await bench.call(TranscriptsSearch(query="larch walls", role="user"))
        assert found.results[0].preview == "use larch boards for the walls"


async def test_a_secret_in_the_queue_is_kept_nowhere(tmp_path: Path) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    said = f"the token is {secret}"
    async with serving(tmp_path) as bench:
        await take_in(bench, [*BEGINS, queue("enqueue", said)])
        assert not [file for file, data in contents(tmp_path) if secret.encode() in data]
        more = [*BEGINS, queue("enqueue", said), queue("dequeue"), claude("u2", "r1", "user", said)]
        await take_in(bench, more, cut=len(BEGINS) + 1)
        (one,) = await listed(bench)
        assert [text for _, text in await turns(bench, one)][-1] == "the token is [redacted:github-token]"
        assert one.turns == 4


async def test_a_deleted_message_of_the_queue_does_not_come_back(tmp_path: Path) -> None:
    records = [*BEGINS, queue("enqueue", "use larch boards"), *GOES_ON]
    async with serving(tmp_path) as bench:
        await take_in(bench, records[:4])
        (one,) = await listed(bench)
        await bench.call(TranscriptDelete(hash=one.hash))
        assert not [file for file, data in contents(tmp_path / "transcripts") if b"larch" in data]
        rest = [json.dumps(record) for record in records[4:]]
        await bench.call(TranscriptImport(source="/f", start=4, position=6, tail="c", records=rest, final=True))
        assert [text for _, text in await turns(bench, (await listed(bench))[0])][-1] == "Boards it is."
        assert not [file for file, data in contents(tmp_path / "transcripts") if b"larch" in data]


async def of_codex(bench: Bench, records: list[Json]) -> list[tuple[str, str]]:
    await take_in(bench, [codex("session_meta", id="s", cwd="/home/u/sea"), *records])
    (one,) = await listed(bench)
    return await turns(bench, one)


def typed(text: str) -> Json:
    return codex("event_msg", type="user_message", message=text)


@pytest.mark.parametrize(
    ("records", "told"),
    [
        ([spoken("user", "Go"), typed("Go"), spoken("assistant", "Yes")], ["Go", "Yes"]),
        ([typed("Go"), spoken("user", "Go"), spoken("assistant", "Yes")], ["Go", "Yes"]),
        (
            [spoken("user", "Go"), typed("Go"), spoken("assistant", "Yes"), typed("but slowly"),
             spoken("assistant", "Slowly")],
            ["Go", "Yes", "but slowly", "Slowly"],
        ),
        ([spoken("user", "Go"), typed("Go"), typed("but slowly")], ["Go", "but slowly"]),
        (
            [spoken("user", "# Context\nfile a\n\n## My request for Codex:\nGo"), typed("Go"),
             spoken("assistant", "Yes")],
            ["# Context\nfile a\n\n## My request for Codex:\nGo", "Yes"],
        ),
        ([spoken("user", "Go"), typed("Go"), spoken("assistant", "Yes"), typed("Go"), spoken("user", "Go")],
         ["Go", "Yes", "Go"]),
    ],
)  # fmt: skip
async def test_messages_that_codex_states_only_as_events_are_turns_too(
    tmp_path: Path, records: list[Json], told: list[str]
) -> None:
    async with serving(tmp_path) as bench:
        assert [text for _, text in await of_codex(bench, records)] == told
