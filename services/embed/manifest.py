"""The manifest of `embed`."""

from __future__ import annotations

from proto.manifest import GIB, VECTORS, Keep, Manifest, Pool, Store, Torch

MANIFESTS = (
    Manifest(
        name="embed",
        order=50,
        # It already has numpy.
        zygote=VECTORS,
        torch=Torch(lambda settings, gpu: gpu or settings.get("backend") == "torch", ("torch_encoder",)),
        # Weights of the largest models in common use, twice while they are cast.
        memory_limit_bytes=8 * GIB,
        # Models in ONNX Runtime's format.
        disk_limit_bytes=32 * GIB,
        modes=("cuda", "cpu"),
        startup_timeout_s=180.0,
        # A batch on a busy laptop; the event loop itself never waits for it.
        hang_timeout_s=15.0,
        # Concurrent batches allocate and free megabytes all the time; everything else shares a heap.
        heap_per_core=True,
        models_of="embed",
        stateless=True,
        rests=True,
        rests_by="unload_after_s",
        pool=Pool(one_per_gpu=True),
        stores=(Store("", Keep.DERIVED),),
    ),
)
