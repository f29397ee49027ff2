"""Finds the embedding model, its pooling and prefixes, and the fingerprint of its vectors."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from proto.host.models import known
from services.shared.models import checkpoint
from services.shared.models.checkpoint import Checkpoint, ModelMissing, read_checkpoint
from services.shared.models.folders import AUTO, PACKAGED, PREFERRED, locate_embedder, read_json

__all__ = ["AUTO", "PACKAGED", "PREFERRED", "DenseLayer", "ModelFiles", "Pooling", "fingerprint", "resolve"]

_BGE_EN = "Represent this sentence for searching relevant passages: "
_E5 = ("query: ", "passage: ")
_PREFIXES = {
    "baai/bge-small-en": (_BGE_EN, ""),
    "baai/bge-base-en": (_BGE_EN, ""),
    "baai/bge-large-en": (_BGE_EN, ""),
    "intfloat/e5-": _E5,
}
"""Prefixes of queries and passages, by the start of a model's name, if neither its files nor `KNOWN` specify them."""


_QUERY_PROMPTS = ("query", "retrieval-query", "search_query", "retrieval.query", "retrieval")
_PASSAGE_PROMPTS = (
    "document", "passage", "corpus", "retrieval-document", "search_document", "retrieval.passage",
)  # fmt: skip
"""Names of prompts in `config_sentence_transformers.json`, in lower case; the first that the model has is used."""


_FAMILIES = {"bert": "bert.", "roberta": "roberta.", "xlm-roberta": "roberta.", "camembert": "roberta."}

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
"""Activations that our code supports for encoders of the BERT family."""

DENSE_ACTIVATIONS = ("Identity", "Tanh", "ReLU", "Sigmoid", "SiLU", "GELU")
"""Activations that `projection` supports for dense layers after the pooling, by their name in `torch.nn`."""


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


class DenseLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer applied to the pooled vector; `activation` is the name of a class of `torch.nn`."""

    weights: Path
    activation: str
    width: int
    residual: bool = False


class ModelFiles(Checkpoint, frozen=True, kw_only=True):
    """An embedding model on disk, read but not loaded. Vectors are truncated to `dimensions`, if set."""

    pooling: Pooling
    query_prefix: str
    passage_prefix: str
    dense: tuple[DenseLayer, ...] = ()
    dimensions: int | None = None


def resolve(
    model: str = AUTO,
    *,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    max_tokens: int | None = None,
    dimensions: int | None = None,
) -> ModelFiles:
    """Return the files of `model`: `auto`, a folder, or an id in the local Hugging Face cache.

    Args:
        query_prefix: prefix of queries, replacing that of the model's own configuration; likewise `passage_prefix`.
        max_tokens: read at most this many tokens of a text, if the model reads that many.
        dimensions: truncate vectors to this length, which the model must support.

    Raises:
        ModelMissing: the model is not here, has no safetensors, or its pooling or `dimensions` are not supported.
    """
    name, folder = locate_embedder(model)
    read = read_checkpoint(name, folder)
    query, passage = _prefixes(name, folder)
    modules = _modules(folder)
    fields = msgspec.structs.asdict(read) | {"max_tokens": min(read.max_tokens, max_tokens or read.max_tokens)}
    files = ModelFiles(
        **fields,
        pooling=modules.pooling,
        query_prefix=query if query_prefix is None else query_prefix,
        passage_prefix=passage if passage_prefix is None else passage_prefix,
        dense=modules.dense,
    )
    if modules.without_prompt and (files.query_prefix or files.passage_prefix):
        raise ModelMissing(f"{folder} pools without its prompt, which is not supported", field="model")
    return _truncated(files, dimensions)


def fingerprint(files: ModelFiles) -> str:
    """Return a fingerprint of everything that determines a passage's vector: weights, configuration, tokenizer,
    pooling, dense layers, dimensions, length, passage prefix.

    It excludes precision and device: their vectors agree to a cosine of 0.999, so a machine may change them and keep
    its index.
    """
    rest: list[object] = [files.pooling, files.max_tokens, files.passage_prefix]
    if files.dense:
        rest.append([(sha256_of(each.weights), each.activation, each.residual) for each in files.dense])
    if files.dimensions is not None:
        rest.append({"dimensions": files.dimensions})
    return checkpoint.fingerprint(files, *rest)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _truncated(files: ModelFiles, dimensions: int | None) -> ModelFiles:
    """Return `files` with vectors of this length. Raises ModelMissing if the model was not trained for it."""
    width = files.dense[-1].width if files.dense else int(files.config.get("hidden_size") or files.config.get("dim", 0))
    if dimensions is None or dimensions == width:
        return files
    listed = known(files.name)
    stated = files.config.get("matryoshka_dimensions")
    supported = [each for each in stated if isinstance(each, int)] if isinstance(stated, list) else []
    free = files.config.get("is_matryoshka") is True and not supported
    if dimensions < (width or dimensions + 1) and (
        dimensions in supported or free or (listed is not None and listed.allows(dimensions))
    ):
        return msgspec.structs.replace(files, dimensions=dimensions)
    if listed is not None and listed.shorter_from:
        remedy = f"use {listed.shorter_from} to {width}"
    elif choices := sorted({*supported, *(listed.shorter if listed is not None else ())}):
        remedy = f"use one of {', '.join(map(str, sorted({*choices, width})))}"
    else:
        remedy = f"it was not trained to be truncated: leave `dimensions` out, or use another model (it has {width})"
    raise ModelMissing(f"{files.name} does not support {dimensions} dimensions: {remedy}", field="dimensions")


class _Modules(msgspec.Struct, frozen=True, kw_only=True):
    pooling: Pooling = Pooling.MEAN
    dense: tuple[DenseLayer, ...] = ()
    without_prompt: bool = False


def _modules(folder: Path) -> _Modules:
    """Read what follows the transformer, in sentence-transformers' layout."""
    modules = folder / "modules.json"
    if not modules.is_file():
        return _Modules()
    try:
        listed = msgspec.json.decode(modules.read_bytes(), type=list[dict[str, Any]])
    except msgspec.DecodeError as error:
        raise ModelMissing(f"cannot read {modules}: {error}", field="model") from None
    pooling: Pooling | None = None
    dense: list[DenseLayer] = []
    without_prompt = normalised = False
    for module in listed:
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        place = folder / str(module.get("path", ""))
        if kind == "Pooling":
            config = read_json(place / "config.json")
            pooling, without_prompt = _pooling_of(config), config.get("include_prompt") is False
        elif kind == "Dense" and pooling not in (None, Pooling.MEAN_SQRT_LEN) and not normalised:
            dense.append(_dense_of(place))
        elif kind == "Normalize":
            normalised = True
        elif kind != "Transformer":
            # Ignoring a module would give vectors that look right and are not.
            what = f"module {kind}" if kind != "Dense" else "order of modules around Dense"
            raise ModelMissing(f"{folder} has an unsupported {what}; use a model without it", field="model")
    return _Modules(pooling=pooling or Pooling.MEAN, dense=tuple(dense), without_prompt=without_prompt)


def _dense_of(folder: Path) -> DenseLayer:
    """Read a dense layer's description. Raises ModelMissing if it is not supported."""
    config = read_json(folder / "config.json")
    activation = str(config.get("activation_function", "Tanh")).rsplit(".", 1)[-1]
    if activation not in DENSE_ACTIVATIONS:
        raise ModelMissing(
            f"{folder} uses the activation {activation}; supported are {', '.join(DENSE_ACTIVATIONS)}", field="model"
        )
    for name in ("module_input_name", "module_output_name"):
        if config.get(name, "sentence_embedding") not in ("sentence_embedding", None):
            raise ModelMissing(f"{folder} is not applied to the pooled vector, which is not supported", field="model")
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ModelMissing(f"{folder} has no model.safetensors, and a pickle is never loaded", field="model")
    width = config.get("out_features")
    if not isinstance(width, int):
        raise ModelMissing(f"{folder / 'config.json'} does not say how many `out_features` it has", field="model")
    return DenseLayer(weights=weights, activation=activation, width=width, residual=config.get("use_residual") is True)


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
    config = read_json(folder / "config_sentence_transformers.json")
    stated = config.get("prompts")
    prompts = {str(key).lower(): str(text or "") for key, text in stated.items()} if isinstance(stated, dict) else {}
    # Applied to every text for which no other prompt is named.
    default = prompts.get(str(config.get("default_prompt_name") or "").lower(), "")
    query, passage = (
        next((prompts[each] for each in names if each in prompts), default)
        for names in (_QUERY_PROMPTS, _PASSAGE_PROMPTS)
    )
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
