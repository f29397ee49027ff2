"""A node's name is the SHA-256 of the canonical JSON of its content and its parent's name, whatever the content."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from services.transcripts.messages import (
    OutOfRange,
    canonical,
    canonical_json,
    content_json,
    image,
    node_hash,
    text_block,
    tool_result,
    tool_use,
)
from services.transcripts.operations.conversations import Block
from tests.unit.transcripts.rig import canonical as independent
from tests.unit.transcripts.rig import name_of

ROOT = "9cfb4f1a7ef167a89ffadd1d0915cb8315c2c15dd35272fdacccd0a8389ef76a"
REPLY = "1b6311a761b81b1a410cb8cf62c414caf693f78888cb1d9b8dd4acc2df6de6ac"


def frame(blocks: list[Block], role: str, parent: str = "", agent: str = "") -> bytes:
    return canonical(content_json(blocks), role=role, model="test-model", provider="openai", agent=agent, parent=parent)


def test_known_contents_have_their_known_hashes() -> None:
    asked = frame([text_block("How do I set up logging?")], "user")
    assert asked == (
        b'{"content":{"content":[{"is_error":false,"text":"How do I set up logging?","type":"text"}],'
        b'"model":"test-model","provider":"openai","role":"user","type":"message"},"parent":""}'
    )
    assert node_hash(asked).hex() == ROOT
    answered = frame([text_block("To configure logging, you'll need to set LOG_LEVEL.")], "assistant", ROOT)
    assert node_hash(answered).hex() == REPLY


def test_every_character_is_written_as_the_standard_has_it() -> None:
    characters = [chr(code) for code in (*range(0xD800), *range(0xE000, 0x10000), 0x10000, 0x1F600, 0x10FFFF)]
    wrong = [c for c in characters if msgspec.json.encode(c) != rfc8785.dumps(c)]
    assert wrong == []


def test_empty_fields_are_left_out_and_missing_ones_are_empty_lists() -> None:
    assert content_json([]) == b"[]"
    assert content_json([tool_use("", "now", {})]) == b'[{"is_error":false,"tool_name":"now","type":"tool_use"}]'
    assert content_json([tool_result("1", "", is_error=True)]) == (
        b'[{"is_error":true,"tool_result_id":"1","type":"tool_result"}]'
    )
    assert content_json([image(url="data:image/png;base64,AAAA")]) == (
        b'[{"image_base64":"AAAA","is_error":false,"media_type":"image/png","type":"image"}]'
    )


def test_the_agent_is_part_of_the_hash_if_present() -> None:
    assert b'"agent_name":"claude","content"' in frame([], "user", agent="claude")
    assert b"agent_name" not in frame([], "user")


@pytest.mark.parametrize(
    ("number", "written"),
    [(1.0, "1"), (1e21, "1e+21"), (1e20, "100000000000000000000"), (1e-7, "1e-7"), (0.000001, "0.000001"),
     (-0.0, "0"), (9007199254740993, "9007199254740992"), (2**70, "1.1805916207174113e+21"), (5e-324, "5e-324"),
     (333333333.33333329, "333333333.3333333"), (True, "true")],
)  # fmt: skip
def test_numbers_are_written_as_javascript_prints_them(number: float, written: str) -> None:
    assert canonical_json({"n": number}).decode() == f'{{"n":{written}}}' == independent({"n": number})


def test_a_number_that_no_double_can_hold_is_refused() -> None:
    with pytest.raises(OutOfRange):
        canonical_json({"n": 10**400})


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
blocks = st.one_of(
    texts.map(text_block),
    st.builds(tool_use, texts, texts, st.dictionaries(texts, values, max_size=4)),
    st.builds(tool_result, texts, texts, is_error=st.booleans()),
    st.builds(lambda data: image(data=data, media_type="image/png"), texts),
)


@pytest.mark.slow
@given(st.lists(blocks, max_size=4), texts, texts)
def test_any_content_has_the_same_hash_in_another_implementation(content: list[Block], role: str, agent: str) -> None:
    if any(abs(n) > 1e300 for block in content for n in _numbers(block.tool_input)):
        return
    bucket: dict[str, Any] = {
        "type": "message", "role": role, "content": msgspec.to_builtins(content), "model": "test-model",
        "provider": "openai",
    }  # fmt: skip
    if agent:
        bucket["agent_name"] = agent
    assert node_hash(frame(content, role, ROOT, agent)).hex() == name_of(bucket, ROOT)


def _numbers(value: Any) -> list[float]:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return [number for item in inner for number in _numbers(item)]
    return [value] if isinstance(value, int | float) else []


def test_a_thousand_conversations_have_the_same_hashes_in_another_implementation() -> None:
    chance = random.Random(8785)
    for _ in range(1000):
        parent = ""
        for turn in range(chance.randrange(1, 6)):
            content = [_some_block(chance) for _ in range(chance.randrange(4))]
            bucket = {
                "type": "message", "role": ("user", "assistant")[turn % 2], "content": msgspec.to_builtins(content),
                "model": "test-model", "provider": "openai",
            }  # fmt: skip
            hash_ = node_hash(frame(content, ("user", "assistant")[turn % 2], parent)).hex()
            assert hash_ == name_of(bucket, parent)
            parent = hash_


def _some_block(chance: random.Random) -> Block:
    text = "".join(chance.choice('abc \n\t"\\/<>&é€😀\x00\x1f\x7f\u2028ß') for _ in range(chance.randrange(40)))
    arguments = {
        text[:3]: chance.random() * 10 ** chance.randrange(-30, 30), "é": -chance.randrange(10**9), "😀": [None, {}],
        "\ufb33": chance.random() < 0.5,
    }  # fmt: skip
    return chance.choice([text_block(text), tool_use("id", text, arguments), tool_result("id", text), image(url=text)])
