"""Memory compared with plain search over conversations, with LoCoMo's kinds of questions; synthetic (`conversations`).

An agent remembers each fact as a statement when it comes up. `recall` searches these, `search` the turns themselves,
with the same limit and project. An answer counts if a memory or turn found contains the right value, and for a negative
question if the answer says that nothing relevant was found. Tokens are the characters / 4 of the answer as JSON; for
`search`, with the context of each turn, and of its turns alone.

    scripts/bench memory [--pairs | --show]
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from proto.control.client import Client
from tests.bench.memory.conversations import Conversation, Question, made
from tests.bench.memory.pairs import judged
from tests.system.running import RunningKernel, running, wait_until

LIMIT = 5
KINDS = ("single", "updated", "temporal", "negative")


def take_in(client: Client, conversations: list[Conversation]) -> float:
    """Post the conversations and remember their facts. Returns the seconds of one `remember`."""
    took: list[float] = []
    for one in conversations:
        messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(one.turns)]
        turn = {
            "provider": "openai", "project": one.project, "request": {"model": "m", "messages": messages[:-1]},
            "response": {"model": "m", "choices": [{"index": 0, "finish_reason": "stop", "message": messages[-1]}]},
        }  # fmt: skip
        posted = client.call_named("transcript_ingest", {"body": base64.b64encode(json.dumps(turn).encode()).decode()})
        assert posted["accepted"] == 1, posted
        for statement in one.statements:
            begun = time.perf_counter()
            client.call_named("remember", {"text": statement, "scope": f"project:{one.project}"})
            took.append(time.perf_counter() - begun)
    return statistics.median(took)


def until_embedded(kernel: RunningKernel) -> None:
    def are_embedded() -> bool:
        left = [kernel.call("retrieve_status", {"collection": name}) for name in ("transcripts", "memory")]
        return all(one["groups"] and not one["vectors_waiting"] for one in left)

    wait_until(are_embedded, 600)


def texts_of(answer: dict[str, Any]) -> list[str]:
    """Return the texts found, best first."""
    return [one.get("text") or one["preview"] for one in answer.get("memories", answer.get("results", []))]


def score(question: Question, answer: dict[str, Any]) -> tuple[bool, bool]:
    """Return whether the first result, and whether one of the first five, is right."""
    found = texts_of(answer)
    if question.answer is None:
        declined = not found or bool(answer.get("note"))
        return declined, declined
    right = [question.answer in text for text in found]
    return bool(right) and right[0], any(right)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench memory", description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", action="store_true", help="show which statements count as equal or contradictory")
    parser.add_argument("--show", action="store_true", help="show each question whose first answer is wrong")
    arguments = parser.parse_args()
    if arguments.pairs:
        judged()
        return
    conversations = made()
    print(
        f"{len(conversations)} synthetic conversations, {sum(len(one.turns) for one in conversations)} turns, "
        f"{sum(len(one.statements) for one in conversations)} statements, "
        f"{sum(len(one.questions) for one in conversations)} questions"
    )
    marks: dict[tuple[str, str], list[tuple[bool, bool]]] = defaultdict(list)
    tokens: dict[str, list[int]] = defaultdict(list)
    services = ["embed", "retrieve", "transcripts", "memory"]
    with (
        tempfile.TemporaryDirectory() as data,
        running(Path(data), services=services) as kernel,
        Client(kernel.data_dir) as client,
    ):
        print(f"remember: {1000 * take_in(client, conversations):.0f} ms (median)")
        until_embedded(kernel)
        for one in conversations:
            for question in one.questions:
                asked: dict[str, tuple[str, dict[str, object]]] = {
                    "memory": ("recall", {"scope": f"project:{one.project}"}),
                    "search": ("search", {"project": one.project}),
                }
                for system, (name, given) in asked.items():
                    answer = client.call_named(name, {"query": question.text, "limit": LIMIT, **given})
                    marks[system, question.kind].append(score(question, answer))
                    tokens[system].append(len(json.dumps(answer)) // 4)
                    tokens[f"{system} alone"].append(sum(len(text) for text in texts_of(answer)) // 4)
                    if arguments.show and not marks[system, question.kind][-1][0]:
                        print(f"  {system}: {question.text} ({question.answer}) {texts_of(answer)[:2]}")
    print(f"{'':8} " + " ".join(f"{kind:>18}" for kind in KINDS) + f" {'all':>18} {'tokens':>8} {'alone':>6}")
    print(f"{'':8} " + " ".join(f"{'hit@1   hit@5':>18}" for _ in (*KINDS, "all")) + f" {'median':>8} {'median':>6}")
    for system in ("memory", "search"):
        each = [marks[system, kind] for kind in KINDS]
        cells = [
            f"{sum(first for first, _ in some) / len(some):>10.2f} {sum(any_ for _, any_ in some) / len(some):>7.2f}"
            for some in (*each, [mark for some in each for mark in some])
        ]
        read, alone = (statistics.median(tokens[name]) for name in (system, f"{system} alone"))
        print(f"{system:8} " + " ".join(cells) + f" {read:>8.0f} {alone:>6.0f}")


if __name__ == "__main__":
    main()
