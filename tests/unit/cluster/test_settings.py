"""`[cluster]` says which services run on other machines; whatever cannot work is refused with the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from kernel.cli import status
from kernel.cli.care import doctor
from kernel.cli.care.findings import Verdict
from kernel.cli.settings import loading
from kernel.cli.settings.layers import Flags
from kernel.configure import catalog
from kernel.configure.config import ClusterSettings, Config, ConfigError, Placed
from kernel.configure.launch import LaunchConfigs, RootFolders
from kernel.control.mounts import mounted
from proto.host import extras
from proto.ops import Table
from proto.ops.kernel import ClusterNode, ClusterStatus, KernelFigures
from proto.wire.cluster import Resources
from services.front.web.metrics import exposition

STATE = ClusterStatus(
    engine="ray",
    address="10.0.0.1:6379",
    nodes=[
        ClusterNode(name="10.0.0.2/abc", num_cpus=8.0, num_gpus=1.0, memory_bytes=1, services=["embed"]),
        ClusterNode(name="10.0.0.1/def", num_cpus=0.0, num_gpus=0.0, memory_bytes=1),
    ],
)


def load(folder: Path, text: str) -> Config:
    (folder / "linckia.toml").write_text(text)
    return loading.load(Flags(data_dir=str(folder)), {})


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda extra: True)


@pytest.mark.usefixtures("_installed")
def test_a_service_reserves_what_its_table_says(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        '[cluster]\nengine = "ray"\n[cluster.services.embed]\nnum_gpus = 0.5\nlabels = { region = "cellar" }\n',
    )
    assert found.cluster == ClusterSettings(
        engine="ray", services={"embed": Placed(num_gpus=0.5, labels={"region": "cellar"})}
    )


@pytest.mark.usefixtures("_installed")
def test_the_tables_of_several_files_are_merged(tmp_path: Path) -> None:
    more = tmp_path / "more.toml"
    more.write_text('[cluster]\nengine = "ray"\naddress = "h:1"\n[cluster.services.llm]\n')
    (tmp_path / "linckia.toml").write_text('[cluster]\nengine = "ray"\n[cluster.services.embed]\nnum_cpus = 2\n')
    found = loading.load(Flags(data_dir=str(tmp_path), config_file=str(more)), {}).cluster
    assert found is not None
    assert (found.address, list(found.services)) == ("h:1", ["embed", "llm"])


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    "wrong",
    [
        '[cluster]\nengine = "dask"\n',
        '[cluster]\naddress = "auto"\n',
        '[cluster]\nengine = "ray"\nadress = "auto"\n',
        '[cluster]\nengine = "ray"\n[cluster.services.embed]\nnum_gpus = -1\n',
        '[cluster]\nengine = "ray"\n[cluster.services.embed]\ngpus = 1\n',
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(ConfigError, match="cluster"):
        load(tmp_path, wrong)


def test_without_ray_the_command_that_installs_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda extra: False)
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, '[cluster]\nengine = "ray"\n')
    assert extras.command_for(extras.RAY) in str(refused.value)


def placed(services: Mapping[str, Placed], settings: Mapping[str, Mapping[str, object]]) -> dict[str, Resources]:
    pools = catalog.pools(catalog.ENTRIES, settings, rest_after_s=60, standbys=True)
    return catalog.placed(pools, ClusterSettings(engine="ray", services=dict(services)), settings)


def test_each_process_of_a_pool_reserves_the_same() -> None:
    wanted = Resources(num_cpus=2)
    given = placed({"embed": Placed(num_cpus=2)}, {"embed": {"workers": 2}})
    assert given == {"embed": wanted, "embed-2": wanted}


def pool_of(bounds: Placed, name: str = "embed", **settings: object) -> list[tuple[str, bool, float | None]]:
    """Each process's name, whether it is lazy, and when it rests."""
    cluster = ClusterSettings(engine="ray", services={name: bounds})
    pools = catalog.pools(catalog.ENTRIES, {name: settings}, rest_after_s=60, standbys=True, cluster=cluster)
    assert {each.spec.grows_after_s for each in pools[name]} == {catalog.GROWS_AFTER_S}
    return [(each.spec.name, each.spec.lazy, each.spec.rests_after_s) for each in pools[name]]


def test_a_pool_with_bounds_keeps_its_least_number_of_processes() -> None:
    bounds = Placed(min=2, max=3)
    found = pool_of(bounds, unload_after_s=20)
    assert found[:2] == [("embed", False, None), ("embed-2", False, None)]
    assert found[2:] == [("embed-3", True, 20)]
    assert pool_of(Placed(max=2)) == [("embed", False, 60), ("embed-2", True, 60)]
    assert bounds.reserved == Resources()


@pytest.mark.parametrize(
    ("name", "bounds", "settings", "words"),
    [
        ("embed", Placed(min=1), {}, "`max` must be"),
        ("embed", Placed(min=3, max=2), {}, "`max` must be"),
        ("embed", Placed(max=2), {"workers": 2}, "workers must not be set"),
        ("echo", Placed(max=2), {}, "always has one process"),
    ],
    ids=str,
)
def test_bounds_that_cannot_be_are_refused(
    name: str, bounds: Placed, settings: Mapping[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        pool_of(bounds, name, **settings)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("embde", {}, "embed"),
        ("knowledge", {}, "must run on this machine"),
        ("llm", {"llm": {"key_file": "/k"}}, "key_file"),
    ],
    ids=str,
)
def test_a_service_that_cannot_run_elsewhere_is_refused(
    name: str, settings: Mapping[str, Mapping[str, object]], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        placed({name: Placed()}, settings)


def test_services_with_data_or_roots_stay_here() -> None:
    stateless = {each.service for each in catalog.ENTRIES if each.manifest.stateless}
    assert stateless == {"decode", "echo", "embed", "llm", "rerank"}
    assert not any(each.uses_roots for each in catalog.ENTRIES if each.manifest.stateless)


def test_status_lists_the_nodes_and_what_runs_there() -> None:
    assert status.cluster(STATE) == [
        "ray    10.0.0.1:6379: 2 nodes",
        "       10.0.0.2/abc: 8 processors, 1 GPUs; embed",
        "       10.0.0.1/def: 0 processors; nothing of this system",
    ]
    assert status.cluster(replace(STATE, nodes=[], problem="the head is gone")) == [
        "ray    10.0.0.1:6379: the head is gone"
    ]
    assert status.cluster(None) == []


def test_doctor_says_why_the_cluster_is_not_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._ray(STATE).verdict is Verdict.OK
    broken = doctor._ray(replace(STATE, problem="the head is gone"))
    assert "the head is gone" in broken.found
    assert broken.verdict is not Verdict.OK
    monkeypatch.setattr(extras, "is_installed", lambda extra: False)
    assert extras.command_for(extras.RAY) in doctor._ray(None).remedy


def test_metrics_count_nodes_and_processes() -> None:
    node = ClusterNode(name="10.0.0.2/abc", num_cpus=8, num_gpus=1, memory_bytes=1, services=["embed", "echo"])
    figures = KernelFigures(
        version="1", rss_bytes=1, worst_turn_s=0, worst_turn_cpu_s=0, late_turns=0, services=[], lanes={}, zygotes=[],
        states=[], causes=[], cluster=ClusterStatus(engine="ray", address="auto", restarts=3, nodes=[node]),
    )  # fmt: skip
    lines = exposition(figures).decode().splitlines()
    assert "linckia_cluster_connected 1.0" in lines
    assert "linckia_cluster_nodes 1.0" in lines
    assert "linckia_cluster_restarts_total 3.0" in lines
    assert 'linckia_cluster_node_processes{node="10.0.0.2/abc"} 2.0' in lines


@pytest.mark.parametrize(
    ("table", "cluster", "words"),
    [
        ({"command": "x"}, None, "no table .cluster."),
        ({"url": "https://example.org"}, ClusterSettings(engine="ray"), "only for a `command`"),
        ({"command": "x", "confine": True}, ClusterSettings(engine="ray"), "confined"),
        ({"command": "x", "cwd": f"/data/mcp/bundles/{'a' * 64}"}, ClusterSettings(engine="ray"), "bundle"),
        ({"command": "x", "cluster": {"num_gpu": 1}}, ClusterSettings(engine="ray"), "num_gpu"),
    ],
    ids=str,
)
def test_a_mounted_server_that_cannot_run_elsewhere_is_refused(
    table: dict[str, object], cluster: ClusterSettings | None, words: str, tmp_path: Path
) -> None:
    config = Config(data_dir=tmp_path, roots=(), cluster=cluster, mounts={"one": {"cluster": {}, **table}})
    with pytest.raises(ConfigError, match=rf"mcp\.one.*{words}"):
        mounted(config)


def test_a_mounted_server_is_told_the_secret_of_the_driver_only_if_it_runs_on_the_cluster(tmp_path: Path) -> None:
    tables: dict[str, dict[str, object]] = {"here": {"command": "x"}, "there": {"command": "x", "cluster": {}}}
    config = Config(data_dir=tmp_path, roots=(), cluster=ClusterSettings(engine="ray"), mounts=tables)
    entries = {entry.spec.name: entry for entry in mounted(config).values()}
    launches = LaunchConfigs(config, entries, Table(()), RootFolders(()), driver="secret")
    told = {name: launches(entry.spec, 1, "").settings.get("driver") for name, entry in entries.items()}
    assert told == {"mcp_here": None, "mcp_there": "secret"}
