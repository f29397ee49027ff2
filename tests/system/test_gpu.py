"""On a machine with an NVIDIA GPU: the models compute the same there, and every failure of the GPU is survived.

Without a GPU, or torch with CUDA, these tests are skipped.
"""

from __future__ import annotations

import base64
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proto.control.client import CallFailed, Client
from proto.host import extras
from proto.host.gpu import GpuFigures
from proto.ops.embed import TextKind
from services.embed.encoder import Vectors
from services.embed.projection import projected
from services.embed.tokens import TextTokenizer
from services.embed.weights import ModelFiles, resolve
from services.shared.models.device import GIB, Precision
from tests.system.running import RunningKernel, polls, running, wait_until
from tests.unit.embed.families import EMBEDDING_GEMMA, MODERN_BERT, QWEN3, save_family

pytestmark = pytest.mark.skipif(not extras.gpu_present(), reason="there is no NVIDIA GPU")

DEVICE = "cuda"

_PHRASE = "sea star arm grows back after months when the water is warm and calm at night under rocks"
WORDS = _PHRASE.split()
TEXTS = [" ".join(WORDS[(3 * n + k) % len(WORDS)] for k in range(n)) for n in (1, 2, 3, 5, 9, 9, 30, 80, 200, 400)]

POISON = "quokka wombat numbat"
"""The text whose computation breaks the GPU's context, in kernels started with `faulty`."""

KERNEL = """
from msgspec import structs
from kernel.configure import catalog
from tests.system.subset import run
catalog.ENTRIES = tuple(
    structs.replace(each, spec=structs.replace(each.spec, climb_after_s=2.0)) for each in catalog.ENTRIES
)
run()
"""
"""Tries a better mode after two seconds instead of ten minutes."""

FAULTY = """
import importlib.machinery, sys

class Finder:
    @staticmethod
    def find_spec(name, path, target=None):
        if name != "services.embed.bert":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            states = module.PackedBert.states

            def breaking(self, sequences):
                if self.device.type == "cuda" and any(list(ids) == POISON for ids in sequences):
                    import torch

                    # An index far outside the table fails an assertion of the kernel on the device.
                    torch.nn.functional.embedding(torch.full((8,), 10**9, device="cuda"), self._words)
                return states(self, sequences)

            module.PackedBert.states = breaking

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder)
"""


@pytest.fixture(scope="module", autouse=True)
def _with_cuda() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no CUDA device")


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[RunningKernel]:
    with started(tmp_path / "data") as found:
        yield found


def started(data_dir: Path, **environment: str) -> Any:
    command = (sys.executable, "-c", KERNEL, "embed,rerank", "serve")
    return running(data_dir, command=command, environment=environment)


def packaged() -> ModelFiles:
    return resolve()


def vectors(kernel: RunningKernel, texts: Sequence[str], kind: TextKind = TextKind.PASSAGE) -> Vectors:
    found = kernel.call("embed_texts", {"texts": list(texts), "kind": kind.value}, timeout_s=120)["vectors"]
    dtype, shape, data = found
    return np.frombuffer(base64.b64decode(data), dtype).reshape(shape)


def figures_of(kernel: RunningKernel, name: str) -> GpuFigures | None:
    return GpuFigures.of(kernel.service(name)["info"])


def worst(left: Vectors, right: Vectors) -> float:
    return float((left.astype(np.float64) * right.astype(np.float64)).sum(axis=1).min())


def computed(files: ModelFiles, device: str, precision: Precision) -> Vectors:
    from services.embed.torch_encoder import TorchEncoder

    tokenizer = TextTokenizer(files)
    encoder = projected(files, TorchEncoder(files, device=device, precision=precision))
    encoder.special = tokenizer.special
    return encoder.compute(tokenizer.encode(TEXTS, TextKind.PASSAGE).ids)


@pytest.mark.parametrize(
    ("precision", "least"), [(Precision.FP32, 0.99999), (Precision.BF16, 0.999), (Precision.FP16, 0.9999)]
)
def test_the_gpu_computes_the_vectors_of_the_cpu(precision: Precision, least: float) -> None:
    files = packaged()
    found = worst(computed(files, DEVICE, precision), computed(files, "cpu", Precision.FP32))
    print(f"worst cosine in {precision}: {found:.7f}")
    assert found > least


@pytest.mark.parametrize("family", [EMBEDDING_GEMMA, MODERN_BERT, QWEN3], ids=lambda family: str(family[0]))
def test_other_families_compute_the_same_on_the_gpu(tmp_path: Path, family: Any) -> None:
    files = resolve(str(save_family(tmp_path, family, pooling="mean")))
    found = worst(computed(files, DEVICE, Precision.FP32), computed(files, "cpu", Precision.FP32))
    print(f"worst cosine of {family[0]}: {found:.7f}")
    assert found > 0.9999


def test_cross_encoders_compute_the_same_on_the_gpu(tmp_path: Path) -> None:
    from services.rerank.checkpoint import PairTokenizer
    from services.rerank.checkpoint import resolve as resolve_pair
    from services.rerank.model import CrossEncoder
    from tests.unit.rerank.tiny import save_cross_encoder

    files = resolve_pair(str(save_cross_encoder(tmp_path)))
    assert files is not None
    texts = ["cats purr", "fish swim in water", "dogs bark", "cats and dogs sleep", "what fish purr at dogs"]
    pairs = PairTokenizer(files).encode("who purr", texts).pairs
    left, right = (CrossEncoder(files, device=device, precision=Precision.FP32) for device in (DEVICE, "cpu"))
    assert np.abs(left.compute(pairs) - right.compute(pairs)).max() < 1e-4


def test_bulk_embedding_computes_the_same_on_the_gpu(tmp_path: Path) -> None:
    from services.embed.bulk import BulkEmbedder

    found = BulkEmbedder({}, on_gpu=True, threads=1, folder=tmp_path).embed(TEXTS).astype(np.float32)
    assert worst(found, computed(packaged(), "cpu", Precision.FP32)) > 0.998


def test_services_run_on_the_gpu_and_show_its_figures(tmp_path: Path) -> None:
    from tests.unit.rerank.tiny import save_cross_encoder

    model = str(save_cross_encoder(tmp_path / "model"))
    with started(tmp_path / "data", LINCKIA_SERVICES__RERANK__MODEL=model) as kernel:
        assert worst(vectors(kernel, TEXTS), computed(packaged(), "cpu", Precision.FP32)) > 0.998
        ranked = kernel.call("rerank_pairs", {"query": "who purr", "texts": ["dogs bark", "cats purr"]})["ranked"]
        assert len(ranked) == 2
        for name in ("embed", "rerank"):
            status = kernel.service(name)
            assert (status["mode"], status["info"]["device"], status["deaths"]) == (DEVICE, DEVICE, {})
            figures = wait_until(partial(figures_of, kernel, name))
            assert 0 < figures.used_bytes < figures.total_bytes
            print(f"{name}: {status['rss_bytes'] / GIB:.2f} GiB resident, {figures}")


def test_kills_under_load_lose_no_call_and_the_gpu_stays_in_use(kernel: RunningKernel) -> None:
    expected = vectors(kernel, TEXTS)
    failures: list[BaseException] = []
    answered = 0
    over = threading.Event()

    def load() -> None:
        nonlocal answered
        try:
            while not over.is_set():
                assert worst(vectors(kernel, TEXTS), expected) > 0.999
                answered += 1
        except BaseException as error:  # noqa: BLE001  # told by the test
            failures.append(error)

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        goal = answered + 20
        for _ in polls(60):
            if answered >= goal or failures:
                break
        kernel.kill("embed")
        kernel.wait_ready("embed")
        print(f"back after {kernel.service('embed')['recovery_ms']} ms")
    over.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert kernel.service("embed")["mode"] == DEVICE


class Hog:
    """Takes all memory of the GPU except `left` bytes."""

    def __init__(self, left: int) -> None:
        import torch

        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        self._held = torch.empty(max(0, free - left), dtype=torch.uint8, device=DEVICE)

    def release(self) -> None:
        import torch

        del self._held
        torch.cuda.empty_cache()


def test_batches_that_no_longer_fit_are_halved(kernel: RunningKernel) -> None:
    texts = [" ".join([_PHRASE] * 12)] * 2048
    expected = vectors(kernel, texts[:1])
    hog = Hog(left=24 * 1024**2)
    try:
        found = vectors(kernel, texts)
    finally:
        hog.release()
    assert worst(found, np.repeat(expected, len(texts), axis=0)) > 0.999
    assert kernel.service("embed")["deaths"] == {}


def test_full_gpu_means_the_cpu_until_there_is_room(kernel: RunningKernel) -> None:
    expected = vectors(kernel, TEXTS)
    kernel.call("kernel_stop", {"service": "embed"})
    hog = Hog(left=200 * 1024**2)
    try:
        kernel.call("kernel_start", {"service": "embed"})
        # The calls wait for the process that gets ready.
        assert worst(vectors(kernel, TEXTS), expected) > 0.99
        assert kernel.service("embed")["mode"] == "cpu"
    finally:
        hog.release()
    wait_until(lambda: (now := kernel.service("embed"))["mode"] == DEVICE and now["state"] == "ready", 90)
    assert worst(vectors(kernel, TEXTS), expected) > 0.999


def test_broken_context_costs_its_text_only(tmp_path: Path) -> None:
    ids = TextTokenizer(packaged()).encode([POISON], TextKind.PASSAGE).ids[0].tolist()
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"POISON = {ids}\n{FAULTY}")
    with started(tmp_path / "data", PYTHONPATH=str(folder)) as kernel, Client(kernel.data_dir) as client:
        expected = vectors(kernel, TEXTS)
        outcome: list[object] = []

        def poison() -> None:
            try:
                outcome.append(client.call_named("embed_texts", {"texts": [POISON], "kind": "passage"}, timeout_s=120))
            except CallFailed as error:
                outcome.append(error)

        thread = threading.Thread(target=poison)
        thread.start()
        while thread.is_alive():
            assert worst(vectors(kernel, TEXTS), expected) > 0.99
        thread.join()
        status = kernel.service("embed")
        print(f"the poison: {str(outcome)[:300]}; {status['deaths']}, {status['last_death']}, mode {status['mode']}")
        assert sum(status["deaths"].values()) >= 1
        wait_until(lambda: (now := kernel.service("embed"))["mode"] == DEVICE and now["state"] == "ready", 90)
        assert worst(vectors(kernel, TEXTS), expected) > 0.999
