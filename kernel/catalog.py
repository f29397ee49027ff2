"""The services that make up the system: how each is started, and what each may touch.

A new service is one entry here, its folder under `services/`, and its operations under `proto/ops/`.  The kernel
never imports a service; it knows the name of its module.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kernel.supervisor.spec import ServiceSpec, TreeSpec, ZygoteSpec

GIB = 1024**3

# A zygote must have one thread when it forks; a BLAS that starts its threads when it is imported would make that two.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}

ZYGOTES = (
    ZygoteSpec(
        name="light",
        preload=(
            "services.runtime.main",
            "services.echo.main",
            "services.yaml.main",
            "services.graph.main",
            "services.knowledge.main",
        ),
        env=_ONE_THREAD,
    ),
    ZygoteSpec(name="vectors", preload=("services.runtime.main", "faiss", "services.retrieve.main"), env=_ONE_THREAD),
    ZygoteSpec(
        name="torch",
        preload=("services.runtime.main", "torch", "transformers", "services.embed.main"),
        env=_ONE_THREAD,
        # Loading torch takes seconds, and starting from nothing takes as many again.
        wait_s=60.0,
    ),
)


class Roots(enum.StrEnum):
    """What a service may do below the roots."""

    NONE = "none"
    READ = "read"
    WRITE = "write"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A service, and its part of the walls."""

    spec: ServiceSpec
    roots: Roots = Roots.NONE
    network: bool = False
    reads_models: bool = False
    """Whether it may read the folders in which model weights lie."""
    ops_modules: tuple[str, ...] = ()
    """Modules of operations that are not part of every system (`OPTIONAL`)."""


def gpu_present() -> bool:
    """Whether the NVIDIA driver has made its devices; asking CUDA itself would cost the kernel seconds."""
    return Path("/dev/nvidiactl").exists() and Path("/dev/nvidia0").exists()


def entries() -> tuple[Entry, ...]:
    """The services of every system, in start order."""
    return (
        Entry(spec=ServiceSpec(name="echo", module="services.echo.main", zygote="light", memory_limit_bytes=GIB // 2)),
        Entry(
            # 64 MB files are edited as trees of Python objects.
            spec=ServiceSpec(name="yaml", module="services.yaml.main", zygote="light", memory_limit_bytes=4 * GIB),
            roots=Roots.WRITE,
        ),
        Entry(
            spec=ServiceSpec(
                name="retrieve",
                module="services.retrieve.main",
                zygote="vectors",
                # A million vectors with their text are 2 GB; the page cache does not count.
                memory_limit_bytes=8 * GIB,
            )
        ),
        Entry(
            spec=ServiceSpec(
                name="embed",
                module="services.embed.main",
                zygote="torch",
                modes=("cuda", "cpu") if gpu_present() else ("cpu",),
                startup_timeout_s=180.0,
                # Weights of the largest models in common use, twice while they are cast.
                memory_limit_bytes=8 * GIB,
                # A batch of a forward pass on a busy laptop; the event loop itself never waits for it.
                hang_timeout_s=15.0,
            ),
            reads_models=True,
        ),
        Entry(spec=ServiceSpec(name="graph", module="services.graph.main", zygote="light", memory_limit_bytes=4 * GIB)),
        Entry(
            spec=ServiceSpec(
                name="knowledge",
                module="services.knowledge.main",
                zygote="light",
                memory_limit_bytes=2 * GIB,
            ),
            roots=Roots.WRITE,
        ),
    )


CONFORMANCE = Entry(
    spec=ServiceSpec(
        name="conformance", module="services.conformance.main", zygote="light", memory_limit_bytes=GIB // 2
    ),
    ops_modules=("proto.ops.conformance",),
)
"""The fixtures of the protocol's official test suite; served on request only."""


def tree(chosen: tuple[Entry, ...]) -> TreeSpec:
    """The supervision tree of these services: none of them shares state, so each is restarted alone."""
    return TreeSpec(name="linckia", children=tuple(entry.spec for entry in chosen))


def model_folders(settings: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The folders that may hold model weights: the hub's cache, and the folder that the settings name."""
    home = environment.get("HF_HOME") or str(Path("~/.cache/huggingface").expanduser())
    folders = [home, environment.get("HF_HUB_CACHE", "")]
    model = settings.get("model")
    if isinstance(model, str) and (model.startswith(("/", "~", "."))):
        folders.append(str(Path(model).expanduser().resolve()))
    return tuple(folder for folder in folders if folder)
