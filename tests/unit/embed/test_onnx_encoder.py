"""ONNX Runtime computes what torch does, for every family, every length and batch, on a graph that is exported once."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from proto.errors import OperationError
from proto.ops.embed import EmbedMaxSim, EmbedModelParams, EmbedTexts, TextKind
from services.embed import main as embed
from services.embed import onnx_encoder
from services.embed.backends import Backend, open_encoder
from services.embed.encoder import Vectors
from services.embed.onnx_encoder import OnnxEncoder
from services.embed.weights import ModelFiles, Pooling, resolve
from services.runtime.models.checkpoint import Ids
from services.runtime.models.device import Precision
from tests.in_process import services_in_process
from tests.unit.embed.samples import TEXTS, worst_cosine

if TYPE_CHECKING:
    from services.embed.torch_encoder import TorchEncoder


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graph")


@pytest.fixture(scope="module")
def exported(packaged: ModelFiles, graph: Path) -> OnnxEncoder:
    return OnnxEncoder(packaged, graph)


def by_torch(files: ModelFiles) -> TorchEncoder:
    # With torch, which takes seconds, and each process that runs tests reads all files of tests.
    from services.embed.torch_encoder import TorchEncoder

    return TorchEncoder(files, precision=Precision.FP32)


@pytest.mark.slow
def test_vectors_agree_with_torchs(packaged: ModelFiles, exported: OnnxEncoder, sequences: list[Ids]) -> None:
    reference = by_torch(packaged).compute(sequences)
    vectors = exported.compute(sequences)
    assert vectors.shape == (len(TEXTS), exported.width)
    assert worst_cosine(vectors, reference) > 0.998
    assert (vectors * reference).sum(axis=1).mean() > 0.999


@pytest.mark.slow
def test_a_texts_vector_does_not_depend_on_its_batch(exported: OnnxEncoder, sequences: list[Ids]) -> None:
    alone = np.concatenate([exported.compute([ids]) for ids in sequences])
    assert worst_cosine(exported.compute(sequences), alone) > 0.9999
    assert worst_cosine(exported.compute(sequences[::-1])[::-1], alone) > 0.9999


@pytest.mark.slow
def test_token_vectors_are_those_of_torch(tmp_path: Path) -> None:
    files = small(tmp_path / "model", "Bert")
    given = batch(1, 2, 7, 8, 40)
    theirs = by_torch(files).token_vectors(given)
    exact = OnnxEncoder(files, tmp_path, precision=Precision.FP32)
    for left, right in zip(exact.token_vectors(given), theirs, strict=True):
        assert left.shape == right.shape
        assert worst_cosine(left, right) > 0.9999


SMALL = {
    "vocab_size": 90, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 72,
    "max_position_embeddings": 50, "pad_token_id": 1, "initializer_range": 0.3,
}  # fmt: skip


def small(folder: Path, kind: str, **settings: object) -> ModelFiles:
    """A model of this family with random weights."""
    import torch

    transformers = pytest.importorskip("transformers")
    torch.manual_seed(7)
    config = getattr(transformers, kind + "Config")(**SMALL, **settings)
    getattr(transformers, kind + "Model")(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return resolve(str(folder))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "settings"),
    [("Bert", {}), ("Bert", {"hidden_act": "gelu_new"}), ("XLMRoberta", {}), ("Camembert", {}), ("MPNet", {})],
)
def test_every_family_agrees_with_torch(tmp_path: Path, kind: str, settings: dict[str, object]) -> None:
    files = small(tmp_path / "model", kind, **settings)
    given = batch(1, 2, 7, 8, 40)
    reference = by_torch(files).compute(given)
    assert worst_cosine(OnnxEncoder(files, tmp_path, precision=Precision.FP32).compute(given), reference) > 0.99999
    assert worst_cosine(OnnxEncoder(files, tmp_path).compute(given), reference) > 0.99


@pytest.mark.slow
def test_pooling_is_torchs(tmp_path: Path) -> None:
    files = small(tmp_path / "model", "Bert")
    given = batch(1, 5, 6, 30)
    for pooling in Pooling:
        pooled = msgspec.structs.replace(files, pooling=pooling)
        ours = OnnxEncoder(pooled, tmp_path, precision=Precision.FP32)
        assert worst_cosine(ours.compute(given), by_torch(pooled).compute(given)) > 0.9999


def batch(*lengths: int) -> list[Ids]:
    source = np.random.default_rng(3)
    return [source.integers(2, 90, length).astype(np.int32) for length in lengths]


@pytest.mark.slow
def test_a_graph_is_exported_once_and_again_where_it_is_damaged_or_of_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports: list[Path] = []
    export = onnx_encoder._export

    def counted(files: ModelFiles, graph: Path, precision: Precision) -> None:
        exports.append(graph)
        export(files, graph, precision)

    monkeypatch.setattr(onnx_encoder, "_export", counted)
    files = small(tmp_path / "model", "Bert")
    before = OnnxEncoder(files, tmp_path).compute(batch(3, 9))
    assert np.array_equal(OnnxEncoder(files, tmp_path).compute(batch(3, 9)), before)
    assert len(exports) == 1
    for part in (exports[0], exports[0].with_suffix(".onnx.data")):
        part.write_bytes(part.read_bytes()[:500])
        assert np.array_equal(OnnxEncoder(files, tmp_path).compute(batch(3, 9)), before)
    assert len(exports) == 3
    OnnxEncoder(small(tmp_path / "other", "Roberta"), tmp_path)
    assert len(exports) == 4
    assert set(tmp_path.glob("*.onnx*")) == {exports[3], exports[3].with_suffix(".onnx.data")}


def test_a_precision_that_the_backend_has_not_is_refused(packaged: ModelFiles, tmp_path: Path) -> None:
    with pytest.raises(OperationError, match="int8 or fp32"):
        open_encoder(packaged, Backend.ONNX, device="cpu", precision=Precision.BF16, threads=1, folder=tmp_path)


@pytest.mark.slow
async def test_the_service_answers_as_with_torch_and_its_vectors_are_of_the_same_model(
    tmp_path: Path, graph: Path, exported: OnnxEncoder
) -> None:
    # Exported before, since that takes seconds.
    shutil.copytree(graph, tmp_path / "onnx" / "embed")
    asked = EmbedTexts(texts=TEXTS[2:6], kind=TextKind.PASSAGE)

    async def answered(backend: str) -> tuple[Vectors, str, str, Sequence[float]]:
        settings = {"embed": {"backend": backend}}
        async with services_in_process({"embed": embed.open_service}, tmp_path / backend, settings=settings) as bench:
            result = await bench.call(asked)
            model = await bench.call(EmbedModelParams())
            late = await bench.call(EmbedMaxSim(query="what is eaten", texts=TEXTS[2:6]))
        rows = np.frombuffer(result.vectors.data, dtype=np.float32).reshape(len(asked.texts), -1)
        return rows, result.fingerprint, model.precision, late.scores

    ours, mark, precision, scores = await answered("onnx")
    theirs, other_mark, _, other_scores = await answered("torch")
    assert worst_cosine(ours, theirs) > 0.999
    # An index that one has made is the other's as well.
    assert mark == other_mark
    assert precision == "int8"
    assert scores == pytest.approx(other_scores, abs=0.02)


def test_a_backend_that_is_not_installed_is_said(
    packaged: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    with pytest.raises(OperationError, match="LINCKIA_EXTRA=onnx"):
        open_encoder(packaged, Backend.ONNX, device="cpu", precision=Precision.AUTO, threads=1, folder=tmp_path)
