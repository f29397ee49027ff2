"""Content that is stored as JSON is passed on as JSON, and reads as if it had been parsed and serialized."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.transcripts.operations.conversations import Form, TranscriptCheckout, TranscriptHistory
from tests.unit.transcripts.rig import Json, assistant, payload, post, serving, user

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
