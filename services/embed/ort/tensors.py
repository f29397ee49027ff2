"""A checkpoint's tensors where they lie on disk: mapped, so that of a vocabulary's table only the rows that are read
ever enter memory.

The library for safetensors copies a tensor for numpy, and has no bfloat16 there. The format: eight bytes with the
length of the header, the header as JSON, the tensors
(https://huggingface.co/docs/safetensors/index#format).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from services.runtime.models.checkpoint import ModelMissing

Floats = npt.NDArray[np.float32]

# numpy's scalar types, which have no type in common that `dtype` takes.
_KINDS: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class Rows:
    """One tensor; what is taken of it comes as float32.  Any number of threads may read it."""

    def __init__(self, raw: npt.NDArray[Any], kind: str) -> None:
        self._raw = raw
        self._kind = kind

    def __getitem__(self, rows: npt.NDArray[np.integer[Any]]) -> Floats:
        """The rows of these numbers: shape (…) to (…, columns)."""
        return self._floats(self._raw[rows])

    def whole(self) -> Floats:
        return self._floats(self._raw)

    def _floats(self, raw: npt.NDArray[Any]) -> Floats:
        if self._kind == "BF16":
            # bfloat16 is the upper half of a float32.
            widened: Floats = (raw.astype(np.uint32) << 16).view(np.float32)
            return widened
        return raw.astype(np.float32, copy=False)


class Tensors:
    """Those of all files of one checkpoint, by name.

    Raises:
        ModelMissing: a file is not one of safetensors or is cut off, or a tensor that is asked for is not there or of
            a kind that is no float.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._found: dict[str, tuple[_Tensor, mmap.mmap, int]] = {}
        self._files: list[mmap.mmap] = []
        for path in paths:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._files.append(mapped)
            length = int.from_bytes(mapped[:8], "little")
            try:
                header = msgspec.json.decode(mapped[8 : 8 + length], type=dict[str, msgspec.Raw])
                header.pop("__metadata__", None)
                tensors = {name: msgspec.json.decode(raw, type=_Tensor) for name, raw in header.items()}
            except msgspec.DecodeError as error:
                raise ModelMissing(f"{path} is no safetensors file: {error}", field="model") from None
            if max((8 + length + each.data_offsets[1] for each in tensors.values()), default=0) > len(mapped):
                raise ModelMissing(f"{path} is cut off: its tensors are longer than the file", field="model")
            self._found |= {name: (tensor, mapped, 8 + length) for name, tensor in tensors.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def let_go(self) -> None:
        """Of the memory that reading has taken; what is read again comes from the disk again."""
        for mapped in self._files:
            mapped.madvise(mmap.MADV_DONTNEED)

    def rows(self, name: str) -> Rows:
        found = self._found.get(name)
        if found is None or found[0].dtype not in _KINDS:
            kind = "there is none" if found is None else f"it is of the kind {found[0].dtype}"
            raise ModelMissing(f"the model's tensor {name} cannot be used: {kind}", field="model")
        tensor, mapped, start = found
        kind = _KINDS[tensor.dtype]
        count = int(np.prod(tensor.shape, dtype=np.int64))
        begin, end = tensor.data_offsets
        if end - begin != count * np.dtype(kind).itemsize:
            raise ModelMissing(f"the model's tensor {name} is not as long as its shape says", field="model")
        raw = np.frombuffer(mapped, dtype=kind, count=count, offset=start + begin).reshape(tensor.shape)
        return Rows(raw, tensor.dtype)

    def __getitem__(self, name: str) -> Floats:
        """The whole tensor."""
        return self.rows(name).whole()
