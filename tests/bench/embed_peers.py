"""Embedding through the real services, compared with common alternatives on the same model, texts and cores.

    scripts/bench embed_peers [../shared/cases/ir/scifact/corpus.jsonl] [--only throughput|query|http]

- Throughput over passages of mixed lengths (log-normal, median 40 words) through `embed_texts`, by default and with
  `precision = "fp32"`; the peer is sentence-transformers with its defaults (fp32, all cores).
- The time of one query through `embed_texts`. The peers are sentence-transformers; transformers' `AutoModel` with the
  same weights in this process, in fp32 and with its tokenizer, as used by programs without a service; and the bare
  forward pass of our own encoder in this process, which shows the cost of the way to the service. They take turns,
  query by query, so that other work on the machine affects all of them.
- `POST /v1/embeddings` with 1, 8 and 32 clients, one short text each; the peer is the server infinity-emb.

Peers are installed on first use, into separate environments (`parts.peer_venv`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from proto.control.client import Client
from proto.host.machine import usable_cores
from proto.ops.embed import TextKind
from services.embed.backends import Backend
from services.embed.main import load
from services.embed.serving import EmbedSettings, Loaded
from services.embed.weights import resolve
from tests.bench.parts.peer_venv import environment
from tests.system.running import HTTP, RunningKernel, running

AT_ONCE, CALLS = 64, 4
"""Texts per call, and calls in flight."""

SETTLED_S = 6


def corpus(path: Path | None, count: int) -> list[str]:
    """Return long passages: abstracts, or without a corpus, words of this project's manual drawn by Zipf's law.

    The tokenizer would split invented words into two or three tokens each.
    """
    if path is not None:
        documents = [msgspec.json.decode(line) for line in path.open()]
        return [f"{each.get('title', '')} {each['text']}" for each in documents[:count]]
    source = random.Random(0)
    manual = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))
    words = " ".join(page.read_text(encoding="utf-8") for page in manual).split()
    vocabulary = [word for word, _ in Counter(words).most_common()]
    weights = [1 / (n + 1) for n in range(len(vocabulary))]
    return [" ".join(source.choices(vocabulary, weights, k=160)) for _ in range(count)]


def mixed(texts: Sequence[str]) -> list[str]:
    """Cut the texts to lengths typical of notes: log-normal, median 40 words."""
    source = random.Random(1)
    return [" ".join(text.split()[: max(3, int(source.lognormvariate(3.7, 0.9)))]) for text in texts]


class SentenceTransformers:
    """The peer's process."""

    def __init__(self, device: str = "cpu", dtype: str = "float32") -> None:
        python = environment("sentence-transformers", ["scikit-learn", "scipy"], ["sentence-transformers==6.2.0"])
        self._process = subprocess.Popen(
            [
                str(python),
                "-P",
                str(Path(__file__).with_name("parts") / "sentence_transformers.py"),
                str(resolve().folder),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={
                **os.environ,
                "PEER_THREADS": str(usable_cores()),
                "PEER_DEVICE": device,
                "PEER_DTYPE": dtype,
                "HF_HUB_OFFLINE": "1",
            },
        )
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._out, self._in = self._process.stdout, self._process.stdin
        if self._out.readline() != "ready\n":
            raise AssertionError("sentence-transformers did not start")

    def encode(self, texts: Sequence[str], *, wanted: bool = False) -> tuple[float, Any]:
        """Return the seconds, and the vectors if they are wanted."""
        self._in.write(json.dumps([list(texts), wanted]) + "\n")
        self._in.flush()
        taken, vectors = json.loads(self._out.readline())
        return taken, None if vectors is None else np.asarray(vectors, dtype=np.float32)

    def close(self) -> None:
        self._in.close()
        self._process.wait(30)


def through_the_service(kernel: RunningKernel, texts: Sequence[str]) -> float:
    """Return texts per second, with a few calls in flight."""
    calls = [list(texts[start : start + AT_ONCE]) for start in range(0, len(texts), AT_ONCE)]
    lock = threading.Lock()

    def work() -> None:
        with Client(kernel.data_dir) as client:
            while True:
                with lock:
                    if not calls:
                        return
                    some = calls.pop()
                client.call_named("embed_texts", {"texts": some, "kind": "passage"}, timeout_s=120)

    began = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(CALLS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(texts) / (time.perf_counter() - began)


@contextlib.contextmanager
def kernel_with(backend: Backend, precision: str) -> Iterator[RunningKernel]:
    with (
        tempfile.TemporaryDirectory() as data,
        running(
            Path(data),
            options=HTTP,
            environment={
                "LINCKIA_SERVICES__EMBED__BACKEND": backend.value,
                "LINCKIA_SERVICES__EMBED__PRECISION": f'"{precision}"',
            },
        ) as kernel,
    ):
        # Services that are still being prepared would compete for the processors.
        time.sleep(SETTLED_S)
        yield kernel


def throughput(texts: Sequence[str], peer: SentenceTransformers, rounds: int, backend: Backend) -> None:
    peer.encode(texts[:64])
    print("mixed lengths, passages/s, the best of each in rounds taken by turns")
    for precision in ("auto", "fp32"):
        with kernel_with(backend, precision) as kernel:
            through_the_service(kernel, texts[:128])
            pairs = [(through_the_service(kernel, texts), len(texts) / peer.encode(texts)[0]) for _ in range(rounds)]
            ours, theirs = (max(side) for side in zip(*pairs, strict=True))
            used = kernel.call("embed_model")["precision"]
            print(
                f"  through the service, {precision} ({used}): {ours:.1f}, "
                f"sentence-transformers: {theirs:.1f}, ratio {ours / theirs:.2f}",
                flush=True,
            )


class Transformers:
    """transformers' own classes in this process, used as in its examples."""

    def __init__(self) -> None:
        from transformers import AutoModel, AutoTokenizer

        folder = resolve().folder
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._model: Any = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()

    def encode(self, text: str) -> Any:
        """Return the unit vector of a text, from the mean over its tokens."""
        with torch.inference_mode():
            inputs = self._tokenizer(text, return_tensors="pt")
            states = self._model(**inputs).last_hidden_state
            return torch.nn.functional.normalize(states.mean(1), dim=-1).numpy()


def queries(texts: Sequence[str], peer: SentenceTransformers, model: Loaded, backend: Backend) -> None:
    torch.set_num_threads(1)
    short = [" ".join(text.split()[:9]) for text in texts]
    bare, service, direct, sentences = (
        "bare forward pass", "through the service", "transformers, this process", "sentence-transformers",
    )  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in (bare, service, direct, sentences)}
    transformers = Transformers()
    with kernel_with(backend, "auto") as kernel, Client(kernel.data_dir) as client:
        for number, query in enumerate(short):
            began = time.perf_counter()
            model.encoder.compute(model.tokenizer.encode([query], TextKind.QUERY).ids)
            between = time.perf_counter()
            client.call_named("embed_texts", {"texts": [query], "kind": "query"})
            ended = time.perf_counter()
            theirs, _ = peer.encode([query])
            before = time.perf_counter()
            transformers.encode(query)
            after = time.perf_counter()
            if number >= 10:
                times[bare].append(between - began)
                times[service].append(ended - between)
                times[direct].append(after - before)
                times[sentences].append(theirs)
    base, people = statistics.median(times[bare]), statistics.median(times[direct])
    print("one query, ms, all on one thread but sentence-transformers")
    for name, taken in times.items():
        taken.sort()
        print(
            f"  {name:26} p50 {statistics.median(taken) * 1000:6.2f}  p95 {taken[int(len(taken) * 0.95)] * 1000:6.2f}  "
            f"{statistics.median(taken) / base:5.2f} times the bare pass, "
            f"{statistics.median(taken) / people:5.2f} times transformers"
        )


def clients(port: int, path: str, model: str, count: int, seconds: float) -> tuple[float, float]:
    """Return requests per second and median milliseconds of `count` clients over `seconds`."""
    taken: list[float] = []
    give_up = time.perf_counter() + seconds

    def work(number: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        serial = 0
        while time.perf_counter() < give_up:
            serial += 1
            body = json.dumps({"model": model, "input": f"how does sea star {number} regrow arm {serial}"})
            began = time.perf_counter()
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200:
                raise AssertionError(content[:300])
            taken.append(time.perf_counter() - began)
        connection.close()

    began = time.perf_counter()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(taken) / (time.perf_counter() - began), statistics.median(taken) * 1000


@contextlib.contextmanager
def infinity() -> Iterator[int]:
    """Run the peer's server; yields its port."""
    python = environment(
        "infinity",
        [
            "numpy<2", "transformers>=4.47,<5", "huggingface_hub<1", "fastapi>=0.103.2",
            "uvicorn[standard]>=0.32,<0.33",
            "orjson", "typer>=0.12.5,<0.13", "click<8.2", "prometheus-fastapi-instrumentator>=6.1", "posthog",
            "rich<14", "scikit-learn", "scipy",
        ],
        ["infinity-emb==0.0.77", "sentence-transformers>=3.0.1,<4"],
    )  # fmt: skip
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(python.with_name("infinity_emb")), "v2", "--model-id", str(resolve().folder), "--port", str(port)]
    command += [
        "--host",
        "127.0.0.1",
        "--served-model-name",
        "m",
        "--engine",
        "torch",
        "--device",
        "cpu",
        "--no-bettertransformer",
    ]
    offline = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    process = subprocess.Popen(
        command, env={**os.environ, **offline}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        give_up = time.monotonic() + 90
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                clients(port, "/embeddings", "m", 1, 0.5)
                break
            if process.poll() is not None or time.monotonic() > give_up:
                raise AssertionError("infinity-emb did not start")
            time.sleep(0.2)
        yield port
    finally:
        process.terminate()
        process.communicate(timeout=30)


def servers(seconds: float) -> None:
    with infinity() as theirs, kernel_with(Backend.AUTO, "auto") as kernel:
        ours = int(kernel.status()["http_url"].rsplit(":", 1)[1].split("/")[0])
        name = kernel.call("embed_model")["model"]
        print("POST embeddings, requests/s (median ms)")
        for count in (1, 8, 32):
            pairs = []
            # They take turns, so that the machine's other work hits both.
            for _ in range(2):
                pairs.append(
                    (
                        clients(ours, "/v1/embeddings", name, count, seconds),
                        clients(theirs, "/embeddings", "m", count, seconds),
                    )
                )
            (rate, ms), (peer_rate, peer_ms) = (max(side) for side in zip(*pairs, strict=True))
            print(
                f"  {count:>2} clients: {rate:7.1f} ({ms:6.1f})   infinity-emb {peer_rate:7.1f} ({peer_ms:6.1f})   "
                f"ratio {rate / peer_rate:.2f}",
                flush=True,
            )


def main() -> None:
    # Hides transformers' progress bar for reading a hundred tensors.
    os.environ["TQDM_DISABLE"] = "1"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?", type=Path, help="a corpus.jsonl with `title` and `text`")
    parser.add_argument("--count", type=int, default=512, help="passages")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds, of which the best counts")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of each round of clients")
    parser.add_argument("--only", choices=["throughput", "query", "http"])
    parser.add_argument("--backend", type=Backend, choices=list(Backend), default=Backend.AUTO, help="backend of embed")
    given = parser.parse_args()
    texts = mixed(corpus(given.corpus, given.count))
    with tempfile.TemporaryDirectory() as folder:
        model = load(EmbedSettings(backend=given.backend), "cpu", Path(folder))
    print(f"{model.files.name}, {model.encoder.precision} by default, {usable_cores()} cores")
    if given.only != "http":
        peer = SentenceTransformers()
        if given.only != "query":
            throughput(texts, peer, given.rounds, given.backend)
        if given.only != "throughput":
            queries(texts[:210], peer, model, given.backend)
        peer.close()
    if given.only in (None, "http"):
        servers(given.seconds)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
