"""Measures the search of `ops_describe`: is the right operation among the first three for a request in people's words?

The requests were written from a list of abilities, without seeing an operation's name or text, and labelled before any
search was run. The first set is for tuning; the other two are held out.

    scripts/bench tool_search [--show SET] [--train]

`--train` learns `services/front/surfaces/learned.bin` anew from `examples.txt` first, by the packaged model.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import trio

from proto import ops
from proto.ops.embed import TextKind
from services.embed.main import load
from services.embed.main import open_service as open_embed
from services.embed.serving import EmbedSettings
from services.embed.weights import PACKAGED
from services.front.surfaces.describe import describe
from services.front.surfaces.examples import LEARNED, Learned, digest, examples
from services.front.surfaces.steps import Steps
from services.front.tool_search import ToolSearches, ToolVectors
from tests.in_process import services_in_process

SETS = {"tuning": "requests_a.json", "developers": "requests_b.json", "everybody": "requests_c.json"}
FIRST = 3

SHARPNESS, DECAY, RATE, MOMENTUM, ROUNDS = 10.0, 0.003, 2.0, 0.9, 400


def learn(vectors: Any, labels: Any, count: int) -> Any:
    """Return the weights of a multinomial logistic regression without intercepts, one column for each label."""
    wanted = np.eye(count)[labels]
    weights = np.zeros((vectors.shape[1], count))
    step = np.zeros_like(weights)
    for _ in range(ROUNDS):
        logits = SHARPNESS * vectors @ weights
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        slope = SHARPNESS * vectors.T @ (chances - wanted) / len(vectors) + DECAY * weights
        step = MOMENTUM * step + slope
        weights -= RATE * step
    return SHARPNESS * weights


def train() -> None:
    """Write `learned.bin`."""
    with tempfile.TemporaryDirectory() as folder:
        model = load(EmbedSettings(model=PACKAGED[1]), "cpu", Path(folder))
    by_name = examples()
    said = [(number, each) for number, requests in enumerate(by_name.values()) for each in requests]
    ids = model.tokenizer.encode([each for _, each in said], TextKind.QUERY).ids
    vectors = np.asarray(model.encoder.compute(ids), dtype=np.float64)
    weights = learn(vectors, [number for number, _ in said], len(by_name)).T
    scales = np.abs(weights).max(axis=1) / 127
    numbers = np.rint(weights / scales[:, None]).astype(np.int8)
    head = Learned(model.fingerprint, digest(), list(by_name), [round(float(each), 8) for each in scales])
    LEARNED.write_bytes(msgspec.json.encode(head) + b"\n" + numbers.tobytes())
    print(f"learned from {len(said)} requests for {len(by_name)} operations")


def requests(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = msgspec.json.decode((Path(__file__).parent / SETS[name]).read_bytes())
    return found


async def measure(show: str) -> dict[str, tuple[int, int, int, int]]:
    """Return for each set how many requests find their operation by words, by words and meaning, how many of those
    without an operation are told so, and how many have one."""
    steps = Steps("all", ops.load())
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        async with services_in_process({"embed": open_embed}, Path(folder)) as bench, trio.open_nursery() as nursery:
            searches = ToolSearches(ToolVectors(bench.call))
            searches.vectors.patience_s = 60.0
            nursery.start_soon(searches.vectors.run)
            await searches.ranked(steps, "wake up")
            times = []
            for name in SETS:
                asked = requests(name)
                words = both = told = 0
                for each in asked:
                    began = time.perf_counter()
                    ranked, is_likely = await searches.ranked(steps, each["words"])
                    times.append(time.perf_counter() - began)
                    answer = describe(steps, None, each["words"], ranked, is_likely=is_likely)
                    listed = [op["op"] for op in answer["ops"]][:FIRST]
                    right = set(each.get("any", ()))
                    words += bool(right & set(steps.index.ranked(each["words"])[:FIRST]))
                    both += bool(right & set(listed))
                    told += not right and "note" in answer
                    if name == show and not right & set(listed) and right:
                        print(f"    {each['words']}\n        {', '.join(sorted(right))}   [{', '.join(listed)}]")
                found[name] = (words, both, told, sum("any" in each for each in asked))
            nursery.cancel_scope.cancel()
    print(f"p50 {sorted(times)[len(times) // 2] * 1000:.1f} ms")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench tool_search", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--show", choices=SETS, default="", help="print the requests of a set that are not found")
    parser.add_argument("--train", action="store_true", help="learn from the examples first")
    arguments = parser.parse_args()
    if arguments.train:
        train()
    print(f"{'requests':12} {'by words':>9} {'both':>6} {'of':>4} {'without an operation, told':>28}")
    for name, (words, both, told, count) in trio.run(measure, arguments.show).items():
        print(f"{name:12} {words:9} {both:6} {count:4} {told:22} of {len(requests(name)) - count}")


if __name__ == "__main__":
    main()
