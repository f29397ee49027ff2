"""The signals that end a program. SIGINT and SIGHUP do so unless whoever started it said otherwise.

A shell starts a job in the background (`linckia serve &` in a script) with SIGINT ignored, and `nohup` one with SIGHUP
ignored: Ctrl-C and the end of the terminal are meant for other programs. SIGTERM always ends a program.
"""

from __future__ import annotations

import signal


def end_signals(*numbers: signal.Signals) -> list[signal.Signals]:
    """Return those that were not ignored when the program started. Call it before handlers are installed."""
    return [number for number in numbers if number is signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN]
