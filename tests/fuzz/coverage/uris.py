"""URIs: of resources on each surface, of downloads, and of pages that ask."""

from __future__ import annotations

import functools

import msgspec

from proto import ops
from proto.errors import Forbidden, InvalidParams, OperationError
from proto.wire.front import Http
from services.decode.symbols import _markdown
from services.fetch.client import _next, parse
from services.fetch.main import name_of
from services.front.surfaces.surface import Surface
from services.front.transport.access import Guard, Tokens, _host_name
from tests.fuzz.coverage import parted

SEEDS = [
    b"synthesis://nodes/home/a%20b/metadata",
    b"synthesis://nodes?offset=10&limit=50",
    b"synthesis://resource-sets/a/metrics/size",
    b"synthesis://metadata/" + b"a" * 64,
    b"synthesis://jobs/12",
    b"synthesis://plans/%E2%82%AC/executions",
    b"note://a/../b",
    b'https://user:pass@example.org:443/a/b.txt?x=1#y\0attachment; filename="a\\"b.pdf"',
    b"http://[::1]:80/\0attachment; filename*=UTF-8''%e2%82%ac%20rates",
    b"http://127.0.0.1/" + b"\xff" * 8000,
    b"http://127.0.0.1/x\0inline; filename*=undefined''%ff",
    b"http://127.0.0.1/x\0inline; filename=x; filename*=undefined''y",
]


@functools.cache
def _surfaces() -> list[Surface]:
    table = ops.load()
    return [Surface(name, table) for name in ("all", "files", "knowledge", "documents")]


@functools.cache
def _guard() -> Guard:
    async def nothing(*_: object) -> None:
        return

    return Guard(nothing, Http(allowed_origins=("https://example.org",)), Tokens())


def read(data: bytes) -> None:
    """A URI, and a header beside it."""
    given, header = parted(data, 2)
    uri = given.decode("utf-8", "replace")
    for surface in _surfaces():
        found = surface.find_resource(uri)
        if found is not None:
            operation, arguments = found
            try:
                operation.parse(arguments, strict=False)
            except InvalidParams as error:
                msgspec.json.encode(error.failure)
        surface.find_template(uri)
    _host_name(uri)
    _guard()._is_named_origin(uri)
    _markdown(f"[a]({uri}) [[{uri}]]\n[b]: {uri}\n")
    try:
        url = parse(uri)
    except InvalidParams:
        return
    assert "/" not in name_of(str(url), header.decode("latin-1"))
    try:
        _next(url, header.decode("latin-1"))
    except (OperationError, Forbidden):
        return
