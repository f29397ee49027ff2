"""A model as it lies on this machine, in a folder or in the local Hugging Face cache, and its tokenizer.

Nothing here touches the network. Weights are safetensors or they are refused: a pickle runs code when it is read. A
published `tokenizer.json` may carry settings of its own for cutting and padding (one pads everything to 128 and cuts
there); neither is taken over.
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

from linckia.services.runtime.models.folders import ModelMissing as ModelMissing  # noqa: PLC0414 - raised by what stands here
from linckia.services.runtime.models.folders import most_tokens, read_json

Ids = npt.NDArray[np.int32]
"""Token ids of one text, special tokens included."""

_CHARACTERS_A_TOKEN = 16
"""First guess at how much of a long text suffices; three to five are usual, and a wrong guess only costs another
look."""


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


def read_checkpoint(name: str, folder: Path) -> Checkpoint:
    """The model of `folder`.

    Raises ModelMissing: something that is needed is not there, or only in a form that is refused.
    """
    config = read_json(folder / "config.json")
    if not config:
        raise ModelMissing(f"{folder} holds no config.json, so it is no model folder", field="model")
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise ModelMissing(f"{folder} holds no tokenizer.json; save the model's fast tokenizer there", field="model")
    return Checkpoint(
        name=name, folder=folder, weights=_weights(folder), tokenizer=tokenizer, config=config,
        max_tokens=most_tokens(folder, config),
    )  # fmt: skip


def load_transformer(files: Checkpoint, kind: str, dtype: object) -> Any:
    """The model in torch by `kind`, one of transformers' `Auto…` classes, in torch's `dtype`.

    No code of a model repository is ever run, and nothing is fetched.

    Raises ModelMissing: transformers cannot load it.
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
