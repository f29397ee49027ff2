"""The model in ONNX Runtime: token ids to unit vectors on the CPU, in 8 bits if these agree with 32.

Its graph is built on first use, with numpy from the checkpoint (`services.embed.graph`), and stored in the service's
folder; torch is never loaded. Before 8 bits are used, their vectors of various texts are compared with those in 32
bits, and both are timed: a processor without instructions for products of bytes is slower with them, and one without
VNNI sums them incorrectly. The results are stored with the graph; if either is damaged, or belongs to another model,
release or processor, both are rebuilt.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnxruntime  # type: ignore[import-untyped]  # it has no types

from proto.host.durable import replace_file
from proto.ops.embed import TextKind
from services.embed.encoder import Encoder, Vectors, pool, unit
from services.embed.samples import COMPARED, SEEN
from services.embed.tensors import Tensors, blocks
from services.embed.tokens import TextTokenizer
from services.embed.weights import MASK, STATES, WORDS, ModelFiles, fingerprint
from services.shared.models.checkpoint import Ids
from services.shared.models.device import Precision, processor

_ROUNDS = 3

FORMAT = 1
"""Format of the graph and its record; those of other formats are rebuilt."""

LEAST_MEAN, LEAST = 0.998, 0.99
"""Cosine between vectors in 8 and in 32 bits that counts as agreement: the mean, and that of the worst text."""

_log = logging.getLogger("linckia.models")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The results of building a graph.

    `agreement` is the worst cosine between 8 and 32 bits, and `tokens_per_s` the speed of each precision tried.
    """

    format: int
    precision: Precision
    digest: str
    agreement: float | None = None
    tokens_per_s: dict[str, float] = {}


class OnnxEncoder(Encoder):
    """A model in this process. Immutable after construction, so several threads may call it.

    Args:
        folder: holds the graph.
        precision: int8, fp32, or `auto`: the faster one, int8 only if it agrees.
        threads: number of threads per batch.

    Raises:
        ModelMissing: it is damaged, or of an unsupported family.
    """

    backend = "onnx"
    device = "cpu"

    def __init__(
        self, files: ModelFiles, folder: Path, *, precision: Precision = Precision.AUTO, threads: int = 1
    ) -> None:
        self.pooling = files.pooling
        self._graphs = Graphs(files, threads)
        self.width = self._graphs.width
        # Never open a graph of another model, processor, or release of the code that builds and reads it.
        name = f"{fingerprint(files)}-{precision}-{onnxruntime.__version__}-{processor()}".replace(":", "-")
        found = load_stored(folder / f"{name}.json")
        if found is None:
            found = self._graphs.make(folder / f"{name}.json", precision)
        self.record, graph = found
        self.precision = self.record.precision
        self._session = self._graphs.open(graph)

    def states(self, sequences: Sequence[Ids]) -> list[Vectors]:
        return self._graphs.states(self._session, sequences)

    def recover(self, error: Exception) -> bool:
        """A failed batch does not affect the next one."""
        gc.collect()
        return True


def load_stored(path: Path) -> tuple[Record, bytes] | None:
    """Return the record at `path` and its graph, or None if they are missing or damaged."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=Record)
        graph = path.with_suffix(".graph").read_bytes()
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        _log.warning("cannot read %s, rebuilding it: %s", path, error)
        return None
    if record.format != FORMAT or hashlib.sha256(graph).hexdigest() != record.digest:
        _log.warning("%s is damaged, rebuilding it", path.with_suffix(".graph"))
        return None
    return record, graph


class Graphs:
    """Builds, compares and runs the graphs of a model.

    Raises:
        ModelMissing: its weights are damaged.
    """

    def __init__(self, files: ModelFiles, threads: int) -> None:
        self._files, self._threads = files, threads
        self._tensors = Tensors(files)
        self.width = self._tensors.width

    def open(self, graph: bytes) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        # The arena would keep the memory of the longest text forever.
        options.enable_cpu_mem_arena = False
        # 3 means errors: a user could not act on any of its warnings.
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def states(self, session: onnxruntime.InferenceSession, sequences: Sequence[Ids]) -> list[Vectors]:
        """See `Encoder.states`."""
        found: list[Vectors] = []
        for block in blocks(sequences):
            words, mask = self._tensors.inputs(block)
            (states,) = session.run([STATES], {WORDS: words, MASK: mask})
            found += [each[: len(ids)] for each, ids in zip(states, block, strict=True)]
        return found

    def make(self, path: Path, precision: Precision) -> tuple[Record, bytes]:
        """Build the graph for a precision, and store it with its measurements; `auto` uses the faster one that
        agrees."""
        from services.embed import graph

        _log.info("preparing %s for this processor, once", self._files.name)
        tokenizer = TextTokenizer(self._files)
        seen, compared = (sorted(tokenizer.encode(texts, TextKind.PASSAGE).ids, key=len) for texts in (SEEN, COMPARED))
        take = self._tensors.take
        exact = graph.build(self._files.config, take)
        session = self.open(exact)
        best, chosen, agreement = exact, Precision.FP32, None
        speeds = {Precision.FP32: self._tokens_per_s(session, compared)}
        if precision is not Precision.FP32:
            bytes_ = graph.build(self._files.config, take, self._ranges(session, seen))
            reduced = self.open(bytes_)
            cosines = (self._vectors(reduced, compared) * self._vectors(session, compared)).sum(axis=1)
            agreement = float(cosines.min())
            speeds[Precision.INT8] = self._tokens_per_s(reduced, compared)
            agrees = agreement >= LEAST and float(cosines.mean()) >= LEAST_MEAN
            if precision is Precision.INT8 or (agrees and speeds[Precision.INT8] > speeds[Precision.FP32]):
                best, chosen = bytes_, Precision.INT8
        found = Record(
            format=FORMAT,
            precision=chosen,
            digest=hashlib.sha256(best).hexdigest(),
            agreement=agreement,
            tokens_per_s={name.value: round(speed) for name, speed in speeds.items()},
        )
        # Keep the previous one: while the vectors of a new model are computed, those of the old one are searched.
        for old in sorted(path.parent.glob("*.graph"), key=lambda each: each.stat().st_mtime)[:-1]:
            old.with_suffix(".json").unlink(missing_ok=True)
            old.unlink()
        replace_file(path.with_suffix(".graph"), best)
        replace_file(path, msgspec.json.encode(found))
        _log.info("%s: %s", self._files.name, found)
        return found, best

    def _ranges(self, session: onnxruntime.InferenceSession, texts: Sequence[Ids]) -> list[tuple[Vectors, Vectors]]:
        """Return the ranges per channel of each uneven product's input: see `graph.Ranges`."""
        names = [output.name for output in session.get_outputs() if output.name != STATES]
        seen = [session.run(names, dict(zip((WORDS, MASK), self._tensors.inputs([ids]), strict=True))) for ids in texts]
        stacked = [np.concatenate([rows[0] for rows in each]) for each in zip(*seen, strict=True)]
        return [(rows.min(axis=0), rows.max(axis=0)) for rows in stacked]

    def _vectors(self, session: onnxruntime.InferenceSession, texts: Sequence[Ids]) -> Vectors:
        return unit(np.stack([pool(states, self._files.pooling) for states in self.states(session, texts)]))

    def _tokens_per_s(self, session: onnxruntime.InferenceSession, texts: Sequence[Ids]) -> float:
        """Return the best of a few rounds: other work on the machine can only slow them down."""
        best_s = math.inf
        for _ in range(_ROUNDS):
            began = time.perf_counter()
            self.states(session, texts)
            best_s = min(best_s, time.perf_counter() - began)
        return sum(map(len, texts)) / best_s
