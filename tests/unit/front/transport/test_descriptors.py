"""Writes to a client's descriptor that never wait for it."""

from __future__ import annotations

import fcntl
import os

import pytest
import trio

from services.front.transport.descriptors import PIPE_BYTES, Output, non_blocking


@pytest.mark.parametrize(
    ("before", "after"), [(65536, PIPE_BYTES), (2 * PIPE_BYTES, 2 * PIPE_BYTES)], ids=["as it comes", "wider"]
)
async def test_long_answer_goes_into_a_pipe_at_once(before: int, after: int) -> None:
    reading, writing = os.pipe()
    try:
        try:
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, before)
        except PermissionError:
            pytest.skip("this user's pipes may not be that wide")
        with non_blocking(writing):
            output = Output(writing)
            output.post(b"short")
            assert fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ) == before
            message = os.urandom(PIPE_BYTES - 8192 if before < PIPE_BYTES else 2 * PIPE_BYTES - 8192)
            # There is no reader, and nothing but `post` runs.
            output.post(message)
        assert fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ) == after
        received = b""
        while len(received) < 5 + len(message):
            received += os.read(reading, 1 << 22)
        assert received == b"short" + message
    finally:
        os.close(reading)
        os.close(writing)


async def test_each_message_counts_as_written_once_it_is_whole_whatever_waits_behind_it() -> None:
    reading, writing = os.pipe()
    try:
        with non_blocking(writing):
            output = Output(writing)
            counts: list[int] = []
            output.on_progress = lambda: counts.append(output.written)
            for _ in range(2):
                output.post(bytes(4 * PIPE_BYTES))
            assert (output.posted, output.written) == (2, 0)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(output.run)
                left = 4 * PIPE_BYTES
                while left:
                    await trio.lowlevel.wait_readable(reading)
                    left -= len(os.read(reading, left))
                while not output.written:
                    await trio.lowlevel.checkpoint()
                assert not output.empty
                assert counts[-1] == 1
                nursery.cancel_scope.cancel()
    finally:
        os.close(reading)
        os.close(writing)
