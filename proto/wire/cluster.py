"""Messages between the kernel and its cluster driver, the process that speaks with Ray.

They are msgpack on a SEQPACKET socket, one message per packet. The kernel imports nothing of Ray: if the driver or the
cluster dies, the kernel only sees the driver's end.

A service is placed on a node in two steps. `Prepare` reserves the resources and yields certificates for one link; the
kernel then listens with them, and `Start` runs the service, which is connected to that address.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from proto.json_types import JsonObject
from proto.wire.launch import LaunchConfig

MAX_PACKET_BYTES = 1024 * 1024
"""Maximum size of a message. Settings take a few kilobytes."""


class Resources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[cluster.services.NAME]`: what a process of the service reserves on its node."""

    num_cpus: Annotated[float, Meta(ge=0)] = 1.0
    """Processors."""
    num_gpus: Annotated[float, Meta(ge=0)] = 0.0
    """GPUs, or a fraction of one. With any, a service that can use CUDA does."""
    memory_bytes: Annotated[int, Meta(ge=0)] = 0
    """Memory; 0: not reserved."""
    resources: dict[str, Annotated[float, Meta(gt=0)]] = {}
    """Custom resources of the node."""
    labels: dict[str, str] = {}
    """Labels that the node must have."""


class DriverConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster's address as Ray knows it, this machine's for the nodes (empty: as Ray knows it), the secret of the
    driver's other clients, and the pid that must be its parent."""

    address: str
    host: str
    secret: str
    parent_pid: int


def socket_of(secret: str) -> str:
    """Return the abstract address at which the driver accepts adapters of mounted servers."""
    return f"\0linckia-cluster-{hashlib.sha256(secret.encode()).hexdigest()[:32]}"


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """The first message of a client for `service`. What it has placed ends with its connection."""

    secret: str
    service: str


class Prepare(msgspec.Struct, frozen=True, kw_only=True, tag="prepare"):
    """Reserve resources on a node, but none of those with the ids `avoid`, which Ray may still take for alive.

    `name` is the name in the certificate of the service's end of the link.
    """

    id: int
    name: str
    resources: Resources
    avoid: list[str] = []


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Run the service of a prepared id, connected to `url`, with `env` added to its environment."""

    id: int
    launch: LaunchConfig
    env: dict[str, str]
    url: str


class Run(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """Run the program of a prepared id, connected to `url`; the module on the node knows what `program` is."""

    id: int
    module: str
    program: bytes
    url: str


class Silent(msgspec.Struct, frozen=True, kw_only=True, tag="silent"):
    """The link of this id broke: nothing is placed on its node for a while. Never answered."""

    id: int


class Signal(msgspec.Struct, frozen=True, kw_only=True, tag="signal"):
    """Send the service's process a signal."""

    id: int
    number: int


class Kill(msgspec.Struct, frozen=True, kw_only=True, tag="kill"):
    """End the service's process and release its resources. Never answered."""

    id: int


ToDriver: TypeAlias = Prepare | Start | Run | Silent | Signal | Kill


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the cluster that is alive, with all its resources. `runs` are the services of other clients on it."""

    id: str
    name: str
    runs: list[str] = []
    num_cpus: float
    num_gpus: float
    memory_bytes: int


class Nodes(msgspec.Struct, frozen=True, kw_only=True, tag="nodes"):
    """The nodes that are alive, and the services of other clients that could start there now; sent every second."""

    nodes: list[Node]
    ready: list[str] = []


class Prepared(msgspec.Struct, frozen=True, kw_only=True, tag="prepared"):
    """Resources are reserved on the node with the id `node`, for which this machine is `host`.

    The rest is PEM: this end's certificate and key, and the authority that signed both ends' certificates.
    """

    id: int
    node: str
    node_name: str
    host: str
    certificate: str
    key: str
    authority: str


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """The service runs as `pid` on its node, and its end of the link is connected."""

    id: int
    pid: int


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The service could not be prepared or started; nothing of it is left."""

    id: int
    error: str


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """A started service ended, by `code` or `signal`. Both are None if its node was lost."""

    id: int
    code: int | None = None
    signal: int | None = None
    last_words: str = ""


class Lost(msgspec.Struct, frozen=True, kw_only=True, tag="lost"):
    """The cluster cannot be reached; the driver ends."""

    why: str


FromDriver: TypeAlias = Nodes | Prepared | Started | Failed | Ended | Lost


# `linckia reembed --cluster`: messages between the command and the process that feeds texts to Ray Data. They are
# msgpack on two pipes, each after its length.

LENGTH_BYTES = 4


class Embedding(msgspec.Struct, frozen=True, kw_only=True, tag="embedding"):
    """The first message: the cluster's address, how a node embeds, and what each process there reserves.

    `worker` is the module with the class `BulkEmbedder`, `settings` are those of `embed`. All nodes must have the model
    with this fingerprint.
    """

    address: str
    worker: str
    settings: JsonObject
    fingerprint: str
    resources: Resources
    parent_pid: int


class Texts(msgspec.Struct, frozen=True, kw_only=True, tag="texts"):
    """Texts to embed; the next ones may follow once these are `Done`."""

    texts: list[str]


ToEmbedding: TypeAlias = Embedding | Texts


class Connected(msgspec.Struct, frozen=True, kw_only=True, tag="connected"):
    """The cluster is connected, and has room for so many processes."""

    processes: int


class Vectors(msgspec.Struct, frozen=True, kw_only=True, tag="vectors"):
    """Vectors (float16, little-endian) of the texts with these indexes."""

    indexes: list[int]
    vectors: list[bytes]


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """All vectors of the texts were sent, except for `failed` texts, on which the model failed."""

    failed: int


class Stopped(msgspec.Struct, frozen=True, kw_only=True, tag="stopped"):
    """The process ends, because it cannot go on."""

    why: str


FromEmbedding: TypeAlias = Connected | Vectors | Done | Stopped
