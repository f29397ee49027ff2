"""Which deaths of kernels end a session over stdio."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel.cli import stdio
from proto.control.client import KernelGone
from proto.control.commands import Failed


class PlayedKernels:
    """Each serves the session for the next of `lives`, seconds, and dies; after the last the client leaves."""

    def __init__(self, lives: list[float]) -> None:
        self.lives: Iterator[float] = iter(lives)
        self.now = 0.0

    def join(self, *_: object) -> tuple[Any, dict[str, Any]]:
        return self, {"roots": [], "ephemeral": True}

    def wait_detached(self) -> str:
        if (life := next(self.lives, None)) is None:
            return "client"
        self.now += life
        raise KernelGone("died")

    def __enter__(self) -> PlayedKernels:
        return self

    def __exit__(self, *_: object) -> None: ...


def serve(lives: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kernels = PlayedKernels(lives)
    monkeypatch.setattr(stdio, "join", kernels.join)
    monkeypatch.setattr(stdio, "time", SimpleNamespace(monotonic=lambda: kernels.now))
    stdio._serve(tmp_path, [], argparse.Namespace())


def test_a_session_outlives_any_number_of_kernels_that_served_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve([4.0] * 50 + [0.1] * stdio.EARLY_DEATHS + [4.0] + [0.1] * stdio.EARLY_DEATHS, monkeypatch, tmp_path)


def test_a_session_that_may_kill_kernels_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(Failed, match=f"{stdio.EARLY_DEATHS + 1} kernels in a row have died within 3 s"):
        serve([4.0, *[0.1] * 50], monkeypatch, tmp_path)


def test_one_client_at_a_time_starts_a_kernel(tmp_path: Path) -> None:
    with stdio._Turn(tmp_path) as first:
        assert first.take()
        assert first.take()
        with stdio._Turn(tmp_path) as second:
            assert not second.take()
    with stdio._Turn(tmp_path) as third:
        assert third.take()


def test_a_client_that_cannot_know_whose_turn_it_is_starts_a_kernel(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with stdio._Turn(tmp_path / "file") as turn:
        assert turn.take()
