"""Embedding on a GPU through the real services, beside sentence-transformers on the same GPU, and the card's limits.

- The limits: a product of large matrices in bf16, a copy within the card's memory, and the bandwidth that NVIDIA's
  library computes from clock and bus.
- Throughput over passages of mixed lengths through `embed_texts`, and its share of the first limit. The peer is
  sentence-transformers in fp32, its default, and in bf16; both take turns.
- The time of a query, alone and while passages are embedded: it should wait for one batch at most.
- Passages per second by their length and by the texts of a call, beside the same service on the CPU.
- How long callers wait after the process is killed.

    scripts/bench gpu [--passages N] [--rounds N] [--seconds S]

Without a GPU, or torch with CUDA, it says so and ends.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable

import torch

from proto.control.client import Client
from proto.host import extras
from proto.host.gpu import GPU
from proto.host.machine import usable_cores
from services.embed.backends import Backend
from services.embed.weights import resolve
from services.shared.models.gpu import opened
from tests.bench.embed_peers import CALLS, SentenceTransformers, corpus, kernel_with, mixed, through_the_service
from tests.system.running import RunningKernel

GIB = 1024**3

MATRIX = 8192
"""Rows and columns of the matrices: large enough to use a whole card, 400 MB for three."""

QUERIES = 100

WORDS_A_TEXT = (8, 64, 200)
TEXTS_A_CALL = (1, 8, 64, 512)
KILLS = 5


def missing() -> str:
    """Return why nothing can be measured here; empty if it can."""
    if not extras.gpu_present():
        return "this machine has no NVIDIA GPU (there is no /dev/nvidia0)"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no CUDA device"
    return ""


def seconds(work: Callable[[], object], times: int = 10) -> float:
    """Return the shortest time of `work` on the GPU."""
    found = float("inf")
    for _ in range(times):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found = min(found, time.perf_counter() - began)
    return found


def limits() -> float:
    """Print what the card can do; return the operations per second of a matrix product."""
    import pynvml

    figures = opened()()
    print(f"GPU {figures.number} {figures.name}, {figures.total_bytes / GIB:.0f} GiB")
    handle = pynvml.nvmlDeviceGetHandleByIndex(figures.number)
    # Memory transfers twice per clock cycle.
    clock_hz = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM) * 1e6
    stated = 2 * clock_hz * pynvml.nvmlDeviceGetMemoryBusWidth(handle) / 8
    left, right = (torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    flops = 2 * MATRIX**3 / seconds(lambda: left @ right)
    source = torch.empty(GIB // 4, device="cuda", dtype=torch.float32)
    target = torch.empty_like(source)
    copied = 2 * GIB / seconds(lambda: target.copy_(source))
    print(f"  matrix product in bf16: {flops / 1e12:.1f} TFLOP/s")
    print(f"  memory: {copied / 1e9:.0f} GB/s copied, {stated / 1e9:.0f} GB/s by clock and bus")
    return flops


def query_ms(kernel: RunningKernel, texts: list[str]) -> str:
    times = []
    with Client(kernel.data_dir) as client:
        for text in texts:
            began = time.perf_counter()
            client.call_named("embed_texts", {"texts": [" ".join(text.split()[:9])], "kind": "query"})
            times.append((time.perf_counter() - began) * 1000)
    return f"p50 {statistics.median(times):.1f} ms, p99 {statistics.quantiles(times, n=100)[98]:.1f} ms"


def rate(kernel: RunningKernel, text: str, texts_a_call: int, seconds: float) -> float:
    """Return passages per second, with `CALLS` calls in flight."""
    done = [0] * CALLS
    give_up = time.perf_counter() + seconds

    def work(number: int) -> None:
        with Client(kernel.data_dir) as client:
            while time.perf_counter() < give_up:
                client.call_named("embed_texts", {"texts": [text] * texts_a_call, "kind": "passage"}, timeout_s=120)
                done[number] += texts_a_call

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CALLS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - began)


def rates(kernel: RunningKernel, text: str, seconds: float) -> dict[tuple[int, int], float]:
    """Return `rate` by the words of a text and the texts of a call."""
    texts = {words: " ".join(text.split()[:words]) for words in WORDS_A_TEXT}
    for each in texts.values():
        rate(kernel, each, TEXTS_A_CALL[-1], 0)
    return {
        (words, count): rate(kernel, each, count, seconds) for words, each in texts.items() for count in TEXTS_A_CALL
    }


def print_rates(on_gpu: dict[tuple[int, int], float], on_cpu: dict[tuple[int, int], float], cpu: str) -> None:
    print(f"  passages/s through the service by words and texts a call, GPU / CPU ({cpu}, {usable_cores()} cores)")
    for words in WORDS_A_TEXT:
        cells = [f"{on_gpu[words, n]:,.0f} / {on_cpu[words, n]:,.0f}" for n in TEXTS_A_CALL]
        print(f"    {words:3} words: " + "; ".join(f"{n}: {cell}" for n, cell in zip(TEXTS_A_CALL, cells, strict=True)))


def recovery(kernel: RunningKernel) -> str:
    """Kill the process repeatedly, and return how long a caller waited for the next answer."""
    waits = []
    with Client(kernel.data_dir) as client:
        for _ in range(KILLS):
            client.call_named("embed_texts", {"texts": ["sea star"], "kind": "query"}, timeout_s=120)
            kernel.kill("embed")
            began = time.perf_counter()
            client.call_named("embed_texts", {"texts": ["sea star"], "kind": "query"}, timeout_s=120)
            waits.append(time.perf_counter() - began)
    service = kernel.service("embed")
    where = f"{service['mode']}, {service['rss_bytes'] / GIB:.1f} GiB resident"
    return f"median {statistics.median(waits):.2f} s, longest {max(waits):.2f} s of {KILLS} ({where})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures embedding on a GPU.")
    parser.add_argument("--passages", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each length and size")
    asked = parser.parse_args()
    if why := missing():
        sys.exit(f"scripts/bench gpu: nothing can be measured: {why}")
    flops = limits()
    torch.cuda.empty_cache()
    texts = mixed(corpus(None, asked.passages))
    config = resolve().config
    width, inner = int(config["hidden_size"]), int(config["intermediate_size"])
    # Without the table of words, of which a token only reads a row, and without attention, which is small here.
    multiplied = int(config["num_hidden_layers"]) * (4 * width**2 + 2 * width * inner)
    peers = {dtype: SentenceTransformers("cuda", dtype) for dtype in ("float32", "bfloat16")}
    for peer in peers.values():
        peer.encode(texts[:512])
    with kernel_with(Backend.AUTO, "auto") as kernel:
        through_the_service(kernel, texts[:512])
        with Client(kernel.data_dir) as client:
            used = client.call_named("embed_model", {})
            tokens = client.call_named("embed_texts", {"texts": texts[:64], "kind": "passage"})["tokens"] / 64
        print(f"{used['model']} on {used['device']} in {used['precision']}, {tokens:.0f} tokens a passage")
        for dtype, peer in peers.items():
            pairs = [
                (through_the_service(kernel, texts), len(texts) / peer.encode(texts)[0]) for _ in range(asked.rounds)
            ]
            ours, theirs = (max(side) for side in zip(*pairs, strict=True))
            share = 2 * multiplied * tokens * ours / flops
            print(
                f"  passages/s through the service: {ours:.0f} ({share:.1%} of the matrix product), "
                f"sentence-transformers in {dtype}: {theirs:.0f}, ratio {ours / theirs:.2f}",
                flush=True,
            )
        print(f"  query alone: {query_ms(kernel, texts[:QUERIES])}")
        bulk = threading.Thread(target=through_the_service, args=(kernel, texts * 4), daemon=True)
        bulk.start()
        print(f"  query while passages are embedded: {query_ms(kernel, texts[:QUERIES])}")
        bulk.join()
        on_gpu = rates(kernel, texts[0] * 20, asked.seconds)
        print(f"  wait for an answer after a kill: {recovery(kernel)}")
        print(f"  {kernel.service('embed')['info'].get(GPU, 'no figures of the GPU')}")
    with kernel_with(Backend.ONNX, "auto") as kernel:
        on_cpu = rates(kernel, texts[0] * 20, asked.seconds)
        print_rates(on_gpu, on_cpu, " in ".join(map(kernel.service("embed")["info"].get, ("backend", "precision"))))
        print(f"  query on the CPU: {query_ms(kernel, texts[:QUERIES])}")
    for peer in peers.values():
        peer.close()


if __name__ == "__main__":
    main()
