"""ONNX Runtime computes what torch does, for every family that it takes, every length and batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from proto.errors import OperationError
from proto.ops.embed import EmbedMaxSim, EmbedModelParams, EmbedTexts, TextKind
from services.embed import main as embed
from services.embed.backends import Backend, open_encoder
from services.embed.encoder import Vectors
from services.embed.model import TorchEncoder
from services.embed.ort.encoder import OrtEncoder
from services.embed.ort.graph import BLOCK, quantized
from services.embed.ort.tensors import Tensors
from services.embed.weights import ModelFiles, Pooling, resolve
from services.runtime.models.checkpoint import ModelMissing
from services.runtime.models.device import Precision
from services.runtime.models.tokens import Ids
from services.runtime.testing import services_in_process
from tests.unit.embed.samples import TEXTS, worst_cosine

transformers = pytest.importorskip("transformers", reason="transformers, the reference, is not installed")


@pytest.mark.parametrize(("precision", "least"), [(Precision.FP32, 0.99999), (Precision.AUTO, 0.998)])
def test_vectors_agree_with_torchs(
    packaged: ModelFiles, sequences: list[Ids], precision: Precision, least: float
) -> None:
    ours = OrtEncoder(packaged, precision=precision)
    reference = TorchEncoder(packaged, precision=Precision.FP32).compute(sequences)
    vectors = ours.compute(sequences)
    assert vectors.shape == (len(TEXTS), ours.width)
    assert worst_cosine(vectors, reference) > least
    assert (vectors * reference).sum(axis=1).mean() > 0.999
    # Not of another text: each is nearest to its own.
    differing = [index for index, text in enumerate(TEXTS) if len(text) > 1 and text not in TEXTS[:index]]
    nearest = (vectors[differing] @ reference[differing].T).argmax(axis=1)
    assert nearest.tolist() == list(range(len(differing)))


def test_a_texts_vector_does_not_depend_on_its_batch(packaged: ModelFiles, sequences: list[Ids]) -> None:
    encoder = OrtEncoder(packaged)
    alone = np.concatenate([encoder.compute([ids]) for ids in sequences])
    assert worst_cosine(encoder.compute(sequences), alone) > 0.9999
    assert worst_cosine(encoder.compute(sequences[::-1])[::-1], alone) > 0.9999


def test_token_vectors_are_those_of_torch(packaged: ModelFiles, sequences: list[Ids]) -> None:
    ours = OrtEncoder(packaged, precision=Precision.FP32).token_vectors(sequences)
    theirs = TorchEncoder(packaged, precision=Precision.FP32).token_vectors(sequences)
    for left, right in zip(ours, theirs, strict=True):
        assert left.shape == right.shape
        assert worst_cosine(left, right) > 0.9999


def small(folder: Path, kind: str, activation: str, kept_as: torch.dtype = torch.float32) -> ModelFiles:
    """A model of this family with weights of chance, of a size no block of 8-bit weights divides where it is odd."""
    torch.manual_seed(7)
    config = getattr(transformers, kind + "Config")(
        vocab_size=90, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=72,
        max_position_embeddings=50, hidden_act=activation, pad_token_id=1, initializer_range=0.3,
    )  # fmt: skip
    model = getattr(transformers, kind + "Model")(config).eval()
    model.save_pretrained(folder)
    if kept_as is not torch.float32:
        path = folder / "model.safetensors"
        save_file({name: tensor.to(kept_as) for name, tensor in load_file(path).items()}, path)
    (folder / "tokenizer.json").write_text("{}")
    return resolve(str(folder))


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "XLMRoberta", "Camembert"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_every_family_and_activation_agrees_with_torch(tmp_path: Path, kind: str, activation: str) -> None:
    files = small(tmp_path / "model", kind, activation)
    given = batch(1, 2, 7, 8, 40)
    reference = TorchEncoder(files, precision=Precision.FP32).compute(given)
    assert worst_cosine(OrtEncoder(files, precision=Precision.FP32).compute(given), reference) > 0.9999
    assert worst_cosine(OrtEncoder(files).compute(given), reference) > 0.99


@pytest.mark.parametrize("kept_as", [torch.float16, torch.bfloat16])
def test_weights_of_half_precision_are_read(tmp_path: Path, kept_as: torch.dtype) -> None:
    files = small(tmp_path / "model", "Bert", "gelu", kept_as)
    given = batch(3, 9)
    reference = TorchEncoder(files, precision=Precision.FP32).compute(given)
    assert worst_cosine(OrtEncoder(files, precision=Precision.FP32).compute(given), reference) > 0.9999


@pytest.mark.parametrize("pooling", list(Pooling))
def test_pooling_is_torchs(tmp_path: Path, pooling: Pooling) -> None:
    files = msgspec.structs.replace(small(tmp_path / "model", "Bert", "gelu"), pooling=pooling)
    given = batch(1, 5, 6, 30)
    reference = TorchEncoder(files, precision=Precision.FP32).compute(given)
    assert worst_cosine(OrtEncoder(files, precision=Precision.FP32).compute(given), reference) > 0.9999


def batch(*lengths: int) -> list[Ids]:
    source = np.random.default_rng(3)
    return [source.integers(2, 90, length).astype(np.int32) for length in lengths]


def test_blocks_of_8_bits_are_within_half_a_step() -> None:
    weight = np.random.default_rng(1).normal(size=(5, 3 * BLOCK)).astype(np.float32)
    weight[2] = 0
    numbers, scales = quantized(weight)
    back = (numbers.astype(np.float32) - 128) * scales.reshape(5, 3, 1)
    assert (np.abs(back.reshape(weight.shape) - weight) <= scales.reshape(5, 3).repeat(BLOCK, axis=1) / 2 + 1e-6).all()


@pytest.mark.parametrize("cut", [3, 40, -5000])
def test_a_damaged_checkpoint_is_an_error_that_names_it(tmp_path: Path, cut: int) -> None:
    files = small(tmp_path / "model", "Bert", "gelu")
    (path,) = files.weights
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ModelMissing, match=r"safetensors|cut off"):
        OrtEncoder(files)


def test_a_tensor_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"encoder\.nothing"):
        Tensors(small(tmp_path / "model", "Bert", "gelu").weights)["encoder.nothing"]


def test_another_family_is_refused_with_the_way_out(tmp_path: Path) -> None:
    files = small(tmp_path / "model", "Bert", "gelu")
    other = msgspec.structs.replace(files, config={**files.config, "model_type": "mpnet"})
    with pytest.raises(ModelMissing, match="`backend` to `torch`"):
        OrtEncoder(other)


def test_a_precision_that_the_backend_has_not_is_refused(packaged: ModelFiles) -> None:
    with pytest.raises(OperationError, match="int8 or fp32"):
        open_encoder(packaged, Backend.ONNX, device="cpu", precision=Precision.BF16, threads=1)


async def test_the_service_answers_as_with_torch_and_its_vectors_are_of_the_same_model(tmp_path: Path) -> None:
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


def test_a_backend_that_is_not_installed_is_said(packaged: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    with pytest.raises(OperationError, match="LINCKIA_EXTRA=onnx"):
        open_encoder(packaged, Backend.ONNX, device="cpu", precision=Precision.AUTO, threads=1)
