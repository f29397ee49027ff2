"""The weights of an encoder of the BERT family as numpy arrays, and its batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from services.embed.encoder import Vectors
from services.embed.weights import ModelFiles, first_position, prefix_of
from services.shared.models.checkpoint import Ids, ModelMissing, tensor_headers

_TOKENS_AT_ONCE = 512
"""The intermediate results of this many tokens fit into a core's cache; more are slower."""

Take = Callable[[str], Vectors]
"""Returns a tensor of the checkpoint by its name, without the family's prefix."""

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class Tensors:
    """The tensors of a model. The table of words stays in its file; only the rows in use are read.

    Raises:
        ModelMissing: the weights are damaged.
    """

    def __init__(self, files: ModelFiles) -> None:
        self._tensors = read_tensors(files.weights)
        self._prefix = prefix_of(files.config, self._tensors)
        self._words = self._tensors[f"{self._prefix}embeddings.word_embeddings.weight"]
        self.width = int(self._words.values.shape[1])

    def take(self, name: str) -> Vectors:
        """Return a tensor by its name, without the family's prefix."""
        return self._tensors[self._prefix + name].rows()

    def inputs(self, block: Sequence[Ids]) -> tuple[Vectors, npt.NDArray[np.int32]]:
        """Return the words' rows and the mask of a batch: see `weights.WORDS`."""
        lengths = np.array([len(ids) for ids in block], dtype=np.int64)
        mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int32)
        ids = np.zeros(mask.shape, dtype=np.int64)
        ids[mask == 1] = np.concatenate(block)
        return self._words.rows(ids), mask


def positions(config: Mapping[str, Any], take: Take) -> Vectors:
    """Return the vector to add to a word at each position of a text; every token is of type 0."""
    rows = take("embeddings.position_embeddings.weight") + take("embeddings.token_type_embeddings.weight")[0]
    found: Vectors = rows[first_position(config) :]
    return found


class StoredTensor(msgspec.Struct, frozen=True):
    """A tensor in its file."""

    values: npt.NDArray[Any]
    is_bf16: bool

    def rows(self, at: npt.NDArray[Any] | slice = slice(None)) -> npt.NDArray[np.float32]:
        """Return these rows in float32, copied."""
        found = self.values[at]
        if self.is_bf16:
            # The upper half of a float32, for which numpy has no type.
            return (found.astype(np.uint32) << 16).view(np.float32)
        return found.astype(np.float32)


def read_tensors(paths: Sequence[Path]) -> dict[str, StoredTensor]:
    """Read the floating-point tensors, by name.

    Raises:
        ModelMissing: a file is damaged or cannot be read.
    """
    found = {}
    for path in paths:
        begin, header = tensor_headers(path)
        try:
            whole = np.memmap(path, dtype=np.uint8, mode="r")
            for name, said in header.items():
                if (dtype := _TYPES.get(said.dtype)) is not None:
                    start, end = said.data_offsets
                    if not start <= end <= len(whole) - begin:
                        raise ValueError(f"the data of {name[:100]!r} is not in it")
                    values = whole[begin + start : begin + end].view(dtype).reshape(said.shape)
                    found[name] = StoredTensor(values, said.dtype == "BF16")
        except OSError as error:
            raise ModelMissing(f"{path} cannot be read: {error.strerror}", field="model") from None
        except (ValueError, OverflowError) as error:
            raise ModelMissing(f"{path} is damaged, or not a safetensors file: {error}", field="model") from None
    return found


def blocks(sequences: Sequence[Ids]) -> Iterator[list[Ids]]:
    """Yield the sequences, sorted by length, in blocks of bounded size and nearly equal length."""
    for length, like in itertools.groupby(sequences, key=lambda ids: -(-len(ids) // 16) * 16):
        left = list(like)
        most = max(1, _TOKENS_AT_ONCE // length)
        for start in range(0, len(left), most):
            yield left[start : start + most]
