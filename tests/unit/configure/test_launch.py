"""The roots in a service's launch configuration, and what the operating system lets it do there."""

from __future__ import annotations

from pathlib import Path

from kernel.configure.catalog import ENTRIES, pools
from kernel.configure.config import Config
from kernel.configure.launch import LaunchConfigs, RootFolders
from proto import ops


def test_roots_that_are_only_read_are_not_written_whatever_the_service(tmp_path: Path) -> None:
    read, write = tmp_path / "read", tmp_path / "write"
    for folder in (read, write, tmp_path / "data"):
        folder.mkdir()
    config = Config(
        data_dir=tmp_path / "data", roots=(read, write), read_only_roots=(read,), denied=(str(tmp_path / "data"),),
        denied_patterns=("**/*.pem",), own_users=False,
    )  # fmt: skip
    entries = {entry.spec.name: entry for entry in ENTRIES}
    launch_config = LaunchConfigs(config, entries, ops.Table(ops.load().values()), RootFolders(config.roots))
    for name, read_only in (("files", (str(read),)), ("media", (str(read), str(write))), ("graph", ())):
        launch = launch_config(entries[name].spec, 1, "")
        limits = launch.confinement
        assert limits is not None
        assert set(limits.read) >= set(read_only)
        assert limits.write == tuple(root for root in launch.roots if root not in read_only)
        assert launch.read_only == read_only
        assert launch.denied == (config.denied if launch.roots else ())
        assert launch.denied_patterns == (config.denied_patterns if launch.roots else ())


def test_folders_that_are_followed_are_read_by_their_service_and_the_watcher_alone(tmp_path: Path) -> None:
    root, sessions = tmp_path / "root", tmp_path / "sessions"
    settings: dict[str, dict[str, object]] = {"transcripts": {"follow": [str(sessions)]}}
    (tmp_path / "data").mkdir()
    config = Config(data_dir=tmp_path / "data", roots=(root,), services=settings, own_users=False)
    served = pools(ENTRIES, settings, rest_after_s=0, standbys=True)
    entries = {name: pool[0] for name, pool in served.items()}
    launch_config = LaunchConfigs(config, entries, ops.Table(ops.load().values()), RootFolders(config.roots))
    for name, entry in entries.items():
        launch = launch_config(entry.spec, 1, "")
        assert launch.confinement is not None
        places = (*launch.roots, *launch.confinement.read, *launch.confinement.write)
        assert (str(sessions) in places) is (name in ("transcripts", "watch")), name
        assert str(sessions) not in launch.confinement.write
    transcripts = launch_config(entries["transcripts"].spec, 1, "")
    assert (transcripts.roots, transcripts.read_only) == ((str(sessions),), (str(sessions),))
