"""Embeds texts on the nodes of a Ray cluster with Ray Data, for `linckia reembed --cluster`.

    python -m services.cluster.reembed

It reads `proto.wire.cluster.ToEmbedding` from its standard input and writes `FromEmbedding` to its standard output. It
knows nothing of collections: the command takes pages from their outboxes, and stores what comes back. If a node is
lost, Ray Data computes its part again elsewhere; if that fails, the rest of the window is tried again."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

import msgspec
import numpy as np
import ray
import ray.data

from proto.errors import LinckiaError
from proto.wire.cluster import (
    LENGTH_BYTES,
    Connected,
    Done,
    Embedding,
    FromEmbedding,
    Resources,
    Stopped,
    Texts,
    ToEmbedding,
    Vectors,
)
from services.cluster.node import new_folder
from services.runtime.privileges import KernelGone, die_with

BLOCK = 128
"""Texts that a node embeds at once: a second or so of a processor's work, which is lost with the node."""

MAX_FAILURES = 3
"""Consecutive failures without a new vector, after which the process gives up."""

INDEX, TEXT, VECTOR, PROBLEM = "index", "text", "vector", "problem"
"""Columns of the rows."""


class Embedder:
    """The actor class of Ray Data: loads the model once, and embeds blocks of texts.

    Failures to load are reported in the rows, since Ray would try again for ever.
    """

    def __init__(self, worker: str, settings: dict[str, Any], fingerprint: str, num_gpus: float, threads: int) -> None:
        self._problem = ""
        node = ray.util.get_node_ip_address()
        try:
            self._embedder = importlib.import_module(worker).BulkEmbedder(
                settings, on_gpu=num_gpus > 0, threads=threads, folder=new_folder()
            )
            found = self._embedder.fingerprint
            if found != fingerprint:
                self._problem = (
                    f"node {node} has the model {found}, but {fingerprint} is in use here; give both the same model "
                    "(`model` in [services.embed])"
                )
        except (LinckiaError, OSError, ImportError, msgspec.ValidationError) as error:
            self._problem = f"node {node} cannot load the model: {error}"

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        count = len(batch[INDEX])
        if self._problem:
            return {INDEX: batch[INDEX], VECTOR: np.zeros((count, 1), "<f2"), PROBLEM: [self._problem] * count}
        vectors = self._embedder.embed([str(text) for text in batch[TEXT]])
        return {INDEX: batch[INDEX], VECTOR: vectors, PROBLEM: [""] * count}


class CannotEmbed(Exception):
    """The cluster cannot embed; the message says why."""


class Window:
    """The texts being embedded, and those that have come back."""

    def __init__(self, config: Embedding, texts: list[str]) -> None:
        self._config = config
        self._texts = texts
        self.left = set(range(len(texts)))
        self.failed = 0

    def run(self, out: BinaryIO) -> None:
        """Embed what is left, and send the vectors as they come. Raises CannotEmbed, RayError."""
        config, wanted = self._config, self._config.resources
        items = [{INDEX: index, TEXT: self._texts[index]} for index in sorted(self.left)]
        rows = ray.data.from_items(items, override_num_blocks=-(-len(items) // BLOCK))
        options: dict[str, Any] = {"resources": wanted.resources} if wanted.resources else {}
        if wanted.memory_bytes:
            options["memory"] = wanted.memory_bytes
        if wanted.labels:
            options["label_selector"] = wanted.labels
        threads = max(1, int(wanted.num_cpus))
        # By all resources: nodes may have joined, and the processes of the window before may still be ending.
        most = max(1, processes(wanted, ray.cluster_resources()))
        embedded = rows.map_batches(
            Embedder,
            batch_size=None,
            batch_format="numpy",
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=most),
            num_cpus=wanted.num_cpus,
            num_gpus=wanted.num_gpus or None,
            fn_constructor_args=(
                config.worker, dict(config.settings), config.fingerprint, wanted.num_gpus, threads,
            ),
            **options,
        )  # fmt: skip
        for batch in embedded.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=0):
            if problems := {str(each) for each in batch[PROBLEM]} - {""}:
                raise CannotEmbed(problems.pop())
            self._send(batch, out)

    def _send(self, batch: dict[str, Any], out: BinaryIO) -> None:
        indexes = [int(index) for index in batch[INDEX]]
        matrix = np.asarray(batch[VECTOR]).astype("<f2")
        good = np.isfinite(matrix).all(axis=1)
        kept = [(index, row.tobytes()) for index, row, fine in zip(indexes, matrix, good, strict=True) if fine]
        self.left.difference_update(indexes)
        self.failed += len(indexes) - len(kept)
        if kept:
            send(out, Vectors(indexes=[index for index, _ in kept], vectors=[row for _, row in kept]))


def processes(wanted: Resources, have: Mapping[str, float]) -> int:
    """Return how many processes with these resources fit into those of the cluster."""
    needs = {"CPU": wanted.num_cpus, "GPU": wanted.num_gpus, "memory": wanted.memory_bytes, **wanted.resources}
    # Whatever needs nothing at all is limited by the processors.
    needed = {name: count for name, count in needs.items() if count} or {"CPU": 1.0}
    return min(int(have.get(name, 0.0) / count) for name, count in needed.items())


def run(source: BinaryIO, out: BinaryIO) -> None:
    """Serve until the input ends. Raises CannotEmbed."""
    config = receive(source)
    assert isinstance(config, Embedding)
    die_with(config.parent_pid, "cluster")
    try:
        ray.init(address=config.address, namespace="linckia", log_to_driver=True, logging_level=logging.WARNING)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise CannotEmbed(f"the cluster at {config.address} cannot be reached: {_line(error)}") from None
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    if not (room := processes(config.resources, ray.available_resources())):
        raise CannotEmbed(
            f"the cluster has no room for a process that embeds: it has {_named(ray.available_resources())} free, and "
            "[cluster.services.embed] says what each reserves"
        )
    send(out, Connected(processes=room))
    while (message := receive(source)) is not None:
        assert isinstance(message, Texts)
        window = Window(config, message.texts)
        failures = 0
        while window.left:
            before = len(window.left)
            try:
                window.run(out)
            except ray.exceptions.RayError as error:
                failures = failures + 1 if len(window.left) == before else 1
                logging.warning("%d texts are tried again: %s", len(window.left), _line(error))
                if failures >= MAX_FAILURES:
                    raise CannotEmbed(f"the cluster failed {failures} times in a row: {_line(error)}") from None
        send(out, Done(failed=window.failed))


def send(out: BinaryIO, message: FromEmbedding) -> None:
    data = msgspec.msgpack.encode(message)
    out.write(len(data).to_bytes(LENGTH_BYTES) + data)
    out.flush()


def receive(source: BinaryIO) -> ToEmbedding | None:
    """Return the next message; None at the end."""
    head = source.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    found: ToEmbedding = msgspec.msgpack.decode(source.read(int.from_bytes(head)), type=ToEmbedding)
    return found


def _named(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0.0):g} {name}" for name in ("CPU", "GPU"))


def _line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


def main() -> None:
    """Run it; never returns, since a Ray driver's orderly end may wait for a head that is gone."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    # Whatever Ray prints goes to the log.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        run(sys.stdin.buffer, out)
        ray.shutdown()
    except (KernelGone, BrokenPipeError):
        pass
    except CannotEmbed as error:
        send(out, Stopped(why=str(error)))
    except BaseException as error:  # reported here, since the process ends without its usual report
        logging.exception("embedding on the cluster ends with an error")
        send(out, Stopped(why=f"a defect: {error!r}"))
    os._exit(0)


if __name__ == "__main__":
    main()
