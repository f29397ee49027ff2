"""Messages that a user typed while an agent worked, before their place is known.

Their text is kept only in the step that will place it, where secrets are masked; they are compared by digests.
"""

from __future__ import annotations

import hashlib

import msgspec

from services.transcripts.layouts import Step
from services.transcripts.messages import Message


class Queued(msgspec.Struct, kw_only=True):
    """A message in the queue: a digest of its text, and the step for it, without a predecessor.

    The step is None for what the user did not type.
    """

    digest: str
    step: Step | None

    def is_in(self, text: str) -> bool:
        """Return True if a record with this text delivers the message; it may deliver several, line by line."""
        if self.step is None:
            return self.digest == digest_of(text)
        own = text_of(self.step.messages[0])
        if own.startswith("/") and f"<command-name>{own.split()[0]}</command-name>" in text:
            return True
        return self.digest == digest_of(text) or (bool(own) and f"\n{own.strip()}\n" in f"\n{text.strip()}\n")


def text_of(message: Message) -> str:
    """Return the text blocks of a message."""
    return "\n".join(block.text for block in message.content if block.text)


def digest_of(text: str) -> str:
    """Return a digest that is the same for texts that differ in white space only."""
    data = " ".join(text.split()).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16).hexdigest()
