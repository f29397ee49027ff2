"""`linckia proxy`: a recording proxy in front of a model's API, until it is ended.

It is a process of its own, for a restart of the kernel must not cut anybody's reply short.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from pathlib import Path

import trio

from linckia.kernel.cli import Failed, Usage
from linckia.kernel.proxy.passage import Passage, Upstream
from linckia.kernel.proxy.recorder import Recorder, Spool

SPOOL = Path("proxy") / "spool"
"""Below the data directory."""


def proxy(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM.  Raises Usage, Failed."""
    try:
        upstream = Upstream.parse(arguments.upstream)
    except ValueError as error:
        raise Usage(f"--upstream: {error}") from None
    host, _, port = arguments.listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise Usage(f"--listen is {arguments.listen!r}; it is HOST:PORT")
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="linckia: %(message)s")
    data_dir: Path = arguments.data_dir
    recorder = Recorder(data_dir, Spool(data_dir / SPOOL), agent=arguments.agent, project=arguments.project)
    trio.run(_serve, upstream, host.strip("[]"), int(port), recorder)
    print(
        f"{recorder.handed_over} turns were recorded" + (f", {recorder.lost} were not" if recorder.lost else ""),
        file=sys.stderr,
    )
    return 0


async def _serve(upstream: Upstream, host: str, port: int, recorder: Recorder) -> None:
    passage_limit = trio.CapacityLimiter(10_000)

    async def serve(client: trio.SocketStream) -> None:
        async with passage_limit:
            try:
                await Passage(upstream, recorder.add).run(client)
            except* Exception:
                # A defect in one connection is that connection's end, and no other's.
                logging.getLogger("linckia.proxy").exception("a connection failed")

    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise Failed(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            await nursery.start(recorder.run)
            for listener in listeners:
                bound = listener.socket.getsockname()
                name = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
                print(f"http://{name}:{bound[1]} passes on to {upstream.url}", flush=True)
            nursery.start_soon(trio.serve_listeners, serve, listeners)
            async for _ in signals:
                nursery.cancel_scope.cancel()
                break
