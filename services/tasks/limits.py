"""How much each owner may store: unfinished tasks, timers, and the bytes of their calls.

Without these limits, one client could fill the disk, and the memory of the service, which holds every unfinished task.
"""

from __future__ import annotations

from proto.errors import OperationError
from services.tasks.settings import TasksSettings
from services.tasks.store import Usage


class Limits:
    """The limits of the settings; each `check` runs in the transaction that stores the call."""

    def __init__(self, settings: TasksSettings) -> None:
        self._tasks, self._timers, self._bytes = settings.max_unfinished, settings.max_timers, settings.max_bytes

    def check_task(self, used: Usage, mandate: str) -> None:
        """Raises OperationError: the owner cannot start one more task for this call."""
        if used.tasks >= self._tasks:
            raise OperationError(
                f"`operation`: you have {used.tasks} unfinished tasks, the most allowed (`max_unfinished` of [tasks]); "
                "wait for some with tasks_wait or end some with tasks_cancel, then start this one",
                field="operation",
            )
        self._check_bytes(used, mandate)

    def check_timer(self, used: Usage, mandate: str) -> None:
        """Raises OperationError: the owner cannot have one more timer for this call."""
        if used.timers >= self._timers:
            raise OperationError(
                f"`operation`: you have {used.timers} timers, the most allowed (`max_timers` of [tasks]); "
                "remove some with timers_cancel, then add this one",
                field="operation",
            )
        self._check_bytes(used, mandate)

    def has_room(self, used: Usage, mandate: str) -> bool:
        """Whether a run of a stored timer can become a task. Timers do not count, so a timer that could be stored can
        run once nothing else does."""
        return used.tasks == 0 or (used.tasks < self._tasks and used.task_bytes + len(mandate) <= self._bytes)

    def _check_bytes(self, used: Usage, mandate: str) -> None:
        stored = used.task_bytes + used.timer_bytes
        if stored + len(mandate) > self._bytes:
            raise OperationError(
                f"`arguments`: this call takes {len(mandate)} bytes; your unfinished tasks and timers take {stored} "
                f"of the {self._bytes} bytes allowed (`max_bytes` of [tasks]); give paths instead of contents, wait "
                "for tasks with tasks_wait, or remove timers with timers_cancel",
                field="arguments",
            )
