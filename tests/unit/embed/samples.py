"""Texts of every length and kind, small models of every family, and how vectors are compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from services.embed.encoder import Vectors
from services.embed.weights import ModelFiles, resolve
from services.shared.models.checkpoint import Ids
from services.shared.models.device import Precision

if TYPE_CHECKING:
    from services.embed.torch_encoder import TorchEncoder

TEXTS = [
    "cat",
    "",
    "A man is eating food.",
    "def parse_http_request(raw: bytes) -> Request: ...",
    "Größe und Übermut: 日本語のテキスト.",
    "word " * 60,
    "The quick brown fox jumps over the lazy dog. " * 80,
    "A man is eating food.",
    *(f"text number {n}, " * n for n in range(1, 30)),
]


def worst_cosine(left: Vectors, right: Vectors) -> float:
    return float((left * right).sum(axis=1).min())


def by_torch(files: ModelFiles) -> TorchEncoder:
    # With torch, which takes seconds, and each process that runs tests reads all files of tests.
    from services.embed.torch_encoder import TorchEncoder

    return TorchEncoder(files, precision=Precision.FP32)


SMALL = {
    "vocab_size": 90, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 72,
    "max_position_embeddings": 50, "pad_token_id": 1, "initializer_range": 0.3,
}  # fmt: skip


FAMILIES: list[tuple[str, dict[str, object]]] = [
    ("Bert", {}), ("Bert", {"hidden_act": "gelu_new"}), ("Bert", {"hidden_act": "relu"}), ("XLMRoberta", {}),
    ("Camembert", {}),
]  # fmt: skip
"""Families of the BERT kind, each with settings of its configuration."""


def small(folder: Path, kind: str, **settings: object) -> ModelFiles:
    """A model of this family with random weights, and a tokenizer of a few words."""
    import torch

    transformers = pytest.importorskip("transformers")
    torch.manual_seed(7)
    config = getattr(transformers, kind + "Config")(**SMALL, **settings)
    getattr(transformers, kind + "Model")(config).save_pretrained(folder)
    words = {"[UNK]": 0, "[PAD]": 1, **{f"w{number}": number for number in range(2, 90)}}
    tokenizer: dict[str, object] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_bytes(msgspec.json.encode(tokenizer))
    return resolve(str(folder))


def batch(*lengths: int) -> list[Ids]:
    source = np.random.default_rng(3)
    return [source.integers(2, 90, length).astype(np.int32) for length in lengths]
