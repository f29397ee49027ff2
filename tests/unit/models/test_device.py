"""Which errors of a device are survived: memory that ran out is, anything else of a GPU ends the process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from services.shared.models.batcher import ModelLost, Rows, compute_isolating
from services.shared.models.device import survives


@pytest.mark.parametrize(
    ("error", "device", "expected"),
    [
        (MemoryError(), "cpu", True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "cpu", True),
        (ValueError("a text at fault"), "cpu", True),
        ("OutOfMemoryError", "cuda", True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "cuda", False),
        ("AcceleratorError", "cuda", False),
        (ValueError("a text at fault"), "cuda", True),
    ],
)
def test_which_device_errors_are_survivable(
    monkeypatch: pytest.MonkeyPatch, error: Exception | str, device: str, expected: bool
) -> None:
    import torch

    raised: Exception = getattr(torch, error)("CUDA error") if isinstance(error, str) else error
    emptied: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    assert survives(raised, device) is expected
    assert bool(emptied) is (device == "cuda" and isinstance(raised, torch.OutOfMemoryError))


class Small:
    """A model with room for three texts at once."""

    width = 1
    device = "cuda"
    has_own_threads = False

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.sizes: list[int] = []

    def compute(self, texts: Sequence[str]) -> Rows:
        self.sizes.append(len(texts))
        if len(texts) > 3:
            raise self.error
        return np.array([[len(text)] for text in texts], dtype=np.float32)

    def recover(self, error: Exception) -> bool:
        return survives(error, self.device)


@pytest.mark.slow
def test_a_batch_that_is_too_large_for_the_memory_is_computed_in_parts() -> None:
    import torch

    model = Small(torch.OutOfMemoryError("CUDA out of memory"))
    texts = ["x" * n for n in range(1, 11)]
    outcomes = compute_isolating(model, texts)
    assert [float(each[0]) for each in outcomes if not isinstance(each, Exception)] == [float(n) for n in range(1, 11)]
    assert max(size for size in model.sizes if size <= 3) > 1


def test_a_device_that_failed_computes_nothing_more() -> None:
    model = Small(RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(ModelLost):
        compute_isolating(model, ["x"] * 8)
    assert model.sizes == [8]
