"""Which encoders are of BERT's family: the ones that are computed by code of ours, packed in torch or as a graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

_FAMILIES = {"bert": "bert.", "roberta": "roberta.", "xlm-roberta": "roberta.", "camembert": "roberta."}

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")


WORDS, MASK, STATES = "words", "mask", "states"
"""Of the graph in ONNX Runtime.  Inputs: the words' rows of the embedding table, shape (count, length, hidden),
float32, and 1 for each token that is one, shape (count, length), int32. Output: the last hidden states, shaped as the
words."""


def supports(config: Mapping[str, Any]) -> bool:
    """Whether `config` (a `config.json`) describes an encoder of the family, with absolute positions."""
    return (
        config.get("model_type") in _FAMILIES
        and config.get("hidden_act", "gelu") in ACTIVATIONS
        and config.get("position_embedding_type", "absolute") == "absolute"
        and not config.get("is_decoder", False)
    )


def prefix(config: Mapping[str, Any], names: Collection[str]) -> str:
    """What stands before the names of the checkpoint's tensors: the family's prefix, or nothing."""
    family = _FAMILIES[str(config["model_type"])]
    return family if any(name.startswith(family) for name in names) else ""


def first_position(config: Mapping[str, Any]) -> int:
    """Row of the first token's position: RoBERTa counts from the padding id onwards."""
    of_roberta = _FAMILIES[str(config["model_type"])] == "roberta."
    return int(config.get("pad_token_id") or 0) + 1 if of_roberta else 0
