"""Finds the embedding model, its pooling and prefixes, and the fingerprint of its vectors."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from linckia.proto.models import known
from linckia.services.runtime.models import checkpoint
from linckia.services.runtime.models.checkpoint import Checkpoint, ModelMissing, read_checkpoint
from linckia.services.runtime.models.folders import AUTO, PACKAGED, PREFERRED, locate_embedder, read_json

__all__ = ["AUTO", "PACKAGED", "PREFERRED", "ModelFiles", "Pooling", "fingerprint", "resolve"]

_BGE_EN = "Represent this sentence for searching relevant passages: "
_E5 = ("query: ", "passage: ")
_PREFIXES = {
    "baai/bge-small-en": (_BGE_EN, ""),
    "baai/bge-base-en": (_BGE_EN, ""),
    "baai/bge-large-en": (_BGE_EN, ""),
    "intfloat/e5-": _E5,
}
"""Prefixes of queries and passages, by the start of a model's name, if neither its files nor `KNOWN` specify them."""


_FAMILIES = {"bert": "bert.", "roberta": "roberta.", "xlm-roberta": "roberta.", "camembert": "roberta."}

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
"""Activations that our code supports for encoders of the BERT family."""


WORDS, MASK, STATES = "words", "mask", "states"
"""Inputs and output of the graph in ONNX Runtime.

Inputs: the words' rows of the embedding table, shape (count, length, hidden), float32; and 1 for each real token, shape
(count, length), int32. Output: the last hidden states, in the shape of the words.
"""


class Pooling(enum.StrEnum):
    """How token vectors are combined into one, named as in sentence-transformers."""

    MEAN = "mean"
    CLS = "cls"
    MAX = "max"
    MEAN_SQRT_LEN = "mean_sqrt_len_tokens"
    LAST_TOKEN = "lasttoken"


class ModelFiles(Checkpoint, frozen=True, kw_only=True):
    """An embedding model on disk, read but not loaded."""

    pooling: Pooling
    query_prefix: str
    passage_prefix: str


def resolve(
    model: str = AUTO,
    *,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    max_tokens: int | None = None,
) -> ModelFiles:
    """Return the files of `model`: `auto`, a folder, or an id in the local Hugging Face cache.

    Args:
        query_prefix: prefix of queries, replacing that of the model's own configuration; likewise `passage_prefix`.
        max_tokens: read at most this many tokens of a text, if the model reads that many.

    Raises:
        ModelMissing: the model is not here, has no safetensors, or its pooling is not supported.
    """
    name, folder = locate_embedder(model)
    read = read_checkpoint(name, folder)
    query, passage = _prefixes(name, folder)
    fields = msgspec.structs.asdict(read) | {"max_tokens": min(read.max_tokens, max_tokens or read.max_tokens)}
    return ModelFiles(
        **fields,
        pooling=_pooling(folder),
        query_prefix=query if query_prefix is None else query_prefix,
        passage_prefix=passage if passage_prefix is None else passage_prefix,
    )


def fingerprint(files: ModelFiles) -> str:
    """Return a fingerprint of everything that determines a passage's vector: weights, configuration, tokenizer,
    pooling, length, passage prefix.

    It excludes precision and device: their vectors agree to a cosine of 0.999, so a machine may change them and keep
    its index.
    """
    return checkpoint.fingerprint(files, files.pooling, files.max_tokens, files.passage_prefix)


def _pooling(folder: Path) -> Pooling:
    modules = folder / "modules.json"
    if not modules.is_file():
        return Pooling.MEAN
    try:
        listed = msgspec.json.decode(modules.read_bytes(), type=list[dict[str, Any]])
    except msgspec.DecodeError as error:
        raise ModelMissing(f"cannot read {modules}: {error}", field="model") from None
    pooling: Pooling | None = None
    for module in listed:
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        if kind == "Pooling":
            pooling = _pooling_of(read_json(folder / str(module.get("path", "")) / "config.json"))
        elif kind not in ("Transformer", "Normalize"):
            # Ignoring a module would give vectors that look right and are not.
            raise ModelMissing(f"{folder} has an unsupported module {kind}; use a model without it", field="model")
    return pooling or Pooling.MEAN


def _pooling_of(config: dict[str, Any]) -> Pooling:
    stated = config.get("pooling_mode")
    modes = [stated] if isinstance(stated, str) else []
    for key, mode in (
        ("pooling_mode_mean_tokens", "mean"),
        ("pooling_mode_cls_token", "cls"),
        ("pooling_mode_max_tokens", "max"),
        ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
        ("pooling_mode_lasttoken", "lasttoken"),
        ("pooling_mode_weightedmean_tokens", "weightedmean"),
    ):
        if config.get(key) is True:
            modes.append(mode)
    if len(modes) == 1 and modes[0] in tuple(Pooling):
        return Pooling(modes[0])
    raise ModelMissing(f"the model pools by {' and '.join(modes) or 'nothing'}, which is not supported", field="model")


def _prefixes(name: str, folder: Path) -> tuple[str, str]:
    prompts = read_json(folder / "config_sentence_transformers.json").get("prompts") or {}
    query = str(prompts.get("query") or "")
    passage = str(prompts.get("passage") or prompts.get("document") or "")
    if query or passage:
        return query, passage
    if (listed := known(name)) is not None:
        return listed.query_prefix, listed.passage_prefix
    lowered = name.lower()
    if lowered.endswith("-instruct"):
        return "", ""
    return next((prefixes for start, prefixes in _PREFIXES.items() if lowered.startswith(start)), ("", ""))


def supports(config: Mapping[str, Any]) -> bool:
    """True if `config` (a `config.json`) describes an encoder of the BERT family with absolute positions."""
    return (
        config.get("model_type") in _FAMILIES
        and config.get("hidden_act", "gelu") in ACTIVATIONS
        and config.get("position_embedding_type", "absolute") == "absolute"
        and not config.get("is_decoder", False)
    )


def prefix_of(config: Mapping[str, Any], names: Collection[str]) -> str:
    """Return the prefix of the checkpoint's tensor names: the family's, or an empty string."""
    prefix = _FAMILIES[str(config["model_type"])]
    return prefix if any(name.startswith(prefix) for name in names) else ""


def first_position(config: Mapping[str, Any]) -> int:
    """Return the row of the first token's position: RoBERTa counts from the padding id onwards."""
    of_roberta = _FAMILIES[str(config["model_type"])] == "roberta."
    return int(config.get("pad_token_id") or 0) + 1 if of_roberta else 0
