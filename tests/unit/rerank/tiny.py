"""A cross-encoder small enough for tests: two layers of random weights, saved as the published ones are."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
_PLAIN = "cats dogs fish purr bark swim who what the a and sleep water at in"
WORDS = [*SPECIAL, *_PLAIN.split()]
MAX_TOKENS = 24


def save_cross_encoder(folder: Path, *, labels: int = 1) -> Path:
    """A BertForSequenceClassification with its tokenizer; always the same one."""
    import torch

    transformers = pytest.importorskip("transformers")
    torch.manual_seed(7)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=MAX_TOKENS, num_labels=labels, pad_token_id=0,
        # Random weights of the usual size answer nearly the same to everything.
        initializer_range=0.5,
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(folder, safe_serialization=True)
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    # As published ones may: it pads and cuts by itself, which must not be taken over.
    tokenizer.enable_padding(length=16)
    tokenizer.enable_truncation(max_length=8)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
