"""The manifest of `rerank`."""

from __future__ import annotations

from collections.abc import Mapping

from proto.host import models
from proto.manifest import GIB, VECTORS, Keep, Manifest, Pool, Store, Torch


def has_model(settings: Mapping[str, object], gpu: bool = False) -> bool:
    """True if the service will load a cross-encoder with these settings."""
    model = settings.get("model", "auto")
    return model != "none" and (model != "auto" or bool(models.cross_encoder()))


MANIFESTS = (
    Manifest(
        name="rerank",
        order=60,
        zygote=VECTORS,
        torch=Torch(has_model, ("model", "judge")),
        # The limits of `embed`.
        memory_limit_bytes=8 * GIB,
        disk_limit_bytes=32 * GIB,
        modes=("cuda", "cpu"),
        startup_timeout_s=180.0,
        hang_timeout_s=15.0,
        heap_per_core=True,
        models_of="rerank",
        stateless=True,
        rests=True,
        rests_by="unload_after_s",
        # A search waits only briefly for a model to load, so a loaded one stays.
        rests_while=("model", "none"),
        pool=Pool(one_per_gpu=True),
        stores=(Store("", Keep.DERIVED),),
    ),
)
