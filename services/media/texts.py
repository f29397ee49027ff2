"""What is said of a text: how many lines, words and characters, read through once in pieces."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Any, BinaryIO, Final

MAX_COUNTED_BYTES: Final = 256 * 1024 * 1024
_PIECE: Final = 1024 * 1024


def counts(file: BinaryIO, check: Callable[[], None]) -> dict[str, Any]:
    """Lines, words and characters; `check` is called now and then, and may raise to give up."""
    start = file.read(4)
    file.seek(0)
    encoding = "utf-8"
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif start.startswith(codecs.BOM_UTF8):
        encoding = "utf-8-sig"
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    lines = words = characters = total = 0
    in_word = False
    last = ""
    while piece := file.read(_PIECE):
        check()
        total += len(piece)
        text = decoder.decode(piece)
        if not text:
            continue
        characters += len(text)
        lines += text.count("\n")
        found = len(text.split())
        words += found - (1 if in_word and found and not text[0].isspace() else 0)
        in_word = not text[-1].isspace()
        last = text[-1]
        if total >= MAX_COUNTED_BYTES:
            return {
                "encoding": encoding,
                "counted_bytes": total,
                "lines": lines,
                "words": words,
                "characters": characters,
            }
    if last and last != "\n":
        lines += 1
    return {"encoding": encoding, "lines": lines, "words": words, "characters": characters}
