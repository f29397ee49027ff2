"""Small models of random weights, saved as the published ones of each family are: with a tokenizer, the pooling, dense
layers and prompts, in sentence-transformers' layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

SIZES = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
WORDS = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{n}" for n in range(95))]
EMBEDDING_GEMMA = (
    "Gemma3TextConfig",
    SIZES | {
        "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 8, "max_position_embeddings": 256,
        "use_bidirectional_attention": True, "sliding_window_pattern": 2, "pad_token_id": 0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
)  # fmt: skip
QWEN3 = (
    "Qwen3Config",
    SIZES | {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "tie_word_embeddings": True},
)
MODERN_BERT = (
    "ModernBertConfig",
    SIZES | {
        "max_position_embeddings": 256, "local_attention": 8, "hidden_activation": "silu", "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
)  # fmt: skip
XLM_R = ("XLMRobertaConfig", SIZES | {"pad_token_id": 0, "max_position_embeddings": 258, "type_vocab_size": 1})


def save_family(
    folder: Path,
    family: tuple[str, Mapping[str, Any]],
    *,
    pooling: str,
    dense: Sequence[tuple[int, int, str, bool]] = (),
    prompts: Mapping[str, str] = {},
    begins: bool = True,
) -> Path:
    """Save a model.

    Args:
        dense: for each layer the widths before and after, the activation's name in `torch.nn`, and whether it has a
            bias.
        begins: whether the tokenizer puts a token before a text; it always puts one after it.
    """
    import torch

    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    config = getattr(transformers, family[0])(**family[1])
    # Random weights of the usual size make all texts alike.
    config.initializer_range = 0.3
    transformers.AutoModel.from_config(config).save_pretrained(folder, safe_serialization=True)
    save_tokenizer(folder, begins=begins)
    modules: list[dict[str, object]] = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, "pooling_mode": pooling})
    for place, (before, after, activation, has_bias) in enumerate(dense, 2):
        path = f"{place}_Dense"
        modules.append({"idx": place, "name": str(place), "path": path, "type": "sentence_transformers.models.Dense"})
        _save_dense(folder / path, before, after, activation, has_bias)
    modules.append({"idx": 9, "name": "9", "path": "9_Normalize", "type": "sentence_transformers.models.Normalize"})
    _write(folder / "modules.json", modules)
    _write(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": None})
    _write(folder / "sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": False})
    return folder


def save_tokenizer(folder: Path, *, begins: bool = True) -> None:
    """Save a tokenizer of whole words."""
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    first = "<s> " if begins else ""
    tokenizer.post_processor = TemplateProcessing(
        single=f"{first}$A </s>", pair=f"{first}$A </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>",
            "unk_token": "<unk>", "model_max_length": 512,
        },
    )  # fmt: skip


def _save_dense(folder: Path, before: int, after: int, activation: str, has_bias: bool) -> None:
    import torch
    from safetensors.torch import save_file

    layer = torch.nn.Linear(before, after, bias=has_bias)
    module = type(getattr(torch.nn, activation)()).__module__
    _write(
        folder / "config.json",
        {
            "in_features": before, "out_features": after, "bias": has_bias,
            "activation_function": f"{module}.{activation}",
        },
    )  # fmt: skip
    save_file({f"linear.{name}": value for name, value in layer.state_dict().items()}, folder / "model.safetensors")


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(msgspec.json.encode(content))
