"""The kinds of storms. Only the standard library: every `linckia help` reads this."""

from __future__ import annotations

STORMS = {
    "kills": "kill -9 while calls are in flight, then start it again",
    "stops": "SIGSTOP while calls are in flight, SIGCONT after a while",
    "slow": "a client that reads nothing for seconds, and then goes on",
    "floods": "many calls at once, odd ids, huge arguments, many notifications",
    "torn": "messages cut between writes, several in one write, CRLF, blank lines",
    "rubbish": "lines that are no messages, invalid UTF-8, deep and long JSON",
    "protocol": "unknown methods and tools, wrong parameters, ids used twice, cancelled calls, calls before initialize",
    "ends": "stdin closed, or the whole client gone, while calls are in flight",
    "growth": "the same calls again and again: does memory, or the number of open files, grow without end?",
}
"""What a storm is made of."""

MARK = "$ID"
"""In the arguments of a write, this becomes a text that no other write has."""
