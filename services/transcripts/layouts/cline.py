"""Tasks of Cline and its relatives, Roo Code and Kilo Code: a folder per task, in the storage of the editor.

`api_conversation_history.json` has the messages in the form of Anthropic's API. Tokens come from `ui_messages.json`,
for the task as a whole, and the model from the messages or `task_metadata.json`. Not read: checkpoints, the extension's
own notices, and sessions of newer versions of Kilo Code that are built on OpenCode.
"""

from __future__ import annotations

import re
from typing import ClassVar

from services.transcripts.layouts import Step
from services.transcripts.layouts.sessions import Sessions, when
from services.transcripts.messages import ASSISTANT
from services.transcripts.providers import anthropic
from services.transcripts.providers.wire import Json, child, text

_FOLDER = re.compile(r"Current (?:Working|Workspace) Directory \(([^)\n]+)\)")
_MODEL = re.compile(r"<model>([^<\n]+)</model>")


class Cline(Sessions, kw_only=True):
    """The state of a task."""

    name: ClassVar[str] = "cline"

    def message(self, given: Json, record: Json) -> list[Step] | None:
        role = text(given, "role")
        if role not in ("user", ASSISTANT) or not isinstance(given.get("content"), list | str):
            return None
        message = anthropic.message({"role": role, "content": given["content"]})
        message.content = [block for block in message.content if block.text or block.type != "text"]
        message.at = when(given.get("ts"))
        if role == ASSISTANT:
            message.model = text(child(given, "modelInfo"), "modelId") or self.model
        else:
            for block in message.content:
                if found := _FOLDER.search(block.text):
                    self.project = found[1]
                if found := _MODEL.search(block.text):
                    self.model = found[1]
        return self.say(message)
