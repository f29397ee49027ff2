"""Tokens are cut where the model's reading ends, never padded, and what was cut is said."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from proto.ops.embed import TextKind
from services.embed import weights
from services.embed.tokens import TextTokenizer
from services.embed.weights import resolve

pytest.importorskip(weights.PACKAGED[0], reason="the package with the model's weights is not installed")


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer(resolve(weights.PACKAGED[1]))


def test_nothing_is_padded_and_short_texts_are_whole(tokenizer: TextTokenizer) -> None:
    tokens = tokenizer.encode(["cat", "a cat sat", ""], TextKind.PASSAGE)
    assert [len(ids) for ids in tokens.ids] == [3, 5, 2]
    assert tokens.truncated == []


def test_long_texts_are_cut_at_the_models_length_and_reported(tokenizer: TextTokenizer) -> None:
    tokens = tokenizer.encode(["cat", "cat " * 254, "cat " * 255], TextKind.PASSAGE)
    assert [len(ids) for ids in tokens.ids] == [3, 256, 256]
    assert tokens.truncated == [2]


@pytest.mark.parametrize("text", ["internationalisation " * 400, "x" + " " * 20_000 + "word " * 300, "ab" * 50_000])
def test_looking_at_the_beginning_of_a_long_text_changes_nothing(tokenizer: TextTokenizer, text: str) -> None:
    whole = Tokenizer.from_file(str(resolve(weights.PACKAGED[1]).tokenizer))
    whole.no_padding()
    whole.enable_truncation(max_length=256)
    tokens = tokenizer.encode([text], TextKind.PASSAGE)
    assert tokens.ids[0].tolist() == whole.encode(text).ids


def test_prefixes_go_before_the_text_of_their_kind() -> None:
    prefixed = TextTokenizer(resolve(weights.PACKAGED[1], query_prefix="query: ", passage_prefix="passage: "))
    plain = TextTokenizer(resolve(weights.PACKAGED[1]))
    for kind in TextKind:
        expected = plain.encode([f"{kind.value}: cat"], kind).ids[0]
        assert prefixed.encode(["cat"], kind).ids[0].tolist() == expected.tolist()
