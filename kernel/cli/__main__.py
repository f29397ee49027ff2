"""Runs one command (`linckia`, `python -m kernel.cli`). All errors end here, as a line that says what to do next."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from kernel.cli import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from kernel.cli.parser import build_parser, commands_of, reordered
from proto.control.address import find_data_dir
from proto.control.client import CallFailed, ControlError
from proto.control.commands import Failed, Usage
from proto.control.terminal import complain, program


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code; usage errors exit by argparse."""
    argv = sys.argv[1:] if argv is None else argv
    parser = build_parser(argv)
    arguments = parser.parse_args(reordered(argv, commands_of(parser)))
    arguments.data_dir = find_data_dir(arguments.data, os.environ)
    named = program.set(f"linckia {arguments.command}")
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has stopped (`linckia tools | head`). Without this, Python's flush at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Usage as error:
        return _say(error, EXIT_USAGE)
    except CallFailed as error:
        called = arguments.name if arguments.command == "call" else None
        return _say(describe(error, called), EXIT_FAILED)
    except (ControlError, Failed, OSError) as error:
        return _say(error, EXIT_FAILED)
    finally:
        program.reset(named)
    return code


def _say(what: object, code: int) -> int:
    complain(what)
    return code


_WHERE_TO_LOOK = {"unavailable": "status", "internal": "logs", "unknown_operation": "tools"}


def describe(error: CallFailed, operation: str | None = None) -> str:
    """Describe a failure in words, including whether the work may have been done and when to retry, if it matters.

    Args:
        operation: the one that the user called by name, and whose parameters the user may look up.
    """
    failure = error.failure
    # Indented, so that it cannot be mistaken for one of our own lines.
    text = str(failure.get("message", "failed")).replace("\n", "\n  ")
    look = _WHERE_TO_LOOK.get(failure.get("kind", ""))
    if operation is not None and failure.get("kind") == "invalid_params" and "parameter" in text:
        look = f"tools {operation}"
    if failure.get("executed") == "maybe":
        text += "\nIt may have been done: check before you repeat it."
    if retry_after_ms := failure.get("retry_after_ms"):
        text += f"\nTry again in {retry_after_ms / 1000:.1f} s."
    return f"{text}\nSee: linckia {look}" if look else text


if __name__ == "__main__":
    sys.exit(main())
