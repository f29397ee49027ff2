"""Users of services: stable numbers without accounts, and only if they can reach the files they need."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

import pytest

from kernel.configure import users

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another group")


def test_each_service_of_each_data_directory_has_a_user_of_its_own_that_stays() -> None:
    made = [users.user_of(Path(f"/data{n}"), service) for n in range(20) for service in ("echo", "graph", "embed")]
    assert len({user.uid for user in made}) == len(made)
    assert len({user.gid for user in made}) == 20
    assert users.user_of(Path("/data0"), "echo") == made[0]
    assert all(2**31 > user.uid >= users.FIRST_ID for user in made)
    assert not {user.uid for user in made} & {account.pw_uid for account in pwd.getpwall()}


def test_a_folder_that_others_cannot_enter_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    inner = closed / "inner"
    inner.mkdir(parents=True)
    closed.chmod(0o700)
    answer = users.unreachable([inner])
    assert answer is not None
    assert str(closed if all(p.stat().st_mode & 0o001 for p in tmp_path.parents) else "") in answer
    assert users.unreachable([Path("/usr/bin/env")]) is None


@as_root
def test_the_data_directory_lets_its_group_through_and_nobody_else(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    users.admit(data)
    users.admit(data)
    for folder in (data, data / "services"):
        found = folder.stat()
        assert stat.S_IMODE(found.st_mode) == 0o710
        assert (found.st_uid, found.st_gid) == (0, users.user_of(data, "echo").gid)
