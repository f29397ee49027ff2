"""What was masked or deleted is in no file of the store or the search, and in no answer."""

from __future__ import annotations

import json
from pathlib import Path

from msgspec.json import encode

from proto.ops.transcripts import (
    TranscriptCheckout,
    TranscriptDelete,
    TranscriptHistories,
    TranscriptHistory,
    TranscriptNode,
    TranscriptsSearch,
)
from tests.unit.transcripts.rig import Json, assistant, payload, post, serving, user
from tests.unit.transcripts.test_redaction import SECRETS
from tests.unit.transcripts.test_search import embedding, has, until


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


async def test_what_was_deleted_is_in_no_file_neither_text_nor_words(tmp_path: Path) -> None:
    gone = "Zyxwvut qponmlk"
    async with serving(tmp_path, embed=embedding) as bench:
        said: list[Json] = []
        for number in range(30):
            said += [user(f"Question {number} of stars"), assistant(f"Answer {number} of stars")]
        await post(bench, payload([*said, user(f"I say {gone} to you.")], "I heard that."))
        await until(lambda: has(bench, groups=62, vectors_waiting=0))
        assert held(tmp_path / "transcripts", gone)
        assert held(tmp_path / "retrieve", gone, "zyxwvut")
        hit = (await bench.call(TranscriptsSearch(query="Zyxwvut", role="user"))).results[0]
        await bench.call(TranscriptDelete(hash=hit.hash))

        async def is_gone() -> bool:
            return not held(tmp_path, gone, "zyxwvut", "qponmlk")

        await until(is_gone)
        found = await bench.call(TranscriptsSearch(query="heard that", top_k=100))
        assert "I heard that." in [hit.preview for hit in found.results]
        assert found.count == 61
