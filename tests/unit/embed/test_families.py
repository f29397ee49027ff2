"""Each family's vectors are those of its own reference: the transformer of transformers, text by text and without
padding, then the pooling, the dense layers, the truncation and the norm as sentence-transformers computes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from proto.host.models import known
from proto.ops.embed import TextKind
from services.embed import projection, weights
from services.embed.encoder import Encoder, Vectors
from services.embed.projection import projected
from services.embed.tokens import TextTokenizer
from services.embed.weights import ModelFiles, fingerprint, resolve
from services.shared.models.checkpoint import ModelMissing
from services.shared.models.device import Precision
from tests.unit.embed.families import EMBEDDING_GEMMA, MODERN_BERT, QWEN3, WORDS, XLM_R, save_family

TEXTS = ["w1", "", *(" ".join(f"w{(7 * n + k) % 95}" for k in range(n)) for n in (2, 3, 9, 9, 30, 80))]

MODELS: dict[str, dict[str, Any]] = {
    "embeddinggemma": {
        "family": EMBEDDING_GEMMA, "pooling": "mean",
        "dense": [(32, 96, "Identity", False), (96, 32, "Identity", False)],
        "prompts": {"query": "w5 w6 ", "document": "w7 ", "Clustering": "w8 "},
    },
    "qwen3": {
        "family": QWEN3, "pooling": "lasttoken", "begins": False, "prompts": {"query": "w5 w6 w9 ", "document": ""},
    },
    "granite": {"family": MODERN_BERT, "pooling": "cls"},
    "bge-m3": {"family": XLM_R, "pooling": "cls"},
    "tanh": {"family": XLM_R, "pooling": "max", "dense": [(32, 24, "Tanh", True)]},
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: save_family(tmp_path_factory.mktemp(name), **given) for name, given in MODELS.items()}


def encoder_of(files: ModelFiles, precision: Precision = Precision.FP32) -> Encoder:
    # With torch, which takes seconds, and each process that runs tests reads all files of tests.
    from services.embed.torch_encoder import TorchEncoder

    tokenizer = TextTokenizer(files)
    encoder = projected(files, TorchEncoder(files, precision=precision))
    encoder.special = tokenizer.special
    return encoder


def computed(files: ModelFiles, kind: TextKind = TextKind.PASSAGE, precision: Precision = Precision.FP32) -> Vectors:
    return encoder_of(files, precision).compute(TextTokenizer(files).encode(TEXTS, kind).ids)


def reference(name: str, folder: Path, prefix: str, dimensions: int | None = None) -> Vectors:
    """The vectors from transformers and torch alone; nothing of Linckia is used."""
    import torch
    from safetensors.torch import load_file

    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval().float()
    vectors = []
    for text in TEXTS:
        words = [WORDS.index(word) for word in (prefix + text).split()]
        first = [1] if MODELS[name].get("begins", True) else []
        ids = [*first, *words[: 63 - len(first)], 2]
        with torch.inference_mode():
            states = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
            pooled = {
                "mean": states.mean(0), "cls": states[0], "lasttoken": states[-1], "max": states.max(0).values
            }[MODELS[name]["pooling"]]  # fmt: skip
            for place, (_, _, activation, _) in enumerate(MODELS[name].get("dense", ()), 2):
                stored = load_file(folder / f"{place}_Dense" / "model.safetensors")
                linear = torch.nn.functional.linear(pooled, stored["linear.weight"], stored.get("linear.bias"))
                pooled = getattr(torch.nn, activation)()(linear)
            vectors.append(torch.nn.functional.normalize(pooled[:dimensions], dim=0).numpy())
    return np.stack(vectors)


@pytest.mark.parametrize("name", MODELS)
def test_vectors_are_those_of_the_reference(folders: dict[str, Path], name: str) -> None:
    files = resolve(str(folders[name]))
    prompts = MODELS[name].get("prompts", {})
    for kind, prompt in ((TextKind.QUERY, "query"), (TextKind.PASSAGE, "document")):
        vectors = computed(files, kind)
        expected = reference(name, folders[name], prompts.get(prompt, ""))
        assert vectors.shape == expected.shape
        assert np.abs(vectors - expected).max() < 1e-4
        # The vectors differ between the texts, or the comparison would mean nothing.
        assert np.abs(vectors[2] - vectors[4]).max() > 0.01


@pytest.mark.parametrize("name", ["embeddinggemma", "qwen3", "granite"])
def test_a_vector_does_not_depend_on_the_texts_beside_it(folders: dict[str, Path], name: str) -> None:
    files = resolve(str(folders[name]))
    encoder, ids = encoder_of(files), TextTokenizer(files).encode(TEXTS, TextKind.PASSAGE).ids
    together = encoder.compute(ids)
    assert np.abs(together - np.concatenate([encoder.compute([one]) for one in ids])).max() < 1e-4


def test_truncated_vectors_are_the_first_numbers_with_length_one(folders: dict[str, Path]) -> None:
    folder = folders["embeddinggemma"]
    config = folder / "config.json"
    plain = config.read_bytes()
    whole = computed(resolve(str(folder)))
    try:
        config.write_bytes(
            msgspec.json.encode(msgspec.json.decode(plain, type=dict[str, Any]) | {"matryoshka_dimensions": [32, 16]})
        )
        files = resolve(str(folder), dimensions=16)
        assert encoder_of(files).width == 16
        vectors = computed(files)
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
        cut = whole[:, :16] / np.linalg.norm(whole[:, :16], axis=1, keepdims=True)
        assert np.abs(vectors - cut).max() < 1e-5
        assert np.abs(vectors - reference("embeddinggemma", folder, "w7 ", 16)).max() < 1e-4
        assert fingerprint(files) != fingerprint(resolve(str(folder)))
        assert fingerprint(resolve(str(folder), dimensions=32)) == fingerprint(resolve(str(folder)))
        for wrong in (8, 33, 64):
            with pytest.raises(ModelMissing, match=r"does not support \d+ dimensions: use one of 16, 32$") as caught:
                resolve(str(folder), dimensions=wrong)
            assert caught.value.failure.field == "dimensions"
    finally:
        config.write_bytes(plain)
    with pytest.raises(ModelMissing, match="was not trained to be truncated"):
        resolve(str(folder), dimensions=16)


def test_a_dense_layer_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = save_family(tmp_path, XLM_R, pooling="cls", dense=[(32, 8, "Tanh", True)])
    before = fingerprint(resolve(str(folder)))
    path = folder / "2_Dense" / "model.safetensors"
    save_file({name: -values for name, values in load_file(path).items()}, path)
    assert fingerprint(resolve(str(folder))) != before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"activation_function": "torch.nn.modules.activation.Hardtanh"}, "activation Hardtanh"),
        ({"module_input_name": "token_embeddings"}, "not applied to the pooled vector"),
        ({"out_features": None}, "out_features"),
    ],
)
def test_a_dense_layer_that_is_not_supported_is_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    folder = save_family(tmp_path, XLM_R, pooling="cls", dense=[(32, 8, "Tanh", True)])
    config = folder / "2_Dense" / "config.json"
    config.write_bytes(msgspec.json.encode(msgspec.json.decode(config.read_bytes(), type=dict[str, object]) | change))
    with pytest.raises(ModelMissing, match=words):
        resolve(str(folder))


def test_damaged_or_unfitting_dense_weights_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    folder = save_family(tmp_path, XLM_R, pooling="cls", dense=[(16, 8, "Tanh", True)])
    with pytest.raises(ModelMissing, match="does not fit vectors of 32 dimensions"):
        encoder_of(resolve(str(folder)))
    (folder / "2_Dense" / "model.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(ModelMissing, match=r"2_Dense/model\.safetensors is damaged"):
        encoder_of(resolve(str(folder)))


@pytest.mark.parametrize("activation", weights.DENSE_ACTIVATIONS)
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_dense_layers_compute_what_torch_computes(tmp_path: Path, activation: str, kind: str) -> None:
    import torch
    from safetensors.torch import save_file

    dtype = getattr(torch, kind)
    torch.manual_seed(1)
    weight, bias, residual = torch.randn(5, 7).to(dtype), torch.randn(5).to(dtype), torch.randn(5, 7).to(dtype)
    path = tmp_path / "model.safetensors"
    save_file({"linear.weight": weight, "linear.bias": bias, "residual.weight": residual}, path)
    given = torch.randn(6, 7)
    expected = getattr(torch.nn, activation)()(given @ weight.float().T + bias.float()) + given @ residual.float().T
    layer = weights.DenseLayer(weights=path, activation=activation, width=5, residual=True)
    assert np.allclose(projection._Dense(layer)(given.numpy()), expected.numpy(), atol=1e-5)


def test_special_tokens_are_counted_on_each_side(folders: dict[str, Path]) -> None:
    for name, special in (("qwen3", (0, 1)), ("granite", (1, 1))):
        files = resolve(str(folders[name]))
        tokenizer = TextTokenizer(files)
        assert tokenizer.special == special
        ids = tokenizer.encode(["w1 w2 w3"], TextKind.PASSAGE).ids[0]
        assert tokenizer.check([ids.tolist()])[0].tolist() == ids.tolist()
        assert len(encoder_of(files).token_vectors([ids])[0]) == 3


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"prompts": {"query": "q: ", "document": "d: "}}, ("q: ", "d: ")),
        ({"prompts": {"query": "q: ", "passage": "p: "}}, ("q: ", "p: ")),
        ({"prompts": {"Retrieval-query": "q: ", "Retrieval-document": "d: "}}, ("q: ", "d: ")),
        ({"prompts": {"search_query": "q: ", "search_document": "d: "}}, ("q: ", "d: ")),
        ({"prompts": {"query": "q: "}}, ("q: ", "")),
        ({"prompts": {"all": "a: ", "query": "q: "}, "default_prompt_name": "all"}, ("q: ", "a: ")),
        ({"prompts": {"STS": "s: "}}, ("", "")),
        ({"prompts": None}, ("", "")),
    ],
)
def test_prompts_are_found_by_their_usual_names(
    folders: dict[str, Path], config: dict[str, object], expected: tuple[str, str]
) -> None:
    path = folders["granite"] / "config_sentence_transformers.json"
    path.write_bytes(msgspec.json.encode(config))
    files = resolve(str(folders["granite"]))
    assert (files.query_prefix, files.passage_prefix) == expected


def test_the_list_says_which_dimensions_a_model_was_trained_for() -> None:
    gemma, qwen, granite = (known(name) for name in (
        "embeddinggemma-300m", "Qwen3-Embedding-0.6B", "granite-embedding-97m-multilingual-r2"
    ))  # fmt: skip
    assert gemma is not None
    assert qwen is not None
    assert granite is not None
    assert [each for each in (64, 128, 200, 256, 512, 1024) if gemma.allows(each)] == [128, 256, 512]
    assert [each for each in (16, 32, 100, 1024, 1025) if qwen.allows(each)] == [32, 100, 1024]
    assert not granite.allows(128)
