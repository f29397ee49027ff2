"""Tokens are truncated at the model's limit, never padded, and truncation is reported."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from proto.errors import InvalidParams
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


def test_token_ids_of_a_caller_are_those_of_the_models_own_tokenizer(tokenizer: TextTokenizer) -> None:
    own = tokenizer.encode(["a cat sat"], TextKind.PASSAGE).ids[0].tolist()
    assert tokenizer.check([own])[0].tolist() == own


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([], "at least one"),
        ([101, 30522, 102], "vocabulary: 0 to 30521"),
        ([101, -1, 102], "vocabulary: 0 to 30521"),
        ([64, 8415, 7731], "start with 101 and end with 102"),
        ([101, *[1037] * 255, 102], "at most 256"),
    ],
)
def test_token_ids_of_another_tokenizer_are_refused(tokenizer: TextTokenizer, ids: list[int], words: str) -> None:
    with pytest.raises(InvalidParams, match=words) as caught:
        tokenizer.check([[101, 102], ids])
    assert caught.value.failure.field == "tokens[1]"


def test_tokens_per_letter_tell_a_language_that_the_model_spells() -> None:
    plain = TextTokenizer(resolve(weights.PACKAGED[1]))
    prefixed = TextTokenizer(resolve(weights.PACKAGED[1], query_prefix="query: "))

    def per_letter(tokenizer: TextTokenizer, text: str) -> float:
        return tokenizer.per_letter([text], tokenizer.encode([text], TextKind.QUERY).ids, TextKind.QUERY)

    assert per_letter(plain, "cat") == pytest.approx(1 / 3)
    assert per_letter(prefixed, "cat") == pytest.approx(1 / 3)
    assert per_letter(plain, "how do I restart a service") < 0.4
    assert per_letter(plain, "как перезапустить службу") > 0.8
    assert per_letter(plain, "") == 0
