"""A model as it lies on this machine, in a folder or in the local Hugging Face cache, and its tokenizer.

Nothing here touches the network: a model is found, or the answer is an error that says what to do. Weights are
safetensors or they are refused: a pickle runs code when it is read. A published `tokenizer.json` may carry settings of
its own for cutting and padding (one pads everything to 128 and cuts there); neither is taken over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from proto.errors import OperationError
from proto.models import cached, hub, known

Ids = npt.NDArray[np.int32]
"""Token ids of one text, special tokens included."""

_CHARACTERS_A_TOKEN = 16
"""First guess at how much of a long text suffices; three to five are usual, and a wrong guess only costs another
look."""


class ModelMissing(OperationError):
    """The model is not on this machine, or not in a form that is loaded; the message says what to do."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One model on disk, read but not loaded.

    `max_tokens` counts the special tokens too; `config` is the model's `config.json`.
    """

    name: str
    folder: Path
    weights: tuple[Path, ...]
    tokenizer: Path
    config: dict[str, Any]
    max_tokens: int

    @property
    def family(self) -> str:
        """The architecture's name, as `model_type` has it."""
        return str(self.config.get("model_type", ""))


def locate(model: str) -> tuple[str, Path] | None:
    """Name and folder of `model`, a folder or an id (of a known one also without its owner); None for an id that is not in
    the local cache.

    Raises:
        ModelMissing: it can only be meant as a folder, and is none.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return path.name, path.resolve()
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise ModelMissing(f"the model folder {model} does not exist", field="model")
    listed = known(model)
    name = listed.name if listed else model
    found = cached(name)
    return None if found is None else (name, found)


def not_cached(model: str) -> ModelMissing:
    """The error for an id that is not in the local cache."""
    why = f"the model {model} is not in the local cache ({hub()}), and nothing is downloaded while serving: run "
    way = f"`linckia models get {model}`" if known(model) else f"`hf download {model}`"
    return ModelMissing(f"{why}{way} once, or set `model` to a folder or to `auto`", field="model")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file.  Raises ModelMissing where it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, OSError) as error:
        raise ModelMissing(f"{path} cannot be read: {error}", field="model") from None


def read_checkpoint(name: str, folder: Path) -> Checkpoint:
    """The model of `folder`.

    Raises:
        ModelMissing: something that is needed is not there, or only in a form that is refused.
    """
    config = read_json(folder / "config.json")
    if not config:
        raise ModelMissing(f"{folder} holds no config.json, so it is no model folder", field="model")
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise ModelMissing(f"{folder} holds no tokenizer.json; save the model's fast tokenizer there", field="model")
    return Checkpoint(
        name=name, folder=folder, weights=_weights(folder), tokenizer=tokenizer, config=config,
        max_tokens=_max_tokens(folder, config),
    )  # fmt: skip


def load_transformer(files: Checkpoint, kind: str, dtype: object) -> Any:
    """The model in torch by `kind`, one of transformers' `Auto…` classes, in torch's `dtype`.

    No code of a model repository is ever run, and nothing is fetched.

    Raises:
        ModelMissing: transformers cannot load it.
    """
    # A second of imports, which other models do without.
    import transformers
    from transformers.utils.logging import disable_progress_bar

    # It would be lines in a log.
    disable_progress_bar()
    try:
        model = getattr(transformers, kind).from_pretrained(
            files.folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype=dtype
        )
    except (ValueError, OSError, KeyError) as error:
        raise ModelMissing(f"transformers cannot load {files.folder}: {error}", field="model") from error
    return model.eval()


def fingerprint(files: Checkpoint, *rest: object) -> str:
    """Names a model by what decides its answers: weights, tokenizer, configuration and `rest`.  Reads all weights."""
    digest = hashlib.sha256()
    for path in (*files.weights, files.tokenizer):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    said = {key: value for key, value in files.config.items() if key not in ("_name_or_path", "transformers_version")}
    digest.update(msgspec.json.encode((said, *rest), order="deterministic"))
    return f"{files.name.rsplit('/', 1)[-1]}:{digest.hexdigest()[:16]}"


def _weights(folder: Path) -> tuple[Path, ...]:
    single = folder / "model.safetensors"
    if single.is_file():
        return (single,)
    shards = sorted(set(read_json(folder / "model.safetensors.index.json").get("weight_map", {}).values()))
    if shards:
        paths = tuple(folder / Path(str(shard)).name for shard in shards)
        if missing := [path.name for path in paths if not path.is_file()]:
            raise ModelMissing(f"{folder} lacks {', '.join(missing)} of its weights", field="model")
        return paths
    if pickles := [path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in folder.glob(pattern)]:
        why = f"{folder} holds its weights only as a pickle ({pickles[0]}), which runs code when it is read"
        raise ModelMissing(f"{why} and is never loaded; save them as model.safetensors", field="model")
    raise ModelMissing(f"{folder} holds no model.safetensors", field="model")


def _max_tokens(folder: Path, config: dict[str, Any]) -> int:
    limits: list[int] = []
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int):
        # RoBERTa and CamemBERT, which is one, count positions from the padding id onwards.
        counts_on = str(config.get("model_type")).endswith(("roberta", "camembert"))
        offset = int(config.get("pad_token_id") or 0) + 1 if counts_on else 0
        limits.append(positions - offset)
    stated = read_json(folder / "sentence_bert_config.json").get("max_seq_length")
    stated = read_json(folder / "tokenizer_config.json").get("model_max_length") if stated is None else stated
    if isinstance(stated, int | float) and 0 < stated < 1e6:
        limits.append(int(stated))
    return min(limits, default=512)


def open_tokenizer(files: Checkpoint, *, cut: str = "longest_first") -> Tokenizer:
    """The tokenizer of a model, set to cut (`only_second`: of a pair, the second text alone) and not to pad."""
    tokenizer = Tokenizer.from_file(str(files.tokenizer))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=files.max_tokens, strategy=cut)
    return tokenizer


def encode_cut(
    tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int, *, before: str | None = None
) -> list[Encoding]:
    """The encoding of each text, or of each pair (`before`, text), as if all of it had been tokenized.

    A text of megabytes is not tokenized to keep 256 tokens of it. Blocks, without the interpreter's lock.
    """

    def given(text: str) -> str | tuple[str, str]:
        return text if before is None else (before, text)

    window = max_tokens * _CHARACTERS_A_TOKEN
    encodings: list[Encoding] = tokenizer.encode_batch_fast([given(text[:window]) for text in texts])
    for index, text in enumerate(texts):
        size = window
        while not encodings[index].overflowing and size < len(text):
            size *= 4
            encodings[index] = tokenizer.encode_batch_fast([given(text[:size])])[0]
    return encodings
