"""Mounted servers are compared with the settings, and fronts learn of each change once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import tomlkit
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kernel.cli.settings.layers import Flags
from kernel.cli.settings.loading import load
from kernel.configure.config import ConfigError
from kernel.control import mounts
from kernel.control.mounts import LiveMounts
from kernel.router.generation import Limits, ServiceState
from kernel.router.router import Router
from kernel.supervisor.supervisor import Supervisor
from proto import ops
from proto.mounts import MountRequest, MountTable, operations_of
from proto.ops import Table
from proto.ops.kernel import MountsReloaded
from proto.origin import Origin
from proto.wire.front import SERVICE as FRONT
from tests.unit.supervisor.stage import Stage, launch_config_of
from tests.unit.supervisor.world import service


class Live:
    """Mounted servers whose processes are actors."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.mount()
        read_settings = partial(load, Flags(data_dir=str(data_dir)), {})
        config = read_settings()
        self.table = own = ops.load()
        self.router = Router(own, {})
        front = service(FRONT)
        self.router.add(FRONT, Limits(1, 1))
        self.supervisor = Supervisor((front,), (), self.router, launch_config_of, Stage())
        self.mounts = LiveMounts(
            config=config, entries=mounts.mounted(config), own=own, launched={}, router=self.router,
            supervisor=self.supervisor, replace_table=self.replace, read_settings=read_settings,
        )  # fmt: skip

    def replace(self, table: Table) -> None:
        self.table = self.router.table = table

    def mount(self, **tables: dict[str, object]) -> None:
        given = {name.replace("_", "-"): {"command": "cat", **table} for name, table in tables.items()}
        (self.data_dir / "linckia.toml").write_text(tomlkit.dumps({"mcp": given}))

    async def reload(self, **tables: dict[str, object]) -> MountsReloaded:
        self.mount(**tables)
        return await self.mounts.reload()

    def names(self) -> list[str]:
        return [each.name for each in self.supervisor.status().services if each.name != FRONT]


@asynccontextmanager
async def live(data_dir: Path) -> AsyncIterator[Live]:
    made = Live(data_dir)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.router.run)
        await nursery.start(made.supervisor.run)
        yield made
        await made.supervisor.shutdown()
        nursery.cancel_scope.cancel()


async def test_changed_mounts_are_updated_and_the_rest_is_left_alone(tmp_path: Path) -> None:
    async with live(tmp_path) as live_:
        assert await live_.reload(a={}, b_c={"start": "eager"}) == MountsReloaded(added=["a", "b-c"])
        assert live_.names() == ["mcp_a", "mcp_b_c"]
        await live_.supervisor.wait_for("mcp_b_c", (ServiceState.READY,))
        assert {"mcp_a.read", "mcp_b_c.change"} < set(live_.table)
        assert await live_.reload(a={}, b_c={"start": "eager"}) == MountsReloaded()
        assert live_.supervisor.generation("mcp_b_c") == 1
        assert await live_.reload(a={"timeout": 3}, b_c={"enabled": False}) == MountsReloaded(
            removed=["b-c"], changed=["a"]
        )
        with pytest.raises(Exception, match="was removed"):
            await live_.supervisor.wait_for("mcp_b_c", ())
        assert (live_.names(), "mcp_b_c.read" in live_.table) == (["mcp_a"], False)


async def test_wrong_settings_change_nothing(tmp_path: Path) -> None:
    async with live(tmp_path) as live_:
        await live_.reload(a={})
        with pytest.raises(ConfigError, match=r"linckia\.toml.*timeout"):
            await live_.reload(b={"timeout": "long"})
        assert live_.names() == ["mcp_a"]


async def test_a_server_may_be_renamed_to_a_name_that_makes_the_same_service(tmp_path: Path) -> None:
    async with live(tmp_path) as live_:
        await live_.reload(b_c={"start": "eager"})
        await live_.supervisor.wait_for("mcp_b_c", (ServiceState.READY,))
        (tmp_path / "linckia.toml").write_text('mcp.b_c = {command = "cat", start = "eager"}')
        assert await live_.mounts.reload() == MountsReloaded(added=["b_c"], removed=["b-c"])
        assert await live_.supervisor.wait_for("mcp_b_c", (ServiceState.READY,), after_generation=1)
        assert [each.name for each in (await live_.mounts.after(0)).mounts] == ["b_c"]


async def test_fronts_wait_for_a_change_and_get_the_new_table(tmp_path: Path) -> None:
    async with live(tmp_path) as live_:
        first = await live_.mounts.after(0)
        assert first.mounts == []
        found: list[MountTable] = []

        async def wait() -> None:
            found.append(await live_.mounts.after(first.version))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            assert found == []
            await live_.reload(a={"tools": {"deny": ["x*"]}, "stateful": True})
        (table,) = found
        (mount,) = table.mounts
        assert (table.version > first.version, mount.name, mount.tools.deny, mount.stateful) == (
            True, "a", ["x*"], True,
        )  # fmt: skip


async def test_fronts_are_answered_after_a_while_anyway(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with live(tmp_path) as live_:
        table = await live_.mounts.after(0)
        before = trio.current_time()
        assert (await live_.mounts.after(table.version)).version == table.version
        assert trio.current_time() - before == mounts.POLL_S


async def test_a_call_of_a_removed_server_says_so(tmp_path: Path) -> None:
    async with live(tmp_path) as live_:
        await live_.reload(a={})
        operation = operations_of("a")["read"]
        await live_.reload()
        with pytest.raises(Exception, match="the server a was removed"):
            await live_.router.call(operation, MountRequest(method="tools/list"), origin=Origin("client"))


async def test_fronts_know_which_servers_are_disabled_and_learn_of_their_removal(tmp_path: Path) -> None:
    async with live(tmp_path) as live_:
        await live_.reload(a={}, b={"enabled": False})
        table = await live_.mounts.after(-1)
        assert ([mount.name for mount in table.mounts], table.disabled) == (["a"], ["b"])
        assert await live_.reload(a={}) == MountsReloaded()
        later = await live_.mounts.after(table.version)
        assert (later.version > table.version, later.disabled) == (True, [])
