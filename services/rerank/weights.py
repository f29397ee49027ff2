"""Which cross-encoder is taken: the one that the settings name, or a known good one where it is here already."""

from __future__ import annotations

import msgspec

from services.runtime.models.checkpoint import Checkpoint, ModelMissing, locate, not_cached, read_checkpoint

AUTO = "auto"
NONE = "none"
PREFERRED = "BAAI/bge-reranker-base"
"""What `auto` takes where it is in the local cache already; otherwise it takes none."""


def resolve(model: str = AUTO, *, max_tokens: int | None = None) -> Checkpoint | None:
    """The files of `model`: `auto`, a folder, or an id in the local Hugging Face cache; None where it is `none`, or
    `auto` finds none.

    Args:
        max_tokens: read at most this many tokens of a query and its text, if the model reads that many.

    Raises:
        ModelMissing: there is no such model here, it has no safetensors, or it does not answer one score.
    """
    if model == NONE:
        return None
    found = locate(PREFERRED if model == AUTO else model)
    if found is None:
        if model == AUTO:
            return None
        raise not_cached(model)
    files = read_checkpoint(*found)
    # Without one, transformers would put a new head of random weights on an encoder.
    if not any(str(name).endswith("ForSequenceClassification") for name in files.config.get("architectures") or ()):
        raise ModelMissing(
            f"{files.folder} is no cross-encoder: its config.json names no sequence classifier", field="model"
        )
    if max_tokens is not None:
        files = msgspec.structs.replace(files, max_tokens=min(files.max_tokens, max_tokens))
    return files
