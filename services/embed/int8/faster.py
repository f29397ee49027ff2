"""Makes the encoder faster at passages in bulk, once there is much to embed."""

from __future__ import annotations

from proto.ops.embed import TextKind
from services.embed.encoder import Encoder
from services.embed.int8.sample import CALIBRATION, CHECK
from services.embed.tokens import TextTokenizer


def prepare(encoder: Encoder, tokenizer: TextTokenizer) -> None:
    """Prepare it now.  Blocks."""
    calibration, check = (tokenizer.encode(texts, TextKind.PASSAGE).ids for texts in (CALIBRATION, CHECK))
    encoder.prepare_for_bulk(calibration, check)
