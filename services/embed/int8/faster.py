"""Has the encoder become faster once there is much to embed: beside the work, and once for each time it is loaded."""

from __future__ import annotations

from collections.abc import Callable

import trio

from proto.ops.embed import TextKind
from services.embed.encoder import Encoder
from services.embed.int8.sample import CALIBRATION, CHECK
from services.embed.tokens import TextTokenizer


class FasterBulk:
    """
    Args:
        peek: the encoder that is loaded at the moment.
    """

    def __init__(self, peek: Callable[[], Encoder | None], tokenizer: TextTokenizer) -> None:
        self._peek = peek
        self._tokenizer = tokenizer
        self._at_work = False

    def begin(self, nursery: trio.Nursery) -> None:
        """Start it there, where it is neither done nor under way."""
        encoder = self._peek()
        if encoder is None or self._at_work or not encoder.bulk_is_slow:
            return
        self._at_work = True
        nursery.start_soon(self._prepare, encoder)

    async def _prepare(self, encoder: Encoder) -> None:
        try:
            await trio.to_thread.run_sync(prepare, encoder, self._tokenizer)
        finally:
            self._at_work = False


def prepare(encoder: Encoder, tokenizer: TextTokenizer) -> None:
    """Make it faster now.  Blocks."""
    calibration, check = (tokenizer.encode(texts, TextKind.PASSAGE).ids for texts in (CALIBRATION, CHECK))
    encoder.prepare_for_bulk(calibration, check)
