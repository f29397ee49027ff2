"""In 8 bits the encoder answers nearly what it answers in bf16, and is used where it does."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import trio

from proto.errors import OperationError
from proto.ops.embed import EmbedModelParams, EmbedTexts, TextKind
from services.embed import main as embed
from services.embed import model
from services.embed.int8.faster import prepare
from services.embed.int8.products import FeedForward, Product, Scaling, in_8_bits
from services.embed.model import SHORT, TorchEncoder
from services.embed.tokens import TextTokenizer
from services.embed.weights import ModelFiles
from services.runtime.models.device import Precision, cpu_has_8_bits
from services.runtime.models.tokens import Ids
from services.runtime.testing import services_in_process
from tests.unit.embed.samples import TEXTS, worst_cosine

needs_8_bits = pytest.mark.skipif(not cpu_has_8_bits(), reason="this processor has no avx512_vnni")


@pytest.fixture(scope="module")
def faster(packaged: ModelFiles) -> TorchEncoder:
    encoder = TorchEncoder(packaged, precision=Precision.INT8)
    before = encoder.bulk_is_slow
    prepare(encoder, TextTokenizer(packaged))
    assert (before, encoder.bulk_is_slow, encoder.precision) == (True, False, Precision.INT8)
    return encoder


@needs_8_bits
def test_vectors_agree_with_those_in_fp32(packaged: ModelFiles, faster: TorchEncoder, sequences: list[Ids]) -> None:
    exact = TorchEncoder(packaged, precision=Precision.FP32).compute(sequences)
    ours = faster.compute(sequences)
    assert np.allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-5)
    assert worst_cosine(ours, exact) > 0.995
    assert float((ours * exact).sum(axis=1).mean()) > 0.998


@needs_8_bits
def test_short_texts_stay_as_they_were(packaged: ModelFiles, faster: TorchEncoder, sequences: list[Ids]) -> None:
    before = TorchEncoder(packaged, precision=Precision.BF16)
    short = [ids for ids in sequences if len(ids) <= SHORT]
    long = [ids for ids in sequences if len(ids) > SHORT]
    assert short
    assert long
    assert np.array_equal(faster.compute(short), before.compute(short))
    assert not np.array_equal(faster.compute(long), before.compute(long))


@needs_8_bits
def test_a_texts_vector_hardly_depends_on_its_batch(faster: TorchEncoder, sequences: list[Ids]) -> None:
    together = faster.compute(sequences)
    alone = np.concatenate([faster.compute([ids]) for ids in sequences])
    # What attention rounds otherwise in another batch falls to the other side of a step here and there.
    assert worst_cosine(together, alone) > 0.998


@needs_8_bits
def test_words_are_still_told_one_by_one(packaged: ModelFiles, faster: TorchEncoder, sequences: list[Ids]) -> None:
    exact = TorchEncoder(packaged, precision=Precision.FP32).token_vectors(sequences[:8])
    for ours, theirs in zip(faster.token_vectors(sequences[:8]), exact, strict=True):
        assert ours.shape == theirs.shape
        assert worst_cosine(ours, theirs) > 0.99


@needs_8_bits
def test_what_does_not_agree_is_not_used(
    packaged: ModelFiles, sequences: list[Ids], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(model, "LEAST_COSINE", 1.01)
    encoder = TorchEncoder(packaged)
    before = encoder.compute(sequences)
    with caplog.at_level(logging.WARNING):
        prepare(encoder, TextTokenizer(packaged))
    assert "worst cosine" in caplog.text
    assert encoder.precision is Precision.BF16
    assert not encoder.bulk_is_slow
    assert np.array_equal(encoder.compute(sequences), before)


def test_it_is_refused_where_the_processor_has_it_not(packaged: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "cpu_has_8_bits", lambda: False)
    with pytest.raises(OperationError, match="avx512_vnni"):
        TorchEncoder(packaged, precision=Precision.INT8)
    assert not TorchEncoder(packaged).bulk_is_slow


@needs_8_bits
async def test_the_service_goes_on_to_it_once_there_is_much_to_do(tmp_path: Path) -> None:
    async with services_in_process({"embed": embed.open_service}, tmp_path) as bench:

        async def embedded(texts: Sequence[str]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
            result = await bench.call(EmbedTexts(texts=list(texts), kind=TextKind.PASSAGE))
            return np.frombuffer(result.vectors.data, dtype=np.float32).reshape(len(texts), -1)

        before = await embedded(TEXTS)
        with trio.fail_after(60):
            while (await bench.call(EmbedModelParams())).precision != "int8":
                await embedded(TEXTS * 4)
        assert worst_cosine(before, await embedded(TEXTS)) > 0.995


def uneven(rows: int, channels: int) -> torch.Tensor:
    """Activations as behind a norm: some channels far larger than the rest, and not around zero."""
    source = torch.Generator().manual_seed(3)
    size = torch.exp(torch.randn(channels, generator=source))
    return torch.randn(rows, channels, generator=source) * size + 3 * size * torch.randn(channels, generator=source)


def near(ours: torch.Tensor, exact: torch.Tensor) -> bool:
    return float((ours.float() - exact).norm() / exact.norm()) < 0.02


@needs_8_bits
def test_a_product_of_uneven_channels() -> None:
    x, weight, bias = uneven(300, 64), torch.randn(96, 64), torch.randn(96)
    scaling = Scaling(x.amin(0), x.amax(0), weight, 0.8)
    product = Product(scaling, weight, bias)
    exact = F.linear(x, weight, bias)
    assert near(product(scaling(x)), exact)
    assert near(product.add_to(torch.ones(300, 96), scaling(x)), exact + 1)


@needs_8_bits
def test_rows_that_answer_in_steps() -> None:
    x, first, second = uneven(300, 64), (torch.randn(64, 64), torch.randn(64)), (torch.randn(32, 64), torch.randn(32))
    inner = F.linear(x, *first)
    scaling = Scaling(inner.amin(0), inner.amax(0), second[0], 0.3)
    steps = F.linear(x, *scaling.rows_in_steps(*first))
    assert near(Product(scaling, *second)(in_8_bits(steps)), F.linear(inner, *second))


@needs_8_bits
@pytest.mark.parametrize(("activation", "approximate"), [("gelu", "none"), ("gelu_new", "tanh")])
def test_two_layers_with_an_activation_between_them(activation: str, approximate: str) -> None:
    x, up, down = uneven(300, 64), (torch.randn(128, 64) / 8, torch.randn(128)), (torch.randn(64, 128), torch.randn(64))
    inner = F.gelu(F.linear(x, *up), approximate=approximate)
    scaling = Scaling(x.amin(0), x.amax(0), up[0], 0.8)
    layers = FeedForward(scaling, up, down, inner.amax(0), activation)
    assert near(layers.add_to(x.clone()), x + F.linear(inner, *down))


def test_what_is_beyond_the_range_is_cut_and_does_not_wrap_around() -> None:
    assert in_8_bits(torch.tensor([-1000.0, -128, -0.4, 0.6, 127, 1000])).tolist() == [0, 0, 128, 129, 255, 255]
