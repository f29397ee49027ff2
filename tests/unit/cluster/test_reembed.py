"""What a node does for `linckia reembed --cluster`, in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from proto.ops.embed import TextKind
from proto.wire.cluster import Resources
from services.embed import weights
from services.embed.bulk import BulkEmbedder
from services.embed.main import load
from services.embed.serving import EmbedSettings
from services.shared.models.checkpoint import Ids

WORKER = "services.embed.bulk"
TEXTS = ["zebra", "a much longer text about okapis and rivers " * 60, "", "stone"] * 5

pytest.importorskip(weights.PACKAGED[0], reason="the package with the model's weights is not installed")


@pytest.mark.slow
def test_a_node_makes_the_vectors_that_embed_makes(tmp_path: Path) -> None:
    embedder = BulkEmbedder({}, on_gpu=False, threads=1, folder=tmp_path)
    loaded = load(EmbedSettings(), "cpu", tmp_path)
    expected = loaded.encoder.compute(loaded.tokenizer.encode(TEXTS, TextKind.PASSAGE).ids)
    found = embedder.embed(TEXTS)
    assert embedder.fingerprint == loaded.fingerprint
    assert found.dtype == np.dtype("<f2")
    assert (found.astype(np.float32) * expected).sum(axis=1).min() > 0.999


@pytest.mark.slow
def test_only_the_text_on_which_the_model_fails_has_no_vector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = BulkEmbedder({}, on_gpu=False, threads=1, folder=tmp_path)
    encoder = embedder._loaded.encoder
    compute = encoder.compute

    def fails(sequences: list[Ids]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        if any(len(each) > 100 for each in sequences):
            raise ValueError("too long")
        return compute(sequences)

    monkeypatch.setattr(encoder, "compute", fails)
    monkeypatch.setattr(encoder, "recover", lambda error: True)
    found = embedder.embed(TEXTS[:4])
    assert np.isfinite(found).all(axis=1).tolist() == [True, False, True, True]


@pytest.mark.slow
def test_a_node_with_another_model_says_so_instead_of_embedding() -> None:
    pytest.importorskip("pyarrow", reason="needs linckia[ray-data]")
    pytest.importorskip("ray", reason="needs linckia[ray-data]")
    from services.cluster.reembed import PROBLEM, Embedder

    batch = {"index": [0], "text": ["zebra"]}
    (problem,) = Embedder(WORKER, {}, "another", 0.0, 1)(batch)[PROBLEM]
    assert "but another is in use here" in problem
    (problem,) = Embedder(WORKER, {"model": "/nowhere"}, "another", 0.0, 1)(batch)[PROBLEM]
    assert "cannot load the model" in problem


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (Resources(), 4),
        (Resources(num_cpus=3), 1),
        (Resources(num_cpus=5), 0),
        (Resources(num_cpus=1, num_gpus=0.5), 2),
        (Resources(num_cpus=0), 4),
        (Resources(num_cpus=0, resources={"scanner": 1}), 0),
    ],
    ids=str,
)
def test_as_many_processes_as_fit(wanted: Resources, count: int) -> None:
    pytest.importorskip("pyarrow", reason="needs linckia[ray-data]")
    pytest.importorskip("ray", reason="needs linckia[ray-data]")
    from services.cluster.reembed import processes

    assert processes(wanted, {"CPU": 4.0, "GPU": 1.0}) == count
