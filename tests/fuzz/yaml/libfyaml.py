"""libfyaml's event parser through ctypes: an independent opinion on any document, for the differential fuzzer.

The wheel of that name holds the C library within its extension module; its Python interface gives no events, so the C
functions are called here. Structures are those of libfyaml.h 1.0.
"""

import ctypes
import importlib.util
from pathlib import Path
from typing import Final

from services.yaml.syntax.events import (
    ALIAS,
    DOCUMENT,
    DOCUMENT_END,
    MAPPING,
    MAPPING_END,
    SCALAR,
    SEQUENCE,
    SEQUENCE_END,
)

# kind, value, anchor: what both parsers can tell (libfyaml gives a tag as written, ours resolved).
PlainEvent = tuple[int, str, str | None]

_QUIET: Final = 1
_STREAM_END: Final = 2
_KINDS: Final = {
    3: DOCUMENT, 4: DOCUMENT_END, 5: MAPPING, 6: MAPPING_END, 7: SEQUENCE, 8: SEQUENCE_END, 9: SCALAR, 10: ALIAS,
}  # fmt: skip


class _Config(ctypes.Structure):
    _fields_ = [
        ("search_path", ctypes.c_char_p),
        ("flags", ctypes.c_uint),
        ("userdata", ctypes.c_void_p),
        ("diag", ctypes.c_void_p),
    ]


class LibFyaml:
    """The loaded library. Raises ImportError where the wheel is not installed."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("libfyaml")
        if spec is None or spec.origin is None:
            raise ImportError("libfyaml is not installed: pip install libfyaml")
        found = sorted(Path(spec.origin).parent.glob("_libfyaml*.so"))
        if not found:
            raise ImportError("the libfyaml wheel holds no shared library")
        lib = self._lib = ctypes.CDLL(str(found[0]))
        pointer = ctypes.c_void_p
        lib.fy_parser_create.restype, lib.fy_parser_create.argtypes = pointer, [pointer]
        lib.fy_parser_set_string.argtypes = [pointer, ctypes.c_char_p, ctypes.c_size_t]
        lib.fy_parser_parse.restype, lib.fy_parser_parse.argtypes = pointer, [pointer]
        lib.fy_parser_event_free.restype, lib.fy_parser_event_free.argtypes = None, [pointer, pointer]
        lib.fy_parser_destroy.restype, lib.fy_parser_destroy.argtypes = None, [pointer]
        lib.fy_parser_get_stream_error.restype = ctypes.c_bool
        lib.fy_parser_get_stream_error.argtypes = [pointer]
        lib.fy_token_get_text.restype = pointer
        lib.fy_token_get_text.argtypes = [pointer, ctypes.POINTER(ctypes.c_size_t)]

    def _token(self, token: int | None) -> str | None:
        if not token:
            return None
        size = ctypes.c_size_t()
        text = self._lib.fy_token_get_text(token, ctypes.byref(size))
        return ctypes.string_at(text, size.value).decode("utf-8", "surrogateescape") if text else ""

    def events(self, data: bytes) -> list[PlainEvent] | None:
        """The events of a stream, or None where libfyaml refuses it."""
        config = _Config(b"", _QUIET, None, None)
        parser = self._lib.fy_parser_create(ctypes.byref(config))
        out: list[PlainEvent] = []
        try:
            if self._lib.fy_parser_set_string(parser, data, len(data)):
                return None
            while event := self._lib.fy_parser_parse(parser):
                kind = ctypes.cast(event, ctypes.POINTER(ctypes.c_int))[0]
                tokens = ctypes.cast(event + 8, ctypes.POINTER(ctypes.c_void_p))
                ours = _KINDS.get(kind)
                if ours == SCALAR:
                    out.append((ours, self._token(tokens[2]) or "", self._token(tokens[0])))
                elif ours == ALIAS:
                    out.append((ours, self._token(tokens[0]) or "", None))
                elif ours in (MAPPING, SEQUENCE):
                    out.append((ours, "", self._token(tokens[0])))
                elif ours is not None:
                    out.append((ours, "", None))
                self._lib.fy_parser_event_free(parser, event)
                if kind == _STREAM_END:
                    break
            return None if self._lib.fy_parser_get_stream_error(parser) else out
        finally:
            self._lib.fy_parser_destroy(parser)
