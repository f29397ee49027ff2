"""A compromised service next to others of the same user.

Under an ordinary user's kernel all services have that user, so a decoder is as close to them as any other. The modules
and models that other services load are out of reach.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernel.configure import catalog
from kernel.configure.config import Config
from kernel.configure.launch import LaunchConfigs, RootFolders
from proto import ops
from proto.host import models
from proto.manifest import Roots
from tests.system.running import RunningKernel
from tests.system.test_hostile import WALLS, assert_refused, attack, kernel

__all__ = ["kernel"]


@pytest.fixture
def others(kernel: RunningKernel) -> Path:
    """Return a file in another service's folder that the shared user may read and write."""
    path = kernel.data_dir / "services" / "embed" / "model.graph"
    path.parent.mkdir(mode=0o777, exist_ok=True)
    path.write_text("the graph")
    for each in (path, path.parent):
        os.chown(each, kernel.data_dir.stat().st_uid, -1)
        each.chmod(0o777)
    return path


def test_no_service_reads_or_replaces_what_another_has_stored(kernel: RunningKernel, others: Path) -> None:
    assert_refused(attack(kernel, "read_file", path=str(others)))
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY | os.O_TRUNC):
        assert_refused(attack(kernel, "open_file", path=str(others), flags=flags))
    assert_refused(attack(kernel, "make_file", path=str(others.with_name("another.graph"))))
    assert_refused(attack(kernel, "remove", path=str(others)))
    for way in (f"/proc/self/root{others}", f"/proc/self/cwd/../services/embed/{others.name}"):
        assert_refused(attack(kernel, "read_file", path=way))
    assert others.read_text() == "the graph"


@pytest.mark.parametrize("how", ["hard", "soft"])
def test_no_service_reads_what_another_has_stored_by_a_link(kernel: RunningKernel, others: Path, how: str) -> None:
    outcome = attack(kernel, "link_to", path=str(others), how=how)
    assert outcome.get("refused") in (*WALLS, "EXDEV"), outcome


def test_no_service_moves_a_file_into_the_place_of_anothers(kernel: RunningKernel, others: Path) -> None:
    outcome = attack(kernel, "move_to", path=str(others))
    assert outcome.get("refused") in (*WALLS, "EXDEV"), outcome
    assert others.read_text() == "the graph"


@pytest.mark.parametrize("what", ["environ", "mem", "maps", "cmdline", "fd/0"])
def test_no_service_looks_into_another(kernel: RunningKernel, what: str) -> None:
    assert_refused(attack(kernel, "look_into", pid=kernel.service("echo")["pid"], what=what))


@pytest.mark.parametrize("how", ["signal", "trace", "read", "hold", "limit", "compare"])
def test_no_service_touches_another(kernel: RunningKernel, how: str) -> None:
    assert_refused(attack(kernel, "touch_process", pid=kernel.service("echo")["pid"], how=how))


@pytest.mark.parametrize("how", ["memory", "semaphores", "messages", "queue", "key", "keys"])
def test_no_service_shares_memory_messages_or_keys(kernel: RunningKernel, how: str) -> None:
    assert_refused(attack(kernel, "share", how=how))


def test_no_service_exhausts_its_user_s_epoll_watches(kernel: RunningKernel) -> None:
    most = int(Path("/proc/sys/fs/epoll/max_user_watches").read_text())
    count = attack(kernel, "watch_much")["got"]
    assert 0 < count < most
    assert count <= (1024 // 2) ** 2


@pytest.mark.parametrize("entry", catalog.ENTRIES, ids=lambda entry: entry.spec.name)
def test_no_service_may_write_to_folders_from_which_others_load_models(
    tmp_path: Path, entry: catalog.ServiceEntry
) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "data").mkdir()
    config = Config(data_dir=tmp_path / "data", roots=(tmp_path / "root",), own_users=False)
    launch_config = LaunchConfigs(
        config, {entry.spec.name: entry}, ops.Table(ops.load().values()), RootFolders(config.roots)
    )
    for mode in entry.spec.modes or ("",):
        confinement = launch_config(entry.spec, 1, mode).confinement
        assert confinement is not None
        assert set(confinement.write) <= {str(tmp_path / "root")}
        assert not confinement.write or entry.manifest.roots is Roots.WRITE
        assert str(models.hub()) not in confinement.write
