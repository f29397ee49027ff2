"""The tensors of safetensors files as numpy arrays that lie in the file: nothing is read before it is used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from services.runtime.models.checkpoint import ModelMissing

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class Stored(msgspec.Struct, frozen=True):
    """A tensor in its file."""

    values: npt.NDArray[Any]
    is_bf16: bool

    def rows(self, at: npt.NDArray[Any] | slice = slice(None)) -> npt.NDArray[np.float32]:
        """These rows in float32, copied."""
        found = self.values[at]
        if self.is_bf16:
            # The upper half of a float32, which numpy has no name for.
            return (found.astype(np.uint32) << 16).view(np.float32)
        return found.astype(np.float32)


def read_tensors(paths: Sequence[Path]) -> dict[str, Stored]:
    """The tensors of numbers with a fraction, by name.

    Raises:
        ModelMissing: a file is damaged.
    """
    found = {}
    for path in paths:
        try:
            whole = np.memmap(path, dtype=np.uint8, mode="r")
            begin = 8 + int(whole[:8].view("<u8")[0])
            header = msgspec.json.decode(bytes(whole[8:begin]), type=dict[str, dict[str, Any]])
            for name, said in header.items():
                if (dtype := _TYPES.get(said.get("dtype", ""))) is not None:
                    start, end = said["data_offsets"]
                    values = whole[begin + start : begin + end].view(dtype).reshape(said["shape"])
                    found[name] = Stored(values, said["dtype"] == "BF16")
        except (msgspec.DecodeError, ValueError, KeyError, OSError) as error:
            raise ModelMissing(f"{path} is no safetensors file, or damaged: {error}", field="model") from None
    return found
