"""Content that is kept as JSON is passed on as JSON, and reads as if it had been read and written anew."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proto.ops.transcripts import Block, Form, TranscriptCheckout, TranscriptHistory
from services.transcripts.answers import only_text
from services.transcripts.hashing import content_json
from services.transcripts.messages import image, read_text, text_block, tool_result, tool_use
from tests.unit.transcripts.rig import Json, assistant, payload, post, serving, user

# What the JSON of a content is made of, above all.
texts = st.lists(
    st.sampled_from(['"', "\\", ",", ":", "{", "}", "]", '","type":"text"}]', '"text":', "tool_name", "\n", "ü", "a"]),
    max_size=6,
).map("".join)
blocks = st.one_of(
    texts.map(text_block),
    st.builds(lambda text, name: Block(type="text", is_error=False, text=text, tool_name=name), texts, texts),
    st.builds(tool_use, texts, texts, st.dictionaries(texts, texts, max_size=2)),
    st.builds(tool_result, texts, texts, is_error=st.booleans()),
    st.builds(lambda data: image(data=data, media_type="image/png"), texts),
)


@pytest.mark.slow
@settings(max_examples=4 * settings().max_examples)
@given(st.lists(blocks, max_size=3))
def test_a_content_is_taken_for_one_text_only_where_it_is_one(content: Sequence[Block]) -> None:
    found = only_text(content_json(content))
    is_one = list(content) == [text_block(content[0].text)] and content[0].text != "" if content else False
    # One that ends with a comma is read the long way.
    assert (found is not None) == (is_one and not content[0].text.endswith(","))
    if found is not None:
        assert json.loads(bytes(found)) == read_text(content)


HARD = 'He said: "no", and wrote \\ and {"type":"text"}]\n\t\u2028 ü 🌟'
CALL = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"zone":"UTC"}'}}
SAID: list[Json] = [
    user(HARD),
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": HARD},
    user("And now?"),
]


async def test_a_history_holds_what_was_posted(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        head = (await post(bench, payload(SAID, HARD))).head_hash
        history = await bench.call(TranscriptHistory(hash=head))
        assert history is not None
        assert [message.content[0].text or message.content[0].tool_output for message in history.messages] == [
            HARD, "", HARD, "And now?", HARD,
        ]  # fmt: skip
        assert history.messages[1].content[0].tool_input == {"zone": "UTC"}
        assert [message.parent_hash for message in history.messages] == [
            "", *(message.hash for message in history.messages[:-1]),
        ]  # fmt: skip
        assert history.messages[-1].hash == history.head_hash == head
        assert (history.depth, history.messages[-1].stop_reason, history.messages[0].usage) == (5, "stop", None)


@pytest.mark.parametrize("form", [Form.OPENAI, Form.STORED])
async def test_a_checkout_holds_what_was_posted(tmp_path: Path, form: Form) -> None:
    async with serving(tmp_path) as bench:
        head = (await post(bench, payload(SAID, HARD))).head_hash
        checkout = await bench.call(TranscriptCheckout(hash=head, form=form))
        if form is Form.OPENAI:
            assert checkout.messages == [*SAID, assistant(HARD)]
        else:
            assert checkout.messages[0] == {
                "role": "user", "content": [{"is_error": False, "text": HARD, "type": "text"}],
            }  # fmt: skip
            assert checkout.messages[1]["content"][0]["tool_input"] == {"zone": "UTC"}
