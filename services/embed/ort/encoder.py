"""The loaded model in ONNX Runtime: token ids in, unit vectors out, on the CPU."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import onnxruntime  # type: ignore[import-untyped]  # it has no types

from proto.memory import give_memory_back
from services.embed.encoder import Vectors
from services.embed.lengths import round_up
from services.embed.ort import graph
from services.embed.ort.tensors import Tensors
from services.embed.shape import Shape, supports
from services.embed.weights import ModelFiles, Pooling
from services.runtime.models.checkpoint import ModelMissing
from services.runtime.models.device import Precision
from services.runtime.models.tokens import Ids

_TOKENS_AT_ONCE = 1024
"""More are no quicker, and take 6 KB more each between the layers of a small model."""


class OrtEncoder:
    """A model of BERT's family; nothing changes after construction, so several threads may call it.

    Args:
        threads: of one batch.

    Raises:
        ModelMissing: it is of another family, or lacks a tensor.
    """

    device = "cpu"
    bulk_is_slow = False

    def __init__(self, files: ModelFiles, *, precision: Precision = Precision.AUTO, threads: int = 1) -> None:
        if not supports(files.config):
            raise ModelMissing(
                f"{files.name} is of the family {files.family!r}, which the backend `onnx` has not; set `backend` to "
                "`torch`, or take a model of BERT's or RoBERTa's family",
                field="model",
            )
        self.precision: Precision = Precision.INT8 if precision is Precision.AUTO else precision
        tensors = Tensors(files.weights)
        shape = Shape.of(files.config, tensors)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # What a long text took would be held for ever.
        options.enable_cpu_mem_arena = False
        # 3: errors. What it warns of is nothing that a user could change.
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            graph.bert(tensors, shape, self.precision), options, providers=["CPUExecutionProvider"]
        )
        self._pooling = files.pooling
        self.width = shape.hidden
        table = f"{shape.prefix}embeddings."
        self._words = tensors.rows(f"{table}word_embeddings.weight")
        # Every token is of type 0, so that row is added to the positions once.
        positions = tensors[f"{table}position_embeddings.weight"] + tensors[f"{table}token_type_embeddings.weight"][0]
        self._positions = np.ascontiguousarray(positions[shape.first_position :])
        tensors.let_go()
        give_memory_back()

    def prepare_for_bulk(self, calibration: Sequence[Ids], check: Sequence[Ids]) -> None:
        """It is as fast as it gets from the start."""

    def compute(self, sequences: Sequence[Ids]) -> Vectors:
        """Unit vectors of the sequences, in their order."""
        vectors = np.empty((len(sequences), self.width), dtype=np.float32)
        for block in _blocks(sequences):
            states, lengths = self._states([sequences[index] for index in block])
            vectors[block] = _unit(pool(states, lengths, self._pooling))
        return vectors

    def token_vectors(self, sequences: Sequence[Ids]) -> list[Vectors]:
        """Of each sequence the unit vectors of its tokens, shape (tokens, dimensions), without the special ones."""
        found: list[Vectors] = [np.empty((0, self.width), dtype=np.float32)] * len(sequences)
        for block in _blocks(sequences):
            states, lengths = self._states([sequences[index] for index in block])
            for index, each, length in zip(block, states, lengths, strict=True):
                found[index] = _unit(each[1 : length - 1] if length > 2 else each[:length])
        return found

    def warm_up(self, max_tokens: int) -> None:
        """Real forward passes, a short one and the longest."""
        for length in (8, max_tokens):
            self.compute([np.ones(min(length, max_tokens), dtype=np.int32)])

    def recover(self, error: Exception) -> bool:
        """Whatever a batch failed of, the next one finds everything as it was."""
        gc.collect()
        return True

    def _states(self, sequences: Sequence[Ids]) -> tuple[Vectors, npt.NDArray[np.int32]]:
        """The last hidden states, shape (count, longest, hidden), and the lengths, shape (count)."""
        lengths = np.array([len(ids) for ids in sequences], dtype=np.int32)
        longest = int(lengths.max())
        ids = np.zeros((len(sequences), longest), dtype=np.int64)
        for row, sequence in zip(ids, sequences, strict=True):
            row[: len(sequence)] = sequence
        embeddings = self._words[ids] + self._positions[:longest]
        (states,) = self._session.run(["states"], {"embeddings": embeddings, "lengths": lengths})
        return states, lengths


def _blocks(sequences: Sequence[Ids]) -> Iterator[list[int]]:
    """The numbers of the sequences, those of nearly the same length together, some at a time."""
    order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
    for length, like in itertools.groupby(order, key=lambda index: round_up(len(sequences[index]))):
        left = list(like)
        most = max(1, _TOKENS_AT_ONCE // max(1, length))
        for start in range(0, len(left), most):
            yield left[start : start + most]


def pool(states: Vectors, lengths: npt.NDArray[np.int32], pooling: Pooling) -> Vectors:
    """One vector for each sequence: (count, length, hidden) to (count, hidden)."""
    if pooling is Pooling.CLS:
        first: Vectors = states[:, 0]
        return first
    if pooling is Pooling.LAST_TOKEN:
        last: Vectors = states[np.arange(len(lengths)), lengths - 1]
        return last
    real = (np.arange(states.shape[1]) < lengths[:, None])[:, :, None]
    if pooling is Pooling.MAX:
        largest: Vectors = np.where(real, states, -np.inf).max(axis=1).astype(np.float32)
        return largest
    # Neither the number nor its square root matters to a vector that is made a unit.
    total: Vectors = np.where(real, states, 0).sum(axis=1, dtype=np.float32)
    return total


def _unit(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    units: Vectors = vectors / np.maximum(lengths, 1e-12)
    return units
