"""The process of the recording proxy, which serves in front of a model API until it is stopped.

It does not run under the kernel, because a restart of the kernel must not interrupt a reply. `linckia proxy` replaces
itself with this process.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from proto.host.end_signals import end_signals
from services.transcripts.proxy.recorder import Recorder, Spool
from services.transcripts.proxy.relay import Relay, Upstream

SPOOL = Path("proxy") / "spool"
"""Relative to the data directory."""

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C or SIGTERM. Returns an exit code of the `linckia` command."""
    parser = argparse.ArgumentParser(prog="linckia proxy", allow_abbrev=False)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--agent", default="")
    parser.add_argument("--project", default="")
    arguments = parser.parse_args(argv)
    try:
        return _run(arguments)
    except ValueError as error:
        print(f"linckia: {error}", file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"linckia: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _run(arguments: argparse.Namespace) -> int:
    """Raises ValueError for a wrong option and OSError if it cannot listen."""
    try:
        upstream = Upstream.parse(arguments.upstream)
    except ValueError as error:
        raise ValueError(f"--upstream: {error}") from None
    host, _, port = arguments.listen.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"--listen is {arguments.listen!r}; expected HOST:PORT")
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="linckia: %(message)s")
    data_dir: Path = arguments.data
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
                await Relay(upstream, recorder.add).run(client)
            except* Exception:
                # A defect in one connection ends only that connection.
                logging.getLogger("linckia.proxy").exception("a connection failed")

    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    with trio.open_signal_receiver(*end_signals(signal.SIGTERM, signal.SIGINT)) as signals:
        async with trio.open_nursery() as nursery:
            await nursery.start(recorder.run)
            for listener in listeners:
                bound = listener.socket.getsockname()
                name = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
                print(f"http://{name}:{bound[1]} forwards to {upstream.url}", flush=True)
            nursery.start_soon(trio.serve_listeners, serve, listeners)
            async for _ in signals:
                nursery.cancel_scope.cancel()
                break


if __name__ == "__main__":
    sys.exit(main())
