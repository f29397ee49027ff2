"""Pools are as large as the settings say, and each of their processes is a service of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kernel.configure import catalog, manifests
from kernel.configure.config import ConfigError
from kernel.configure.spec import check
from proto import ops
from proto.host import extras


def served(settings: Mapping[str, Mapping[str, object]], rest_after_s: float = 60) -> tuple[catalog.ServiceEntry, ...]:
    pools = catalog.pools(catalog.ENTRIES, settings, rest_after_s=rest_after_s, standbys=True)
    return tuple(pool[0] for pool in pools.values())


BY_NAME = {entry.spec.name: entry for entry in catalog.ENTRIES}


def test_a_pool_is_as_many_supervised_processes_of_one_service() -> None:
    pool = catalog.pool(BY_NAME["embed"], 3)
    assert [entry.spec.name for entry in pool] == ["embed", "embed-2", "embed-3"]
    assert {entry.service for entry in pool} == {"embed"}
    assert {entry.spec.module for entry in pool} == {"services.embed.main"}
    others = tuple(entry for name, entry in BY_NAME.items() if name != "embed")
    every = (*pool, *others)
    check(tuple(entry.spec for entry in every), catalog.zygotes(every))


def test_the_size_is_what_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "gpu_present", lambda: False)
    monkeypatch.setattr(catalog, "usable_cores", lambda: 33)
    embed = BY_NAME["embed"]
    assert catalog.workers(embed, {}) == 1
    assert catalog.workers(embed, {"workers": 3}) == 3
    assert catalog.workers(embed, {"workers": "auto"}) == 4
    assert catalog.workers(BY_NAME["yaml"], {"workers": 3}) == 1


def test_fronts_are_as_many_as_the_kernel_can_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, fronts in ((1, 1), (2, 1), (3, 1), (4, 2), (6, 3), (8, 4), (128, 4)):
        monkeypatch.setattr(catalog, "usable_cores", lambda cores=cores: cores)
        assert catalog.workers(BY_NAME["front"], {"workers": "auto"}) == fronts


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.setattr(extras, "gpu_present", lambda: True)
    monkeypatch.setattr(extras, "_gpu_devices", lambda: [Path(f"/dev/nvidia{n}") for n in range(4)])


def with_gpu(name: str) -> catalog.ServiceEntry:
    return catalog.entry(next(each for each in manifests.built_in() if each.manifest.name == name))


@pytest.mark.parametrize("name", ["embed", "rerank"])
@pytest.mark.usefixtures("four_gpus")
def test_a_pool_has_a_process_for_each_gpu_and_each_process_sees_one(name: str) -> None:
    entry = with_gpu(name)
    assert entry.spec.modes == ("cuda", "cpu")
    assert catalog.workers(entry, {"workers": "auto"}) == 4
    pool = catalog.pool(entry, 4)
    assert [each.spec.env["CUDA_VISIBLE_DEVICES"] for each in pool] == ["0", "1", "2", "3"]
    assert {each.spec.env["CUDA_DEVICE_ORDER"] for each in pool} == {"PCI_BUS_ID"}
    assert [each.spec.env["CUDA_VISIBLE_DEVICES"] for each in catalog.pool(entry, 6)][4:] == ["0", "1"]


@pytest.mark.usefixtures("four_gpus")
def test_a_pool_uses_only_the_gpus_that_the_environment_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1f, 3, -1, 2")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    entry = with_gpu("embed")
    assert catalog.workers(entry, {"workers": "auto"}) == 2
    pool = catalog.pool(entry, 2)
    assert [each.spec.env["CUDA_VISIBLE_DEVICES"] for each in pool] == ["GPU-1f", "3"]
    assert pool[0].spec.env["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


@pytest.mark.usefixtures("four_gpus")
def test_services_without_models_and_machines_with_one_gpu_need_no_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "CUDA_VISIBLE_DEVICES" not in catalog.pool(with_gpu("compare"), 2)[1].spec.env
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert catalog.workers(with_gpu("embed"), {"workers": "auto"}) == 1
    assert "CUDA_VISIBLE_DEVICES" not in catalog.pool(with_gpu("embed"), 1)[0].spec.env


@pytest.mark.usefixtures("four_gpus")
def test_a_model_of_eight_billion_parameters_fits_into_the_memory_of_a_process_with_a_gpu() -> None:
    assert (with_gpu("embed").spec.memory_limit_bytes or 0) > 2 * 8_000_000_000
    assert BY_NAME["compare"].spec.memory_limit_bytes == with_gpu("compare").spec.memory_limit_bytes


@pytest.mark.parametrize("wrong", [0, 1001, "many", 1.5, True])
def test_an_impossible_size_is_refused_with_what_is_possible(wrong: object) -> None:
    with pytest.raises(ConfigError, match=r"services\.rerank\.workers is .*; it must be 1 to 1000, or auto"):
        catalog.workers(BY_NAME["rerank"], {"workers": wrong})


def test_a_service_that_may_be_left_out_is_left_out_where_the_settings_say_so() -> None:
    every = {entry.service for entry in catalog.ENTRIES}
    given: dict[str, dict[str, object]] = {
        "telemetry": {"endpoint": "http://127.0.0.1:4318"},
        "approvals": {"require": ["write"]},
    }
    assert {entry.service for entry in served(given)} == every
    left = served({"transcripts": {"enabled": False}, "yaml": {"enabled": False}})
    assert every - {entry.service for entry in left} == {"transcripts", "telemetry", "approvals"}


def test_torch_is_loaded_only_for_who_computes_by_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(extras, "gpu_present", lambda: False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))

    def by_torch(settings: dict[str, dict[str, object]]) -> set[str]:
        chosen = served(settings)
        by_it = {entry.spec.name for entry in chosen if entry.spec.zygote == "torch"}
        assert ("torch" in {spec.name for spec in catalog.zygotes(chosen)}) == bool(by_it)
        return by_it

    assert by_torch({}) == set()
    assert by_torch({"embed": {"backend": "torch"}}) == {"embed"}
    assert by_torch({"rerank": {"model": "/some/folder"}}) == {"rerank"}
    snapshot = tmp_path / "models--BAAI--bge-reranker-base" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    assert by_torch({}) == {"rerank"}
    assert by_torch({"rerank": {"model": "none"}}) == set()
    monkeypatch.setattr(extras, "gpu_present", lambda: True)
    assert by_torch({"rerank": {"model": "none"}}) == {"embed"}


def test_every_service_has_a_standby() -> None:
    assert [name for name, entry in BY_NAME.items() if not entry.spec.standby] == []


def test_only_what_does_nothing_unless_it_is_called_rests_and_after_the_time_that_a_setting_says() -> None:
    specs = {entry.spec.name: entry.spec for entry in served({"rerank": {"model": "none"}}, 60)}
    assert {name for name, spec in specs.items() if spec.rests_after_s is None} == {
        "front", "retrieve", "knowledge", "documents", "events", "files", "watch"
    }  # fmt: skip
    assert {spec.rests_after_s for spec in specs.values()} == {None, 60}
    assert {spec.standby_rests_after_s for spec in specs.values()} == {60}
    assert {entry.spec.rests_after_s for entry in served({}, 0)} == {None}
    # A search waits only briefly while a model loads.
    assert {name: entry.spec.rests_while for name, entry in BY_NAME.items() if entry.spec.rests_while} == {
        "rerank": ("model", "none"), "tasks": ("working", "none"),
    }  # fmt: skip


def test_costly_zygotes_rest_only_after_a_long_pause() -> None:
    entries = served({"embed": {"backend": "torch"}})
    for after_s, late in ((60, 300), (0, None)):
        rests = {spec.name: spec.rests_after_s for spec in catalog.zygotes(entries, after_s)}
        assert {name: limit for name, limit in rests.items() if limit is not None} == (
            {"decode": 0, "front": 0, "torch": late} if late else {"decode": 0, "front": 0}
        )


@pytest.mark.parametrize(
    ("own", "general", "limit"), [({}, 60, 60), (600, 60, 600), (0, 60, None), (600, 0, 600), ("soon", 60, 60)]
)
def test_a_models_own_setting_says_when_its_process_rests(own: object, general: float, limit: float | None) -> None:
    settings = {} if own == {} else {"unload_after_s": own}
    spec = catalog.configured(BY_NAME["embed"], settings, rest_after_s=general).spec
    assert spec.rests_after_s == limit


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (60, ("model", "none"))),
        ({"unload_after_s": 600}, (600, None)),
        ({"unload_after_s": 0}, (None, ("model", "none"))),
    ],
)
def test_a_reranking_model_rests_only_where_its_own_setting_says_so(
    settings: dict[str, object], expected: tuple[float | None, tuple[str, str] | None]
) -> None:
    spec = catalog.configured(BY_NAME["rerank"], settings, rest_after_s=60).spec
    assert (spec.rests_after_s, spec.rests_while) == expected


def test_a_table_of_no_service_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="there is no service 'embd'; did you mean embed"):
        catalog.pools(catalog.ENTRIES, {"embd": {"model": 1}}, rest_after_s=60, standbys=True)


def test_an_external_package_is_a_service_with_its_own_operations() -> None:
    entry = catalog.served(["tests.conformance"])[-1]
    assert (entry.service, entry.spec.module) == ("conformance", "tests.conformance.main")
    names = {op.name for op in ops.load(entry.ops_modules).of_service("conformance")}
    assert "test_simple_text" in names
    assert not names & set(ops.load())


def test_the_folders_that_a_service_follows_are_its_own_and_the_watchers(tmp_path: Path) -> None:
    environment = {"CODEX_HOME": str(tmp_path / "codex")}

    def followed_by(own: dict[str, object]) -> dict[str, catalog.ServiceEntry]:
        settings = {"transcripts": own}
        pools = catalog.pools(catalog.ENTRIES, settings, rest_after_s=60, standbys=True, environment=environment)
        return {service: pool[0] for service, pool in pools.items()}

    def followed(*names: object) -> dict[str, catalog.ServiceEntry]:
        return followed_by({"follow": list(names)})

    found = followed("codex", str(tmp_path), "codex")
    wanted = (str(tmp_path / "codex" / "sessions"), str(tmp_path))
    assert {name: entry.follows for name, entry in found.items() if entry.follows} == {
        "transcripts": wanted, "watch": wanted,
    }  # fmt: skip
    assert found["transcripts"].spec.rests_after_s is None
    assert followed()["transcripts"].spec.rests_after_s == 60
    for wrong in ("claud", "sessions", 3):
        with pytest.raises(ConfigError, match=r"is neither claude, codex, .*, zed nor the absolute path of a folder"):
            followed(wrong)
    with pytest.raises(ConfigError, match="it must be a list"):
        followed_by({"follow": "claude"})


def test_only_what_mounted_servers_need_is_served_if_the_settings_say_so() -> None:
    pools = catalog.pools(catalog.ENTRIES, {}, rest_after_s=60, standbys=True, only_essential=True)
    assert set(pools) == {"front", "mounts"}
