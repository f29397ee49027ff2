"""Gaps over many notes, as a client sees them: real files, the real services of notes and of search, vectors by dice.

    scripts/bench gaps [--notes 10000]

The vectors are no model's (that would be another benchmark) but have a model's size and lie in clusters as texts do.
The peer is the same comparison as one product of all vectors with all, and a sort.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import trio

from proto.ops.embed import EmbedMaxSim, EmbedModel, EmbedModelParams, EmbedResult, EmbedTexts, MaxSimResult, pack
from proto.ops.knowledge import (
    ClusterDocuments,
    ClusterMethod,
    ExploreLinks,
    FindDuplicateNotes,
    FindGaps,
    KnowledgeStatus,
)
from proto.ops.retrieve import RetrieveStatus
from services.knowledge.main import open_service as open_knowledge
from services.llm.main import open_service as open_llm
from services.retrieve.main import open_service as open_retrieve
from services.retrieve.vectors import Matrix
from services.runtime.handlers import Context, Environment, Handlers
from tests.in_process import Bench, services_in_process

DIMENSIONS = 384
TOPICS = 60
ROUNDS = 5


class Dice:
    """`embed` with vectors that a text's number chooses."""

    def __init__(self) -> None:
        self._topics = np.random.default_rng(0).standard_normal((TOPICS, DIMENSIONS))

    def vector(self, text: str) -> Matrix:
        found = re.search(r"\d+", text)
        number = int(found[0]) if found else 0
        chance = np.random.default_rng(number)
        vector = chance.random(TOPICS) ** 16 @ self._topics + 0.25 * chance.standard_normal(DIMENSIONS)
        scaled: Matrix = (vector / np.linalg.norm(vector)).astype(np.float32)
        return scaled

    @asynccontextmanager
    async def open(self, env: Environment) -> AsyncIterator[Handlers]:
        handlers = Handlers()

        @handlers.handle(EmbedTexts)
        async def embed(params: EmbedTexts, ctx: Context) -> EmbedResult:
            return EmbedResult(
                vectors=pack(np.stack([self.vector(text) for text in params.texts])), fingerprint="dice:1"
            )

        @handlers.handle(EmbedMaxSim)
        async def maxsim(params: EmbedMaxSim, ctx: Context) -> MaxSimResult:
            return MaxSimResult(scores=[0.5] * len(params.texts))

        @handlers.handle(EmbedModelParams)
        async def model(params: EmbedModelParams, ctx: Context) -> EmbedModel:
            return EmbedModel(
                model="dice", fingerprint="dice:1", dimensions=DIMENSIONS, max_tokens=256, device="cpu",
                precision="fp32",
            )  # fmt: skip

        yield handlers


async def fill(bench: Bench, notes: int) -> None:
    while True:
        status = await bench.call(KnowledgeStatus())
        held = await bench.call(RetrieveStatus(collection="notes"))
        if status.notes == notes and not status.pending and not held.vectors_waiting and held.vectors:
            return
        await trio.sleep(0.2)


async def measure(folder: Path, notes: int) -> None:
    root = folder / "notes"
    root.mkdir()
    for n in range(notes):
        text = f"# {n}\n\nNote {n} speaks of matter {n % 97} at enough length to have a vector of its own. [[n{n + 1}]]"
        (root / f"n{n}.md").write_text(text)
    dice = Dice()
    services = {"embed": dice.open, "retrieve": open_retrieve, "llm": open_llm, "knowledge": open_knowledge}
    async with services_in_process(services, folder / "data", roots=[root]) as bench:
        began = time.perf_counter()
        await fill(bench, notes)
        print(f"{notes} notes indexed in {time.perf_counter() - began:.1f} s")
        matrix = np.stack([dice.vector(f"# {n}") for n in range(notes)])
        for round_ in range(ROUNDS):
            began = time.perf_counter()
            found = await bench.call(FindGaps())
            ours = time.perf_counter() - began
            began = time.perf_counter()
            products = np.triu(matrix @ matrix.T, 1)
            first, second = np.nonzero(products >= 0.8)
            best = np.sort(products[first, second])[::-1][:10]
            peer = time.perf_counter() - began
            print(
                f"find_gaps {ours * 1000:7.0f} ms ({len(found)} gaps, the best {found[0].similarity if found else 0})"
                f"   one product and a sort {peer * 1000:7.0f} ms, {products.nbytes / 2**20:.0f} MiB"
                f" (the best {best[0] if len(best) else 0:.6f})   ratio {peer / ours:.2f}"
                + ("   the first reads the vectors" if round_ == 0 else "")
            )
            del products
        began = time.perf_counter()
        close = await bench.call(ExploreLinks(id="n0", relation="similar"))
        print(f"explore_links similar {(time.perf_counter() - began) * 1000:.1f} ms ({len(close)})")
        began = time.perf_counter()
        clusters = await bench.call(ClusterDocuments(method=ClusterMethod.KMEANS))
        print(f"cluster_documents by kmeans {(time.perf_counter() - began):.2f} s ({len(clusters.clusters)} clusters)")
        began = time.perf_counter()
        clusters = await bench.call(ClusterDocuments())
        print(f"cluster_documents {(time.perf_counter() - began):.2f} s ({len(clusters.clusters)} clusters)")
        began = time.perf_counter()
        same = await bench.call(FindDuplicateNotes())
        print(f"find_duplicate_notes {(time.perf_counter() - began):.2f} s ({len(same.groups) + same.more} groups)")
        await bench.stop("knowledge")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--notes", type=int, default=10_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trio.run(measure, Path(folder), arguments.notes)


if __name__ == "__main__":
    main()
