"""Language models that judge: asked whether a text answers a query, their logits of "yes" and "no" are the score.

This is how Qwen3-Reranker is meant to be used (Zhang et al., Qwen3 Embedding, 2025). Only known models are loaded this
way, since any language model has these logits. Special tokens in a query or text are read as plain text, so a text
cannot end its own part of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from services.rerank.checkpoint import Pair, Pairs, PairTokenizer
from services.rerank.model import CrossEncoder
from services.shared.models.checkpoint import Checkpoint, ModelMissing, encode_cut, open_tokenizer

_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_TASK = "Given a web search query, retrieve relevant passages that answer the query"
"""The prompt of the model's card, word for word: the model was trained with it."""


class JudgeTokenizer(PairTokenizer):
    """Makes a prompt of each pair; the text is cut, never the end of the prompt."""

    def __init__(self, files: Checkpoint) -> None:
        plain = open_tokenizer(files)
        self._before, self._after = (plain.encode(text, add_special_tokens=False).ids for text in (_BEFORE, _AFTER))
        self._room = files.max_tokens - len(self._before) - len(self._after)
        least = len(plain.encode(_asked("", "")).ids) + 8
        if self._room < least:
            short = files.max_tokens - self._room + least
            raise ModelMissing(f"{files.name} needs `max_tokens` of at least {short}", field="max_tokens")
        super().__init__(msgspec.structs.replace(files, max_tokens=self._room))
        self._whole = open_tokenizer(msgspec.structs.replace(files, max_tokens=self._room))
        for each in (self._whole, self._query):
            each.encode_special_tokens = True

    def encode(self, query: str, texts: Sequence[str]) -> Pairs:
        """Return the prompts of `query` with each text. Blocks."""
        kept = self.cut_query(query)
        encodings = encode_cut(self._whole, [_asked(kept, text) for text in texts], self._room)
        ids = [np.array([*self._before, *each.ids, *self._after], dtype=np.int32) for each in encodings]
        return Pairs(
            [Pair(each, np.zeros_like(each)) for each in ids],
            [index for index, encoding in enumerate(encodings) if encoding.overflowing],
            kept != query,
        )


def _asked(query: str, text: str) -> str:
    return f"<Instruct>: {_TASK}\n<Query>: {query}\n<Document>: {text}"


class Judge(CrossEncoder):
    """A language model whose score is the probability of "yes" against "no"."""

    kind = "AutoModelForCausalLM"

    def _prepare(self, files: Checkpoint) -> None:
        tokenizer = open_tokenizer(files)
        yes, no = (tokenizer.token_to_id(word) for word in ("yes", "no"))
        if yes is None or no is None:
            raise ModelMissing(f"{files.folder} has no tokens `yes` and `no`", field="model")
        table = self._model.get_output_embeddings().weight
        # Two rows of a table of 150,000, in float32: bf16 has three digits, and good texts differ in the third.
        self._direction: Tensor = table[yes].float() - table[no].float()

    def _logits(self, pairs: Sequence[Pair]) -> Tensor:
        rows = [torch.from_numpy(pair.ids.astype(np.int64)) for pair in pairs]
        lengths = torch.tensor([len(row) for row in rows])
        ids = pad_sequence(rows, batch_first=True)
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        # Padding follows the prompt, so it is never attended to.
        states = self._model.base_model(
            input_ids=ids.to(self._device), attention_mask=mask.to(self._device), use_cache=False
        ).last_hidden_state
        last = states[torch.arange(len(rows), device=self._device), (lengths - 1).to(self._device)]
        logits: Tensor = (last.float() @ self._direction)[:, None]
        return logits
