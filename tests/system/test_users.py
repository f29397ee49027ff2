"""A kernel run by root, with an interpreter that other users can reach: its services are users of their own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from kernel import users
from tests.system.running import RunningKernel, command_for_others, reachable_interpreter, running

QUICK = ("echo", "graph", "retrieve", "knowledge")


pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give its services users of their own"),
    pytest.mark.skipif(reachable_interpreter() is None, reason="no interpreter that other users can reach"),
    pytest.mark.skipif(not users._is_mapped(users.FIRST_ID), reason="this user namespace has no numbers to spare"),
]


@pytest.fixture
def data() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder) / "data"


def kernel(data: Path, own_users: str = "true") -> AbstractContextManager[RunningKernel]:
    with_setting = {"LINCKIA_OWN_USERS": own_users}
    return running(data, environment=with_setting, command=command_for_others(), all_ready=False)


def owner(kernel: RunningKernel, name: str) -> int:
    return Path(f"/proc/{kernel.service(name)['pid']}").stat().st_uid


def test_services_without_roots_are_users_of_their_own_and_the_data_survives_a_change(data: Path) -> None:
    with kernel(data) as running_kernel:
        running_kernel.wait_ready(*QUICK)
        for name in ("echo", "graph", "retrieve"):
            own = users.user_of(data, name).uid
            assert owner(running_kernel, name) == own
            assert (data / "services" / name).stat().st_uid == own
            assert f"user {own}" in running_kernel.service(name)["info"]["confined"]
        assert owner(running_kernel, "knowledge") == 0
        running_kernel.call("graph_put", {"corpus": "test", "nodes": [{"id": "one"}]})
        # A killed one comes back as who it was.
        running_kernel.kill("graph")
        running_kernel.wait_ready("graph")
        assert owner(running_kernel, "graph") == users.user_of(data, "graph").uid
    with kernel(data, own_users="false") as running_kernel:
        running_kernel.wait_ready("graph")
        assert owner(running_kernel, "graph") == 0
        assert running_kernel.call("graph_stats")["nodes"] == 1
        assert "no privileges of root" in running_kernel.service("graph")["info"]["confined"]
