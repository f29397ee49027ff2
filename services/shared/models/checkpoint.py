"""A model on this machine, in a folder or the local Hugging Face cache, and its tokenizer.

Nothing here uses the network. Weights must be safetensors: loading a pickle runs code. A published `tokenizer.json` may
contain its own settings for truncation and padding (one pads everything to 128 tokens and truncates there); they are
ignored.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta
from tokenizers import Encoding, Tokenizer

from proto.wire import frames
from services.shared.models.folders import ModelMissing as ModelMissing  # noqa: PLC0414 - raised by what stands here
from services.shared.models.folders import most_tokens, read_json

Ids = npt.NDArray[np.int32]
"""Token ids of one text, special tokens included."""

_CHARACTERS_A_TOKEN = 16
"""First guess at how much of a long text suffices. Three to five are usual, and a wrong guess only costs a second
attempt."""


_Size = Annotated[int, Meta(ge=0, le=1 << 48)]

_HEADER_BYTES = 100_000_000
"""Maximum length of the header of a safetensors file, as in the format's own library."""


class TensorHeader(msgspec.Struct, frozen=True):
    """What the header of a safetensors file says about a tensor; the offsets count from the end of the header."""

    dtype: str
    shape: tuple[_Size, ...]
    data_offsets: tuple[_Size, _Size]


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one model, read but not loaded.

    `max_tokens` includes the special tokens; `config` is the model's `config.json`.
    """

    name: str
    folder: Path
    weights: tuple[Path, ...]
    tokenizer: Path
    config: dict[str, Any]
    max_tokens: int

    @property
    def family(self) -> str:
        """The name of the architecture, from `model_type`."""
        return str(self.config.get("model_type", ""))


def read_checkpoint(name: str, folder: Path) -> Checkpoint:
    """Read the model in `folder`.

    Raises ModelMissing if a required file is missing or only present in a refused format.
    """
    config = read_json(folder / "config.json")
    if not config:
        raise ModelMissing(f"{folder} has no config.json, so it is not a model folder", field="model")
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise ModelMissing(f"{folder} has no tokenizer.json; save the model's fast tokenizer there", field="model")
    return Checkpoint(
        name=name, folder=folder, weights=_weights(folder), tokenizer=tokenizer, config=config,
        max_tokens=most_tokens(folder, config),
    )  # fmt: skip


def load_transformer(files: Checkpoint, kind: str, dtype: object) -> Any:
    """Load the model into torch with `kind`, one of transformers' `Auto…` classes, as torch's `dtype`.

    Code from a model repository is never run, and nothing is downloaded.

    Raises ModelMissing if transformers cannot load it.
    """
    # This import takes a second, and other models do not need it.
    import transformers
    from transformers.utils.logging import disable_progress_bar

    # The progress bar would fill the log.
    disable_progress_bar()
    try:
        model = getattr(transformers, kind).from_pretrained(
            files.folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype=dtype
        )
    except (ValueError, OSError, KeyError) as error:
        raise ModelMissing(f"transformers cannot load {files.folder}: {error}", field="model") from error
    return model.eval()


def parameters_of(weights: Sequence[Path]) -> int:
    """Return the number of parameters in these safetensors files. Reads only their headers."""
    return sum(math.prod(each.shape) for path in weights for each in tensor_headers(path)[1].values())


def tensor_headers(path: Path) -> tuple[int, dict[str, TensorHeader]]:
    """Return where the data of a safetensors file begins, and its tensors by name. Raises ModelMissing."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin = 8 + int.from_bytes(file.read(8), "little")
            # Checked before it is read: reading takes as much memory as is said here.
            if begin > min(size, _HEADER_BYTES):
                raise msgspec.DecodeError(f"its header claims to have {begin - 8} bytes")
            content = file.read(begin - 8)
        members = frames.decoded(_members, content)
        members.pop("__metadata__", None)
        found = {name: frames.decoded(_header, member) for name, member in members.items()}
    except OSError as error:
        raise ModelMissing(f"{path} cannot be read: {error.strerror}", field="model") from None
    except msgspec.DecodeError as error:
        raise ModelMissing(f"{path} is damaged, or not a safetensors file: {error}", field="model") from None
    return begin, found


_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_header = msgspec.json.Decoder(TensorHeader).decode


def fingerprint(files: Checkpoint, *rest: object) -> str:
    """Identify a model by everything that affects its output: weights, tokenizer, configuration and `rest`.

    Reads all weights.
    """
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
    listed = read_json(folder / "model.safetensors.index.json").get("weight_map", {})
    if not isinstance(listed, dict):
        raise ModelMissing(f"{folder}/model.safetensors.index.json has no object `weight_map`", field="model")
    shards = sorted(set(map(str, listed.values())))
    if shards:
        paths = tuple(folder / Path(str(shard)).name for shard in shards)
        if missing := [path.name for path in paths if not path.is_file()]:
            raise ModelMissing(f"{folder} lacks {', '.join(missing)} of its weights", field="model")
        return paths
    if pickles := [path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in folder.glob(pattern)]:
        why = f"{folder} has its weights only as a pickle ({pickles[0]}), and loading a pickle runs code"
        raise ModelMissing(f"{why}: it is never loaded; save the weights as model.safetensors", field="model")
    raise ModelMissing(f"{folder} has no model.safetensors", field="model")


def open_tokenizer(files: Checkpoint, *, cut: str = "longest_first") -> Tokenizer:
    """Open the tokenizer of a model, set to truncate and not to pad. `only_second` truncates the second text of a
    pair. Raises ModelMissing."""
    try:
        tokenizer = Tokenizer.from_file(str(files.tokenizer))
    except Exception as error:  # noqa: BLE001  # the library raises nothing more specific
        raise ModelMissing(f"{files.tokenizer} is not a tokenizer: {str(error)[:200]}", field="model") from None
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=files.max_tokens, strategy=cut)
    return tokenizer


def encode_cut(
    tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int, *, before: str | None = None
) -> list[Encoding]:
    """Encode each text, or each pair (`before`, text), with the same result as if the whole text had been tokenized.

    Long texts are cut first, so that megabytes are not tokenized to keep 256 tokens. Blocks, and releases the
    interpreter lock.
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
