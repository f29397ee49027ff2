"""Untrusted model files: their faults are reported, nothing is run, and false sizes reserve no memory."""

from __future__ import annotations

import json
import resource
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.embed.tensors import read_tensors
from services.shared.models.checkpoint import open_tokenizer, parameters_of, read_checkpoint
from services.shared.models.folders import ModelMissing

CONFIG = {"model_type": "bert", "max_position_embeddings": 512}

MAX_BYTES = 4 << 30


@pytest.fixture
def little_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def safetensors(header: object, *, length: int | None = None, data: bytes = b"\x00" * 16) -> bytes:
    said = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(said) if length is None else length) + said + data


def tensor(**changes: object) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], **changes}}


HEADERS = {
    "a header of 2^62 bytes": safetensors({}, length=1 << 62),
    "a header of 2^64 - 1 bytes": safetensors({}, length=(1 << 64) - 1),
    "a header of 64 GiB": safetensors({}, length=64 << 30),
    "nothing": b"",
    "three bytes": b"abc",
    "no JSON": safetensors(b"no JSON"),
    "no text": safetensors(b'{"\xff": {}}'),
    "a list": safetensors([1]),
    "deep": safetensors(b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "a tensor that is a number": safetensors({"a": 5}),
}

TENSORS = {
    "no offsets": tensor(data_offsets=None),
    "one offset": tensor(data_offsets=[0]),
    "offsets that are text": tensor(data_offsets=["0", "16"]),
    "offsets in the header": tensor(data_offsets=[-16, 0]),
    "offsets beyond the end": tensor(data_offsets=[0, 1 << 40]),
    "a shape that is a number": tensor(shape=4),
    "a shape of texts": tensor(shape=["4"]),
    "a huge shape": tensor(shape=[1 << 70]),
    "a negative shape": tensor(shape=[-1]),
    "a type that is a list": tensor(dtype=["F32"]),
}


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS)
def test_a_wrong_header_is_a_missing_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    for read in (read_tensors, parameters_of):
        with pytest.raises(ModelMissing, match=r"model\.safetensors is damaged, or not a safetensors file"):
            read([path])


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("header", TENSORS.values(), ids=TENSORS)
def test_a_wrong_tensor_is_a_missing_model(tmp_path: Path, header: dict[str, Any]) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors(header))
    with pytest.raises(ModelMissing, match=r"model\.safetensors is damaged, or not a safetensors file"):
        read_tensors([path])


def folder_with(path: Path, *, index: object = None, **files: object) -> Path:
    named = {"config.json": CONFIG, "tokenizer.json": {}, **{f"{name}.json": value for name, value in files.items()}}
    if index is not None:
        named["model.safetensors.index.json"] = index
    else:
        (path / "model.safetensors").write_bytes(safetensors(tensor()))
    for name, content in named.items():
        (path / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


@pytest.mark.parametrize(
    "files",
    [
        {"config": b"[" * 100_000},
        {"config": b'{"a": "\xff"}'},
        {"config": {**CONFIG, "model_type": "roberta", "pad_token_id": "x"}},
        {"config": {**CONFIG, "model_type": "roberta", "pad_token_id": [1]}},
        {"config": {**CONFIG, "max_position_embeddings": -5}},
        {"index": {"weight_map": [1]}},
        {"index": {"weight_map": {"a": [1]}}},
        {"index": {"weight_map": {"a": "../../outside.safetensors"}}},
        {"index": {"weight_map": {"a": ".."}}},
        {"index": {"weight_map": {"a": "\x00"}}},
    ],
)
def test_a_wrong_description_is_a_missing_model(tmp_path: Path, files: dict[str, Any]) -> None:
    (tmp_path / "outside.safetensors").write_bytes(safetensors(tensor()))
    inner = tmp_path / "a" / "model"
    inner.mkdir(parents=True)
    with pytest.raises(ModelMissing):
        read_checkpoint("model", folder_with(inner, **files))


@pytest.mark.parametrize("content", [b"", b"no JSON", b"{}", b"[" * 100_000, b'{"model": 5}', b"\xff"])
def test_a_wrong_tokenizer_is_a_missing_model(tmp_path: Path, content: bytes) -> None:
    files = read_checkpoint("model", folder_with(tmp_path, tokenizer=content))
    with pytest.raises(ModelMissing, match=r"tokenizer\.json"):
        open_tokenizer(files)


def test_code_and_pickles_of_a_model_are_not_run(tmp_path: Path) -> None:
    target = tmp_path / "run"
    folder = tmp_path / "model"
    folder.mkdir()
    code = f"open({str(target)!r}, 'w')\nclass Model: pass\n"
    (folder / "modeling.py").write_text(code)
    (folder / "__init__.py").write_text(code)
    (folder / "pytorch_model.bin").write_bytes(b"cbuiltins\nopen\n(V" + str(target).encode() + b"\nVw\ntR.")
    config = {**CONFIG, "auto_map": {"AutoModel": "modeling.Model", "AutoConfig": "modeling.Model"}}
    folder_with(folder, config=config, index={})
    with pytest.raises(ModelMissing, match="only as a pickle"):
        read_checkpoint("model", folder)
    assert not target.exists()
