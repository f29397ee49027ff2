"""The encoder computes what transformers computes, for every family, length and batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from services.embed.encoder import Vectors, pool, unit
from services.embed.weights import ModelFiles, Pooling
from services.shared.models.checkpoint import Ids
from services.shared.models.device import Precision
from tests.unit.embed.samples import worst_cosine

if TYPE_CHECKING:
    from services.embed.torch_encoder import TorchEncoder


def encoder_of(files: ModelFiles, precision: Precision = Precision.FP32) -> TorchEncoder:
    # With torch, which takes seconds, and each process that runs tests reads all files of tests.
    from services.embed.torch_encoder import TorchEncoder

    return TorchEncoder(files, precision=precision)


def reference(files: ModelFiles, sequences: Sequence[Ids]) -> Vectors:
    """What transformers answers for each sequence alone, in float32."""
    import torch

    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModel.from_pretrained(files.folder, local_files_only=True).eval().float()
    with torch.inference_mode():
        states = [model(input_ids=torch.from_numpy(ids.astype(np.int64))[None]).last_hidden_state for ids in sequences]
    return unit(np.stack([pool(each[0].numpy(), files.pooling) for each in states]))


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "least"), [(Precision.FP32, 0.99999), (Precision.BF16, 0.999)])
def test_vectors_agree_with_transformers(
    packaged: ModelFiles, sequences: list[Ids], precision: Precision, least: float
) -> None:
    encoder = encoder_of(packaged, precision)
    vectors = encoder.compute(sequences)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert worst_cosine(vectors, reference(packaged, sequences)) > least


@pytest.mark.slow
def test_a_texts_vector_does_not_depend_on_its_batch(packaged: ModelFiles, sequences: list[Ids]) -> None:
    encoder = encoder_of(packaged, Precision.BF16)
    together = encoder.compute(sequences)
    alone = np.concatenate([encoder.compute([ids]) for ids in sequences])
    assert worst_cosine(together, alone) > 0.9995


def saved(folder: Path, config: object) -> ModelFiles:
    """A small model of random weights, as the family saves it."""
    import torch

    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).save_pretrained(folder, safe_serialization=True)
    stored = msgspec.json.decode((folder / "config.json").read_bytes(), type=dict[str, object])
    return ModelFiles(
        name=folder.name,
        folder=folder,
        weights=(folder / "model.safetensors",),
        tokenizer=folder / "tokenizer.json",
        config=stored,
        pooling=Pooling.MEAN,
        max_tokens=40,
        query_prefix="",
        passage_prefix="",
    )


SMALL = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


@pytest.mark.parametrize(
    ("family", "settings", "packed"),
    [
        ("BertConfig", SMALL, True),
        ("BertConfig", SMALL | {"hidden_act": "gelu_new", "pad_token_id": 5}, True),
        ("XLMRobertaConfig", SMALL | {"pad_token_id": 1, "max_position_embeddings": 64, "type_vocab_size": 1}, True),
        ("MPNetConfig", SMALL | {"max_position_embeddings": 64}, False),
        ("DistilBertConfig", {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}, False),
    ],
)
def test_every_family_agrees_with_its_own_class(
    tmp_path: Path, family: str, settings: dict[str, object], packed: bool
) -> None:
    from services.embed.weights import supports

    transformers = pytest.importorskip("transformers")
    files = saved(tmp_path, getattr(transformers, family)(**settings))
    assert supports(files.config) is packed
    numbers = np.random.default_rng(1)
    sequences = [numbers.integers(6, 99, size=length).astype(np.int32) for length in (1, 7, 7, 40, 2)]
    vectors = encoder_of(files).compute(sequences)
    assert worst_cosine(vectors, reference(files, sequences)) > 0.9999


@pytest.mark.parametrize("pooling", list(Pooling))
def test_each_kind_of_pooling(pooling: Pooling) -> None:
    states = np.arange(12, dtype=np.float32).reshape(3, 4)
    expected = {
        Pooling.MEAN: states.mean(0),
        Pooling.MEAN_SQRT_LEN: states.mean(0),
        Pooling.CLS: states[0],
        Pooling.LAST_TOKEN: states[2],
        Pooling.MAX: states[2],
    }
    assert np.array_equal(pool(states, pooling), expected[pooling])


def test_row_counts_come_again_and_never_fall_short() -> None:
    from services.embed.bert import rows_for

    counts = {rows_for(tokens) for tokens in range(1, 4097)}
    assert all(rows_for(tokens) >= tokens for tokens in range(1, 10000))
    assert len(counts) < 50


def test_attention_is_softmax_over_each_sequence_alone() -> None:
    import torch

    from services.embed.bert import Layout, attention

    heads, width = 3, 8
    lengths = [1, 2, 2, 7, 30, 140]
    layout = Layout.of(lengths)
    torch.manual_seed(0)
    query, key, value = (torch.randn(layout.rows, heads * width) for _ in range(3))
    found = attention(torch.cat([query, key, value], 1), layout, heads)
    row = 0
    for length in lengths:
        part = slice(row, row + length)
        q, k, v = (each[part].view(length, heads, width).transpose(0, 1) for each in (query, key, value))
        expected = ((q @ k.transpose(1, 2) / math.sqrt(width)).softmax(-1) @ v).transpose(0, 1).reshape(length, -1)
        assert torch.allclose(found[part], expected, atol=1e-5)
        row += length
    assert not found[row:].any()
