"""How the model is chosen, which files are refused, and what the fingerprint stands for."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from services.embed import weights
from services.embed.weights import Pooling, fingerprint, resolve
from services.shared.models.checkpoint import ModelMissing

TOKENIZER = b'{"model": {}}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    config = {"model_type": "bert", "hidden_size": 8, "max_position_embeddings": 64}
    (model / "config.json").write_bytes(msgspec.json.encode(config))
    (model / "tokenizer.json").write_bytes(TOKENIZER)
    save_file({"a": np.zeros(4, np.float32)}, model / "model.safetensors")
    return model


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def cached(hub: Path, model: str, source: Path, *, commit: str = "abc123") -> Path:
    repository = hub / ("models--" + model.replace("/", "--"))
    snapshot = repository / "snapshots" / commit
    shutil.copytree(source, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return snapshot


def test_auto_takes_the_preferred_model_where_it_is_cached(folder: Path, empty_cache: Path) -> None:
    snapshot = cached(empty_cache, weights.PREFERRED, folder)
    files = resolve()
    assert (files.name, files.folder) == (weights.PREFERRED, snapshot)
    assert files.query_prefix.startswith("Represent this sentence")
    assert files.passage_prefix == ""


def test_auto_takes_the_packaged_model_otherwise() -> None:
    pytest.importorskip(weights.PACKAGED[0], reason="the package with the model's weights is not installed")
    files = resolve()
    assert files.name == weights.PACKAGED[1]
    assert (files.max_tokens, files.pooling) == (256, Pooling.MEAN)


def test_an_id_is_found_in_the_cache_and_a_folder_where_it_lies(folder: Path, empty_cache: Path) -> None:
    cached(empty_cache, "intfloat/e5-small-v2", folder)
    files = resolve("intfloat/e5-small-v2")
    assert (files.query_prefix, files.passage_prefix) == ("query: ", "passage: ")
    assert resolve(str(folder)).folder == folder


def test_a_missing_model_is_an_error_at_once_without_any_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(ModelMissing, match="hf download some/model") as caught:
        resolve("some/model")
    assert caught.value.failure.field == "model"
    with pytest.raises(ModelMissing, match="does not exist"):
        resolve("/nowhere/at/all")


def test_a_pickle_is_refused_with_the_remedy(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(ModelMissing, match=r"pickle.*model\.safetensors"):
        resolve(str(folder))


def test_shards_are_found_and_a_missing_one_is_named(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (folder / "model.safetensors.index.json").write_bytes(msgspec.json.encode(index))
    with pytest.raises(ModelMissing, match=r"lacks two\.safetensors"):
        resolve(str(folder))
    save_file({"b": np.zeros(4, np.float32)}, folder / "two.safetensors")
    assert [path.name for path in resolve(str(folder)).weights] == ["one.safetensors", "two.safetensors"]


def test_a_module_that_would_be_left_out_is_refused(folder: Path) -> None:
    modules = [{"type": "sentence_transformers.models.Transformer"}, {"type": "sentence_transformers.models.Dense"}]
    (folder / "modules.json").write_bytes(msgspec.json.encode(modules))
    with pytest.raises(ModelMissing, match="Dense"):
        resolve(str(folder))


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, Pooling.CLS),
        ({"pooling_mode_mean_tokens": True}, Pooling.MEAN),
        ({"pooling_mode": "lasttoken"}, Pooling.LAST_TOKEN),
    ],
)
def test_pooling_follows_the_model_s_configuration(folder: Path, config: dict[str, object], pooling: Pooling) -> None:
    pool(folder, config)
    assert resolve(str(folder)).pooling is pooling


@pytest.mark.parametrize(
    "config",
    [{"pooling_mode_weightedmean_tokens": True}, {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}],
)
def test_a_pooling_that_is_not_known_is_refused(folder: Path, config: dict[str, object]) -> None:
    pool(folder, config)
    with pytest.raises(ModelMissing, match="pools by"):
        resolve(str(folder))


def test_the_fingerprint_changes_with_whatever_changes_a_passage_and_with_nothing_else(folder: Path) -> None:
    first = fingerprint(resolve(str(folder)))
    assert fingerprint(resolve(str(folder), query_prefix="ask: ")) == first
    assert fingerprint(resolve(str(folder), passage_prefix="text: ")) != first
    assert fingerprint(resolve(str(folder), max_tokens=32)) != first
    pool(folder, {"pooling_mode": "cls"})
    assert fingerprint(resolve(str(folder))) != first
    (folder / "modules.json").unlink()
    assert fingerprint(resolve(str(folder))) == first
    save_file({"a": np.ones(4, np.float32)}, folder / "model.safetensors")
    assert fingerprint(resolve(str(folder))) != first


def pool(folder: Path, config: dict[str, object]) -> None:
    modules = [{"type": "x.Transformer"}, {"type": "x.Pooling", "path": "1_Pooling"}, {"type": "x.Normalize"}]
    (folder / "modules.json").write_bytes(msgspec.json.encode(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_bytes(msgspec.json.encode(config))
