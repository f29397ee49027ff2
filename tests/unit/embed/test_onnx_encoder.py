"""ONNX Runtime computes what torch does, for every family, length and batch, in 8 bits where these agree."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from proto.errors import OperationError
from proto.ops.embed import EmbedMaxSim, EmbedModelParams, EmbedTexts, TextKind
from services.embed import backends, onnx_encoder
from services.embed import main as embed
from services.embed.backends import Backend, Trial, chosen, open_encoder, openvino_is_worth_it
from services.embed.encoder import Vectors
from services.embed.onnx_encoder import Graphs, OnnxEncoder
from services.embed.samples import COMPARED
from services.embed.tensors import read_tensors
from services.embed.tokens import TextTokenizer
from services.embed.weights import ModelFiles, Pooling, fingerprint
from services.shared.models.checkpoint import Ids, ModelMissing
from services.shared.models.device import Precision, processor
from tests.in_process import services_in_process
from tests.unit.embed.samples import FAMILIES, TEXTS, batch, by_torch, small, worst_cosine

if TYPE_CHECKING:
    pass


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graph")


@pytest.fixture(scope="module")
def eight_bits(packaged: ModelFiles, graph: Path) -> OnnxEncoder:
    return OnnxEncoder(packaged, graph, precision=Precision.INT8)


@pytest.mark.slow
def test_vectors_agree_with_torchs(packaged: ModelFiles, eight_bits: OnnxEncoder, sequences: list[Ids]) -> None:
    given = [*sequences, *TextTokenizer(packaged).encode(COMPARED, TextKind.PASSAGE).ids]
    reference = by_torch(packaged).compute(given)
    vectors = eight_bits.compute(given)
    assert vectors.shape == (len(given), eight_bits.width)
    # A processor without VNNI adds products of bytes up wrongly, and has 32 bits.
    if eight_bits.record.agreement is not None and eight_bits.record.agreement > onnx_encoder.LEAST:
        assert worst_cosine(vectors, reference) > 0.99
        least = 0.998 if "vnni" in Path("/proc/cpuinfo").read_text() else 0.995
        assert (vectors * reference).sum(axis=1).mean() > least


@pytest.mark.slow
def test_a_texts_vector_does_not_depend_on_its_batch(eight_bits: OnnxEncoder, sequences: list[Ids]) -> None:
    alone = np.concatenate([eight_bits.compute([ids]) for ids in sequences])
    assert worst_cosine(eight_bits.compute(sequences), alone) > 0.9999
    assert worst_cosine(eight_bits.compute(sequences[::-1])[::-1], alone) > 0.9999


@pytest.mark.slow
def test_token_vectors_are_those_of_torch(tmp_path: Path) -> None:
    files = small(tmp_path / "model", "Bert")
    given = batch(1, 2, 7, 8, 40)
    theirs = by_torch(files).token_vectors(given)
    exact = OnnxEncoder(files, tmp_path, precision=Precision.FP32)
    for left, right in zip(exact.token_vectors(given), theirs, strict=True):
        assert left.shape == right.shape
        assert worst_cosine(left, right) > 0.9999


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "settings"), FAMILIES)
def test_every_family_agrees_with_torch(tmp_path: Path, kind: str, settings: dict[str, object]) -> None:
    files = small(tmp_path / "model", kind, **settings)
    given = batch(1, 2, 7, 8, 40)
    reference = by_torch(files).compute(given)
    assert worst_cosine(OnnxEncoder(files, tmp_path, precision=Precision.FP32).compute(given), reference) > 0.99999


@pytest.mark.slow
def test_a_family_that_only_torch_computes_is_torchs(tmp_path: Path) -> None:
    files = small(tmp_path / "model", "MPNet")
    for backend in (Backend.ONNX, Backend.AUTO):
        opened = open_encoder(
            files, backend, device="cpu", precision=Precision.AUTO, threads=1, folder=tmp_path
        )  # fmt: skip
        assert opened.backend == "torch"


@pytest.mark.slow
def test_pooling_is_torchs(tmp_path: Path) -> None:
    files = small(tmp_path / "model", "Bert")
    given = batch(1, 5, 6, 30)
    for pooling in Pooling:
        pooled = msgspec.structs.replace(files, pooling=pooling)
        ours = OnnxEncoder(pooled, tmp_path, precision=Precision.FP32)
        assert worst_cosine(ours.compute(given), by_torch(pooled).compute(given)) > 0.9999


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    made: list[Path] = []
    make = Graphs.make

    def count(graphs: Graphs, path: Path, precision: Precision) -> tuple[onnx_encoder.Record, bytes]:
        made.append(path)
        return make(graphs, path, precision)

    monkeypatch.setattr(Graphs, "make", count)
    return made


@pytest.mark.slow
def test_a_graph_is_made_once_and_again_where_it_is_damaged_or_of_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = counted(monkeypatch)
    files, folder = small(tmp_path / "model", "Bert"), tmp_path / "graphs"
    folder.mkdir()
    given = batch(3, 9)
    before = OnnxEncoder(files, folder, precision=Precision.FP32).compute(given)
    record = made[0]
    graph = record.with_suffix(".graph")
    whole = {path: path.read_bytes() for path in (record, graph)}

    def again(path: Path, content: bytes) -> int:
        """How many graphs are made where `path` holds this."""
        for each, kept in whole.items():
            each.write_bytes(kept)
        path.write_bytes(content)
        count = len(made)
        assert np.array_equal(OnnxEncoder(files, folder, precision=Precision.FP32).compute(given), before)
        return len(made) - count

    assert again(record, whole[record]) == 0
    flipped = bytearray(whole[graph])
    flipped[len(flipped) // 2] ^= 1
    # One bit of one weight gives vectors that look right, and are not.
    for path, content in (
        (graph, bytes(flipped)), (graph, whole[graph][:500]), (record, b"{"), (record, b"{}"), (graph, b""),
    ):  # fmt: skip
        assert again(path, content) == 1
    graph.unlink()
    OnnxEncoder(files, folder, precision=Precision.FP32)
    OnnxEncoder(small(tmp_path / "other", "Roberta"), folder, precision=Precision.FP32)
    OnnxEncoder(small(tmp_path / "third", "Bert", layer_norm_eps=1e-5), folder, precision=Precision.FP32)
    assert len(made) == 9
    # That of the model before stays, since its vectors are searched until there are others.
    assert set(folder.iterdir()) == {path for each in made[-2:] for path in (each, each.with_suffix(".graph"))}


@pytest.mark.slow
def test_eight_bits_that_disagree_are_not_used(
    packaged: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_encoder, "LEAST", 1.01)
    files = small(tmp_path / "model", "Bert")
    encoder = OnnxEncoder(files, tmp_path)
    assert encoder.precision is Precision.FP32
    assert encoder.record.agreement is not None
    given = batch(3, 9)
    assert worst_cosine(encoder.compute(given), by_torch(files).compute(given)) > 0.99999


_WITHOUT_TORCH = """
import sys
from pathlib import Path
from services.embed.main import EmbedSettings, load
loaded = load(EmbedSettings(), "cpu", Path(sys.argv[1]))
print(loaded.encoder.backend, "torch" in sys.modules, "transformers" in sys.modules)
"""


@pytest.mark.slow
def test_by_default_no_torch_is_loaded(packaged: ModelFiles, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WITHOUT_TORCH, str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    backend = "openvino" if openvino_is_worth_it() else "onnx"
    assert answer.stdout.split() == [backend, "False", "False"]


@pytest.mark.slow
def test_the_faster_backend_is_measured_once_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "openvino_is_worth_it", lambda: False)
    files = small(tmp_path / "model", "Bert")
    here = partial(chosen, files, device="cpu", precision=Precision.AUTO, folder=tmp_path)
    assert here(Backend.FASTEST) is Backend.ONNX
    trial = backends.try_torch(files, OnnxEncoder(files, tmp_path), batch(20, 30, 30), tmp_path)
    assert min(trial.onnx, trial.torch) > 0
    assert backends.stored_trial(files, tmp_path) == trial

    def measured(onnx: float, torch: float, kind: str = processor()) -> Backend:
        found = Trial(kind, fingerprint(files), onnx, torch)
        (tmp_path / "trial.json").write_bytes(msgspec.json.encode(found))
        return here(Backend.FASTEST)

    assert measured(100, 300) is Backend.TORCH
    assert measured(100, 110) is Backend.ONNX
    # No measurement exists for another processor.
    assert measured(100, 300, "other") is Backend.ONNX
    assert measured(100, 300) is Backend.TORCH
    # Loading torch takes hundreds of megabytes, so it is used only if asked for.
    assert here(Backend.AUTO) is Backend.ONNX
    (tmp_path / "trial.json").write_text("{")
    assert here(Backend.FASTEST) is Backend.ONNX
    assert here(Backend.TORCH) is Backend.TORCH


def test_tensors_are_read_as_torch_wrote_them(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    written = {str(kind): torch.randn(5, 3).to(kind) for kind in (torch.float32, torch.float16, torch.bfloat16)}
    save_file({**written, "ids": torch.arange(4)}, tmp_path / "a.safetensors")
    found = read_tensors([tmp_path / "a.safetensors"])
    assert set(found) == set(written)
    for name, tensor in written.items():
        assert np.array_equal(found[name].rows(), tensor.float().numpy())
        assert np.array_equal(found[name].rows(np.array([[4, 0]])), tensor.float().numpy()[[[4, 0]]])
    whole = (tmp_path / "a.safetensors").read_bytes()
    for damaged in (b"", whole[:5], whole[:40], whole[:-8]):
        (tmp_path / "a.safetensors").write_bytes(damaged)
        with pytest.raises(ModelMissing, match=r"a\.safetensors is damaged, or not a safetensors file"):
            read_tensors([tmp_path / "a.safetensors"])


def test_a_precision_that_the_backend_lacks_is_refused(packaged: ModelFiles, tmp_path: Path) -> None:
    with pytest.raises(OperationError, match="int8 or fp32"):
        open_encoder(packaged, Backend.ONNX, device="cpu", precision=Precision.BF16, threads=1, folder=tmp_path)


@pytest.mark.slow
async def test_the_service_answers_as_with_torch_and_its_vectors_are_of_the_same_model(
    tmp_path: Path, graph: Path, eight_bits: OnnxEncoder
) -> None:
    # Made before, since that takes seconds.
    shutil.copytree(graph, tmp_path / "onnx" / "embed")
    asked = EmbedTexts(texts=TEXTS[2:6], kind=TextKind.PASSAGE)

    async def answered(backend: str) -> tuple[Vectors, str, str, Sequence[float]]:
        settings = {"embed": {"backend": backend, "precision": "int8" if backend == "onnx" else "auto"}}
        async with services_in_process({"embed": embed.open_service}, tmp_path / backend, settings=settings) as bench:
            result = await bench.call(asked)
            model = await bench.call(EmbedModelParams())
            late = await bench.call(EmbedMaxSim(query="what is eaten", texts=TEXTS[2:6]))
        rows = np.frombuffer(result.vectors.data, dtype=np.float32).reshape(len(asked.texts), -1)
        return rows, result.fingerprint, model.precision, late.scores

    ours, mark, precision, scores = await answered("onnx")
    theirs, other_mark, _, other_scores = await answered("torch")
    assert worst_cosine(ours, theirs) > 0.99
    # An index that one has made is the other's as well.
    assert mark == other_mark
    assert precision == "int8"
    assert scores == pytest.approx(other_scores, abs=0.03)


def test_a_backend_that_is_not_installed_is_reported(
    packaged: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    with pytest.raises(OperationError, match="onnxruntime cannot be imported"):
        open_encoder(packaged, Backend.ONNX, device="cpu", precision=Precision.AUTO, threads=1, folder=tmp_path)
