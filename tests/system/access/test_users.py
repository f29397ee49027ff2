"""A kernel run by root, with an interpreter that other users can reach: its services are users of their own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from kernel.configure import users
from services.runtime import privileges
from tests.system.running import RunningKernel, command_for_others, reachable_interpreter, running

QUICK = ("echo", "graph", "retrieve", "knowledge", "watch")


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


def kernel(data: Path, root: Path, own_users: str = "true") -> AbstractContextManager[RunningKernel]:
    with_setting = {"LINCKIA_OWN_USERS": own_users}
    return running(data, [root], environment=with_setting, command=command_for_others(QUICK), all_ready=False)


def owner(kernel: RunningKernel, name: str) -> int:
    return Path(f"/proc/{kernel.service(name)['pid']}").stat().st_uid


def capabilities(kernel: RunningKernel, name: str) -> int:
    status = Path(f"/proc/{kernel.service(name)['pid']}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("CapPrm")).split()[1], 16)


def test_services_that_write_only_their_own_folder_are_users_and_the_data_survives_a_change(data: Path) -> None:
    root = data.parent / "root"
    root.mkdir(0o700)
    (root / "text.txt").write_text("theirs")
    for path in (root, root / "text.txt"):
        os.chown(path, 4711, 4711)
    to_read, to_write = privileges._DAC_READ_SEARCH, privileges._TO_WRITE
    with kernel(data, root) as running_kernel:
        running_kernel.wait_ready(*QUICK)
        for name in ("echo", "graph", "retrieve", "watch"):
            own = users.user_of(data, name).uid
            assert owner(running_kernel, name) == own
            assert (data / "services" / name).stat().st_uid == own
            assert f"user {own}" in running_kernel.service(name)["info"]["confined"]
            assert capabilities(running_kernel, name) == (to_read if name == "watch" else 0)
        assert (owner(running_kernel, "knowledge"), capabilities(running_kernel, "knowledge")) == (0, to_write)
        running_kernel.call("graph_put", {"corpus": "test", "nodes": [{"id": "one"}]})
        # A killed one comes back as who it was.
        running_kernel.kill("graph")
        running_kernel.wait_ready("graph")
        assert owner(running_kernel, "graph") == users.user_of(data, "graph").uid
    with kernel(data, root, own_users="false") as running_kernel:
        running_kernel.wait_ready("graph", "watch")
        assert (owner(running_kernel, "graph"), capabilities(running_kernel, "graph")) == (0, 0)
        assert (owner(running_kernel, "watch"), capabilities(running_kernel, "watch")) == (0, to_read)
        assert running_kernel.call("graph_stats")["nodes"] == 1
        assert "no privileges of root" in running_kernel.service("graph")["info"]["confined"]
