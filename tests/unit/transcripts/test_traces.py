"""Masked or deleted text is in no file of the store or the search, and in no answer."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import apsw
import pytest
from msgspec.json import encode

from proto.ops.retrieve import RetrieveStatus
from services.retrieve import main as retrieve
from services.transcripts import main as transcripts
from services.transcripts.operations.conversations import (
    TranscriptCheckout,
    TranscriptDelete,
    TranscriptHistories,
    TranscriptHistory,
    TranscriptNode,
    TranscriptsSearch,
)
from services.transcripts.operations.intake import TranscriptImport
from tests.in_process import services_in_process
from tests.unit.transcripts.rig import Json, assistant, payload, post, serving, user
from tests.unit.transcripts.test_redaction import SECRETS
from tests.unit.transcripts.test_search import embedding, has
from tests.waiting import until


def held(folder: Path, *what: str) -> list[tuple[str, str]]:
    """Which of these are in which file, also where JSON has escaped their line ends."""
    files = [(file, file.read_bytes()) for file in folder.rglob("*") if file.is_file()]
    return [
        (text[:40], str(file.relative_to(folder)))
        for text in what
        for file, data in files
        if text.encode() in data or json.dumps(text)[1:-1].encode() in data
    ]


async def test_secrets_of_every_kind_are_in_no_file_and_in_no_answer(tmp_path: Path) -> None:
    call: Json = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "run", "arguments": json.dumps({"env": secret})}}
            for secret in SECRETS.values()
        ],
    }
    results: list[Json] = [
        {"role": "tool", "tool_call_id": "c", "content": f"output: {secret}"} for secret in SECRETS.values()
    ]
    async with serving(tmp_path, embed=embedding) as bench:
        said = [user(f"Keep this: {secret}") for secret in SECRETS.values()]
        posted = await post(bench, payload([*said, call, *results], "Starfish keep: " + " ".join(SECRETS.values())))
        assert posted.accepted == 1
        nodes = 2 * len(SECRETS) + 2
        await until(lambda: has(bench, groups=nodes, vectors_waiting=0))
        head = posted.head_hash
        answers = [
            encode(await bench.call(TranscriptsSearch(query="starfish keep this output run", top_k=100))),
            encode(await bench.call(TranscriptHistory(hash=head))),
            encode(await bench.call(TranscriptHistories())),
            encode(await bench.call(TranscriptNode(hash=head))),
            encode(await bench.call(TranscriptCheckout(hash=head))),
        ]
        for secret in SECRETS.values():
            found = await bench.call(TranscriptsSearch(query=secret[:200]))
            # It repeats the query, and nothing else may.
            answers.append(encode(found.results))
        for answer in answers:
            assert not [name for name, secret in SECRETS.items() if encode(secret)[1:-1] in answer]
        assert not held(tmp_path, *SECRETS.values())
    assert not held(tmp_path, *SECRETS.values())


def stored_vector(folder: Path, text: str) -> bytes:
    """Return the vector of the turn that holds `text`, as the search stores it.

    It reads with the service's own SQLite: a second one in this process would drop the locks of the first, and truncate
    the index of the log that the service has mapped.
    """
    path = str(folder / "retrieve" / "transcripts.db")
    with contextlib.closing(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)) as db:
        query = "SELECT vector FROM vectors JOIN items USING(item_id) WHERE instr(text, ?)"
        ((vector,),) = db.execute(query, (text,))
    return bytes(vector)


def files_with(folder: Path, data: bytes) -> set[str]:
    return {file.name for file in folder.rglob("*") if file.is_file() and data in file.read_bytes()}


@pytest.mark.slow
async def test_deleted_turns_leave_no_text_words_or_vector_in_any_file(tmp_path: Path) -> None:
    gone = "Zyxwvut qponmlk"
    services = {"retrieve": retrieve.open_service, "embed": embedding, "transcripts": transcripts.open_service}
    # Small enough for vectors to become segments, and words tantivy's.
    settings = {"retrieve": {"flat_vectors": 8, "large_words": 20}}
    async with services_in_process(services, tmp_path, settings=settings) as bench:
        said: list[Json] = []
        for number in range(30):
            said += [user(f"Question {number} of stars"), assistant(f"Answer {number} of stars")]
            if number == 3:
                said += [user(f"I say {gone} to you."), assistant("I heard that.")]
        await post(bench, payload(said[:-1], "Answer 29 of stars"))

        async def is_indexed() -> bool:
            status = await bench.call(RetrieveStatus(collection="transcripts"))
            return status.vectors == 62 and status.index.startswith("rabitq") and status.words == "tantivy"

        await until(is_indexed)
        vector = stored_vector(tmp_path, gone)
        assert held(tmp_path / "transcripts", gone)
        assert held(tmp_path / "retrieve", gone, "zyxwvut")
        assert "rows" in files_with(tmp_path, vector)
        hit = (await bench.call(TranscriptsSearch(query="Zyxwvut", role="user"))).results[0]
        deleted = await bench.call(TranscriptDelete(hash=hit.hash))
        # It is gone at once, not some time later.
        assert (deleted.deleted, deleted.search_pending) == (1, 0)
        assert not held(tmp_path, gone, "zyxwvut", "qponmlk")
        assert not files_with(tmp_path, vector)
        found = await bench.call(TranscriptsSearch(query="heard that", top_k=100))
        assert "I heard that." in [hit.preview for hit in found.results]
        assert found.count == 61


async def test_a_deletion_without_the_search_says_so_and_is_completed_when_it_is_back(tmp_path: Path) -> None:
    gone = "Zyxwvut qponmlk"
    async with serving(tmp_path, embed=embedding) as bench:
        head = (await post(bench, payload([user("What?")], gone))).head_hash
        await until(lambda: has(bench, groups=2, vectors_waiting=0))
        vector = stored_vector(tmp_path, gone)
        await bench.stop("retrieve")
        assert (await bench.call(TranscriptDelete(hash=head))).search_pending == 1
        assert not held(tmp_path / "transcripts", gone)
        await bench.start("retrieve")

        async def is_gone() -> bool:
            return not held(tmp_path, gone, "zyxwvut") and not files_with(tmp_path, vector)

        await until(is_gone)


async def test_a_deleted_message_of_an_imported_file_is_not_kept_by_the_importer(tmp_path: Path) -> None:
    gone = "Zyxwvut qponmlk"
    message = {"role": "assistant", "id": "m", "model": "x", "content": [{"type": "text", "text": gone}]}
    record = {"type": "assistant", "uuid": "u", "sessionId": "s", "parentUuid": None, "message": message}
    async with serving(tmp_path) as bench:
        await bench.call(
            TranscriptImport(source="/f", start=0, position=9, tail="x", records=[json.dumps(record)], final=True)
        )
        hit = (await bench.call(TranscriptsSearch(query=gone))).results[0]
        assert held(tmp_path / "transcripts", gone)
        await bench.call(TranscriptDelete(hash=hit.hash))
        assert not held(tmp_path, gone)
        # The file has grown by a message that follows.
        more = record | {"uuid": "v", "parentUuid": "u", "message": message | {"id": "n", "content": "Sea stars."}}
        part = TranscriptImport(source="/f", start=9, position=20, tail="y", records=[json.dumps(more)], final=True)
        assert (await bench.call(part)).nodes == 1
        assert not held(tmp_path, gone)
