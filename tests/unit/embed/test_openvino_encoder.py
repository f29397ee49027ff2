"""OpenVINO computes what torch does, for every family, length and batch."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from proto.errors import OperationError
from proto.host import extras
from services.embed.backends import Backend, chosen, open_encoder
from services.embed.openvino_encoder import OpenVinoEncoder
from services.embed.weights import ModelFiles
from services.shared.models.checkpoint import Ids
from services.shared.models.device import Precision
from tests.unit.embed.samples import FAMILIES, batch, by_torch, small, worst_cosine


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "settings"), FAMILIES)
def test_every_family_agrees_with_torch(tmp_path: Path, kind: str, settings: dict[str, object]) -> None:
    files = small(tmp_path / "model", kind, **settings)
    given = batch(1, 2, 7, 8, 40)
    ours, theirs = OpenVinoEncoder(files, precision=Precision.FP32), by_torch(files)
    assert worst_cosine(ours.compute(given), theirs.compute(given)) > 0.9999
    for left, right in zip(ours.token_vectors(given), theirs.token_vectors(given), strict=True):
        assert left.shape == right.shape
        assert worst_cosine(left, right) > 0.999


def test_a_texts_vector_does_not_depend_on_its_batch_nor_on_other_threads(
    packaged: ModelFiles, sequences: list[Ids]
) -> None:
    encoder = OpenVinoEncoder(packaged)
    assert encoder.precision is (Precision.BF16 if extras.amx_present() else Precision.FP32)
    alone = np.concatenate([encoder.compute([ids]) for ids in sequences])
    found: list[float] = []
    threads = [
        threading.Thread(target=lambda: found.append(worst_cosine(encoder.compute(sequences), alone))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert min(found) > 0.999


def test_it_is_chosen_where_it_helps_and_else_refused_with_what_to_do(
    packaged: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def automatic(precision: Precision = Precision.AUTO) -> Backend:
        return chosen(packaged, Backend.AUTO, device="cpu", precision=precision, folder=tmp_path)

    monkeypatch.setattr(extras, "amx_present", lambda: True)
    assert automatic() is Backend.OPENVINO
    assert automatic(Precision.BF16) is Backend.OPENVINO
    assert automatic(Precision.INT8) is Backend.ONNX
    monkeypatch.setattr(extras, "amx_present", lambda: False)
    assert automatic() is Backend.ONNX
    monkeypatch.setattr(extras, "is_installed", lambda extra: extra != extras.OPENVINO)
    monkeypatch.setattr(extras, "amx_present", lambda: True)
    assert automatic() is Backend.ONNX
    with pytest.raises(OperationError, match="LINCKIA_EXTRA=openvino"):
        open_encoder(
            packaged, Backend.OPENVINO, device="cpu", precision=Precision.AUTO, threads=1, folder=tmp_path
        )  # fmt: skip
