"""How fast `embed` is beside its peers, in one run on one machine: passages a second, one query's time, and the
vectors' agreement.

    python -m tests.bench.embed_bench [../shared/cases/ir/scifact/corpus.jsonl]

Peers: a plain loop over transformers (padded batches of 32, as they come and sorted by length) and, where it is
    installed, sentence-transformers. All use the same weights, the same cores and 256 tokens.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import trio

from proto.machine import usable_cores
from proto.ops.embed import TextKind
from services.embed.encoder import Vectors
from services.embed.main import Settings, load
from services.embed.serving import Loaded
from services.embed.weights import ModelFiles
from services.runtime.models.batcher import Batcher, BatchLimits, Lane
from services.runtime.models.checkpoint import Ids

Encode = Callable[[Sequence[str]], Vectors]


def corpus(path: Path | None, count: int) -> list[str]:
    """Long passages: abstracts, or, where there is no corpus, words of this project's manual drawn by Zipf's law (of
    words that are made up, the tokenizer would make two or three tokens each)."""
    if path is not None:
        documents = [msgspec.json.decode(line) for line in path.open()]
        return [f"{each.get('title', '')} {each['text']}" for each in documents[:count]]
    source = random.Random(0)
    manual = Path(__file__).parents[2] / "README.md"
    vocabulary = [word for word, _ in Counter(manual.read_text(encoding="utf-8").split()).most_common()]
    weights = [1 / (n + 1) for n in range(len(vocabulary))]
    return [" ".join(source.choices(vocabulary, weights, k=160)) for _ in range(count)]


def mixed(texts: Sequence[str]) -> list[str]:
    """The texts cut to lengths as notes have them: log-normal, median 40 words."""
    source = random.Random(1)
    return [" ".join(text.split()[: max(3, int(source.lognormvariate(3.7, 0.9)))]) for text in texts]


def ours(loaded: Loaded) -> Encode:
    """The service's own path: tokenizer, batcher, as many workers as cores."""

    async def run(texts: Sequence[str]) -> Vectors:
        torch.set_num_threads(1)
        batcher: Batcher[Ids] = Batcher(loaded.encoder.width, BatchLimits())
        async with trio.open_nursery() as nursery:
            for _ in range(usable_cores()):
                nursery.start_soon(batcher.run, loaded.encoder)
            vectors = await batcher.compute(loaded.tokenizer.encode(texts, TextKind.PASSAGE).ids, Lane.BULK)
            nursery.cancel_scope.cancel()
        return vectors

    return lambda texts: trio.run(run, texts)


def plain(files: ModelFiles, *, ordered: bool) -> Encode:
    """What one writes first: transformers, batches of 32, padded, mean pooling."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(files.folder, local_files_only=True)
    model: Any = AutoModel.from_pretrained(files.folder, local_files_only=True).eval()

    def encode(texts: Sequence[str]) -> Vectors:
        torch.set_num_threads(usable_cores())
        order = sorted(range(len(texts)), key=lambda n: len(texts[n])) if ordered else list(range(len(texts)))
        result = np.empty((len(texts), model.config.hidden_size), dtype=np.float32)
        with torch.inference_mode():
            for start in range(0, len(order), 32):
                some = order[start : start + 32]
                batch = tokenizer(
                    [texts[n] for n in some], padding=True, truncation=True, max_length=256, return_tensors="pt"
                )
                states = model(**batch).last_hidden_state
                mask = batch["attention_mask"].unsqueeze(-1)
                pooled = (states * mask).sum(1) / mask.sum(1)
                result[some] = torch.nn.functional.normalize(pooled, dim=-1).numpy()
        return result

    return encode


def sentence_transformers(files: ModelFiles) -> Encode | None:
    """The library most would take; None where it is not installed."""
    if importlib.util.find_spec("sentence_transformers") is None:
        return None
    library: Any = importlib.import_module("sentence_transformers")
    model = library.SentenceTransformer(str(files.folder), device="cpu", local_files_only=True)

    def encode(texts: Sequence[str]) -> Vectors:
        torch.set_num_threads(usable_cores())
        vectors: Vectors = model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        return vectors

    return encode


def rate(encode: Encode, texts: Sequence[str], rounds: int) -> tuple[float, Vectors]:
    """Texts a second, the best of `rounds` (whatever else runs on the machine only takes away)."""
    encode(texts[:32])
    best = 0.0
    vectors = np.empty(0, dtype=np.float32)
    for _ in range(rounds):
        started = time.perf_counter()
        vectors = encode(texts)
        best = max(best, len(texts) / (time.perf_counter() - started))
    return best, vectors


def query_ms(encode: Callable[[str], object], queries: Sequence[str]) -> tuple[float, float]:
    """Median and 95th percentile of one query's time."""
    times: list[float] = []
    for query in queries:
        started = time.perf_counter()
        encode(query)
        times.append((time.perf_counter() - started) * 1000)
    times.sort()
    return times[len(times) // 2], times[int(len(times) * 0.95)]


def one_at_a_time(encode: Encode) -> Callable[[str], object]:
    """`encode` for a single text."""
    return lambda text: encode([text])


def main(path: Path | None, count: int, rounds: int) -> None:
    """Measure and print."""
    started = time.perf_counter()
    loaded = load(Settings(), "cpu", Path(tempfile.gettempdir()))
    print(f"{loaded.files.name}, {loaded.encoder.precision}, {usable_cores()} cores; loaded and warm in "
          f"{(time.perf_counter() - started) * 1000:.0f} ms (torch imported before)")  # fmt: skip
    long = corpus(path, count)
    short = mixed(long)
    queries = [" ".join(text.split()[:9]) for text in long[:200]]
    peers: dict[str, Encode | None] = {
        "linckia": ours(loaded),
        "transformers": plain(loaded.files, ordered=False),
        "transformers, sorted": plain(loaded.files, ordered=True),
        "sentence-transformers": sentence_transformers(loaded.files),
    }
    base: dict[str, float] = {}
    for name, encode in peers.items():
        if encode is None:
            print(f"{name}: not installed")
            continue
        long_rate, long_vectors = rate(encode, long, rounds)
        short_rate, _ = rate(encode, short, rounds)
        if name == "linckia":
            torch.set_num_threads(1)
            middle, high = query_ms(
                lambda query: loaded.encoder.compute(loaded.tokenizer.encode([query], TextKind.QUERY).ids), queries
            )
            base = {"long": long_rate, "short": short_rate, "query": middle}
            kept = long_vectors
        else:
            middle, high = query_ms(one_at_a_time(encode), queries)
        print(
            f"{name:22} long {long_rate:6.1f}/s (x{base['long'] / long_rate:.1f})  "
            f"mixed {short_rate:6.1f}/s (x{base['short'] / short_rate:.1f})  "
            f"query p50 {middle:5.1f} ms (x{middle / base['query']:.1f}), p95 {high:5.1f} ms  "
            f"worst cosine to ours {float((kept * long_vectors).sum(1).min()):.5f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("corpus", nargs="?", type=Path, help="a corpus.jsonl with `title` and `text`")
    parser.add_argument("--count", type=int, default=256, help="passages")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many")
    options = parser.parse_args()
    main(options.corpus, options.count, options.rounds)
