"""A limit on processor time, for what takes minutes if it is not linear."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def processor_time(most_s: float) -> Iterator[None]:
    """Fail what takes more of it than `most_s`.  Time in which the process waits does not count."""

    def fail(signum: int, frame: object) -> None:
        raise AssertionError(f"it took more than {most_s} s of processor time")

    before = signal.signal(signal.SIGVTALRM, fail)
    signal.setitimer(signal.ITIMER_VIRTUAL, most_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
