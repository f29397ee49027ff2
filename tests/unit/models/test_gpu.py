"""Which models fit into a GPU's memory, by arithmetic, and how a GPU is shown, by fake readings."""

from __future__ import annotations

import json
import math
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
import trio

from kernel.cli.status import _note
from proto.errors import OperationError
from proto.host.gpu import GPU, GpuFigures
from proto.ops.kernel import ServiceStatus
from services.runtime.handlers import Environment
from services.shared.models import gpu
from services.shared.models.checkpoint import parameters_of
from services.shared.models.device import GIB, Precision, bytes_of, fitting, needed_bytes, resolve_precision

FIGURES = GpuFigures(name="NVIDIA L4", number=1, used_bytes=3 * GIB, total_bytes=24 * GIB, utilization=0.57, celsius=61)

SMALL, LARGE = 33_000_000, 8_000_000_000


@pytest.mark.parametrize(
    ("asked", "parameters", "free_gib", "has_bf16", "expected"),
    [
        (Precision.AUTO, SMALL, 4, True, Precision.BF16),
        (Precision.AUTO, LARGE, 24, True, Precision.BF16),
        # Cards before Ampere have no bf16: fp32 if there is room for it.
        (Precision.AUTO, SMALL, 4, False, Precision.FP32),
        (Precision.AUTO, LARGE, 40, False, Precision.FP32),
        (Precision.AUTO, LARGE, 24, False, Precision.FP16),
        (Precision.FP32, LARGE, 40, True, Precision.FP32),
        (Precision.FP16, SMALL, 4, True, Precision.FP16),
    ],
)
def test_precision_is_the_fastest_exact_one_that_fits(
    asked: Precision, parameters: int, free_gib: int, has_bf16: bool, expected: Precision
) -> None:
    assert fitting(asked, parameters, free_gib * GIB, has_bf16=has_bf16) is expected


@pytest.mark.parametrize(("asked", "free_gib"), [(Precision.AUTO, 12), (Precision.FP32, 24)])
def test_model_that_does_not_fit_is_refused_with_what_it_needs(asked: Precision, free_gib: int) -> None:
    needed = needed_bytes(LARGE, Precision.FP32 if asked is Precision.FP32 else Precision.BF16) / GIB
    with pytest.raises(OperationError, match=rf"needs {needed:.1f} GiB in .*, and the GPU has {free_gib}\.0 GiB free"):
        fitting(asked, LARGE, free_gib * GIB, has_bf16=True)


@pytest.mark.slow
def test_fp16_is_refused_on_a_cpu() -> None:
    with pytest.raises(OperationError, match="fp16 is only available on GPUs"):
        resolve_precision(Precision.FP16, "cpu")


def test_batches_take_at_most_half_of_the_free_memory() -> None:
    base = {"hidden_size": 768, "intermediate_size": 3072}
    tokens = gpu.affordable_tokens(8 * GIB, base, bytes_of(Precision.BF16))
    assert tokens * (8 * 768 + 2 * 3072) * 2 <= 4 * GIB
    assert tokens > 65536
    large = {"hidden_size": 4096, "intermediate_size": 12288}
    assert 4096 < gpu.affordable_tokens(2 * GIB, large, bytes_of(Precision.BF16)) < 65536
    in_fp32, in_bf16 = (gpu.affordable_tokens(2 * GIB, large, bytes_each) for bytes_each in (4, 2))
    assert in_bf16 == pytest.approx(2 * in_fp32, abs=2)


def test_parameters_are_counted_without_reading_weights(tmp_path: Path) -> None:
    for name, shapes in (("a", [(3, 4), (5,)]), ("b", [(2, 2, 2)])):
        tensors = {
            f"{name}{n}": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * math.prod(shape)]}
            for n, shape in enumerate(shapes)
        }
        text = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
        (tmp_path / name).write_bytes(struct.pack("<Q", len(text)) + text)
    assert parameters_of([tmp_path / "a", tmp_path / "b"]) == 25


class Shown:
    """The part of `Environment` that shows values in `status`."""

    def __init__(self) -> None:
        self.shown: dict[str, str] = {}
        self.times = 0

    def info(self, **values: str) -> None:
        self.shown.update(values)
        self.times += 1


async def watched(read: Callable[[], GpuFigures], seconds: float) -> Shown:
    shown = Shown()
    with trio.move_on_after(seconds):
        await gpu.watch(cast("Environment", shown), read)
    return shown


async def test_figures_are_shown_and_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "EVERY_S", 0.01)
    scope = trio.CancelScope()
    readings = 0

    def read() -> GpuFigures:
        nonlocal readings
        readings += 1
        if readings == 4:
            trio.from_thread.run_sync(scope.cancel)
        return FIGURES

    shown = Shown()
    with scope:
        await gpu.watch(cast("Environment", shown), read)
    assert GpuFigures.of(shown.shown) == FIGURES
    assert shown.times >= 3


async def test_driver_that_hangs_costs_only_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "HANGS_AFTER_S", 0.05)
    over = threading.Event()

    def hang() -> GpuFigures:
        over.wait(30)
        return FIGURES

    shown = await watched(hang, 20)
    over.set()
    assert shown.shown[GPU] == f"unknown: {gpu.NO_ANSWER}"
    assert GpuFigures.of(shown.shown) is None


async def test_library_that_is_missing_costs_only_the_figures() -> None:
    def fail() -> GpuFigures:
        raise ImportError("no pynvml")

    assert (await watched(fail, 20)).shown[GPU] == "unknown: ImportError: no pynvml"


@pytest.mark.slow
def test_figures_come_from_nvidias_library(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml
    import torch

    asked: list[str] = []

    def handle(uuid: str) -> int:
        asked.append(uuid)
        return 7

    fakes: dict[str, Callable[..., object]] = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": handle,
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=3 * GIB, total=24 * GIB),
        "nvmlDeviceGetName": lambda _: "NVIDIA L4",
        "nvmlDeviceGetIndex": lambda _: 1,
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=57),
        "nvmlDeviceGetTemperature": lambda _, kind: 61,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(pynvml, name, fake)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="1234"))
    read = gpu.opened()
    assert read() == FIGURES
    assert asked == ["GPU-1234"]

    def refuse(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", refuse)
    assert read().utilization is None


def served(info: dict[str, str]) -> ServiceStatus:
    return ServiceStatus(name="embed", state="ready", info=info)


def test_status_shows_figures_in_words() -> None:
    note = _note(served({"model": "m", GPU: msgspec.json.encode(FIGURES).decode()}))
    assert note == "model: m; GPU 1 NVIDIA L4: 3.0 GiB of 24.0 GiB, 57% busy, 61 °C"
    assert _note(served({GPU: "unknown: why"})) == "gpu: unknown: why"
