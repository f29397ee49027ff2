"""What a `config.json` says of an encoder of BERT's family: all that its two computations here, by torch and by ONNX
Runtime, need to know beside the weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
_FAMILIES = {"bert": "bert.", "roberta": "roberta.", "xlm-roberta": "roberta.", "camembert": "roberta."}


def supports(config: Mapping[str, Any]) -> bool:
    """Whether `config` (a `config.json`) describes an encoder that is computed exactly from its shape."""
    return (
        config.get("model_type") in _FAMILIES
        and config.get("hidden_act", "gelu") in ACTIVATIONS
        and config.get("position_embedding_type", "absolute") == "absolute"
        and not config.get("is_decoder", False)
    )


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """One encoder.

    Attributes:
        prefix: what the names of its tensors begin with.
        epsilon: of its layer norms.
        first_position: the row of the positions' table that the first token has.
    """

    prefix: str
    hidden: int
    heads: int
    layers: int
    epsilon: float
    activation: str
    first_position: int

    @classmethod
    def of(cls, config: Mapping[str, Any], tensors: Iterable[str]) -> Shape:
        """Of a config that `supports` admits, and the names of the checkpoint's tensors."""
        family = _FAMILIES[str(config["model_type"])]
        return cls(
            prefix=family if any(name.startswith(family) for name in tensors) else "",
            hidden=int(config["hidden_size"]),
            heads=int(config["num_attention_heads"]),
            layers=int(config["num_hidden_layers"]),
            epsilon=float(config.get("layer_norm_eps", 1e-12)),
            activation=str(config.get("hidden_act", "gelu")),
            first_position=int(config.get("pad_token_id") or 0) + 1 if family == "roberta." else 0,
        )
