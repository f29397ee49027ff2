"""A name that collides with Linckia's own stays with its first owner: no mounted server can rename the tools of
another.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from proto.mounts import Mount, MountRequest, Offered, ToolChoice
from services.front.gateway import Gateway
from tests.unit.front.mounted.rig import mounted_gateway, offered
from tests.unit.front.mounted.test_own_surface import ask
from tests.unit.front.wire import connected

OWNER = offered(tools=[{"name": "b_c"}, {"name": "own"}])
NEWCOMER = offered(tools=[{"name": "c"}, {"name": "d"}])
"""For a mount `a_b`, whose tool `c` wants the name `a_b_c`, as does `b_c` of a mount `a`."""


async def serve(kind: str, request: MountRequest, params: dict[str, Any]) -> Any:
    return {"content": [{"type": "text", "text": params["name"]}]}


async def names(gateway: Gateway, kind: str = "tools") -> list[str]:
    """The names of mounted tools or prompts on the surface `all`."""
    await trio.testing.wait_all_tasks_blocked()
    async with connected(gateway, "all") as wire:
        await wire.initialize()
        found = (await ask(wire, f"{kind}/list"))["result"][kind]
    return [each["name"] for each in found if each["name"].startswith("a_")]


async def called(gateway: Gateway, name: str) -> str:
    await trio.testing.wait_all_tasks_blocked()
    async with connected(gateway, "all") as wire:
        await wire.initialize()
        await wire.call(name)
        return str((await wire.receive())["result"]["content"][0]["text"])


def other(found: list[str]) -> str:
    """The name with a digest."""
    (name,) = [each for each in found if each.startswith("a_b_c_")]
    return name


@pytest.mark.parametrize(("first", "second"), [("a", "a_b"), ("a_b", "a")])
async def test_a_newcomer_cannot_rename_a_tool_not_even_after_a_restart(
    tmp_path: Path, first: str, second: str, caplog: pytest.LogCaptureFixture
) -> None:
    offers = {"a": OWNER, "a_b": NEWCOMER}
    own = {"a": "b_c", "a_b": "c"}
    async with mounted_gateway(serve, tmp_path, **{first: offers[first]}) as (gateway, mounts):
        assert "a_b_c" in await names(gateway)
        with caplog.at_level(logging.ERROR):
            mounts.mount(Mount(name=second), offers[second])
            found = await names(gateway)
        assert (len(found), len(set(found))) == (4, 4)
        assert await called(gateway, "a_b_c") == own[first]
        assert await called(gateway, other(found)) == own[second]
        (record,) = caplog.records
        said = f"the tool {own[second]!r} of the server {second} cannot be called a_b_c: that belongs to the server "
        assert record.getMessage() == said + first
    # The other order of the settings, and both from the beginning.
    async with mounted_gateway(serve, tmp_path, **{second: offers[second], first: offers[first]}) as (gateway, _):
        assert await names(gateway) == found
        assert await called(gateway, "a_b_c") == own[first]


async def test_a_name_is_kept_while_its_owner_does_not_offer_it_or_is_disabled(tmp_path: Path) -> None:
    async with mounted_gateway(serve, tmp_path, a=OWNER) as (gateway, mounts):
        mounts.offers("a", offered("2", tools=[{"name": "own"}]), "tools")
        mounts.mount(Mount(name="a_b"), NEWCOMER)
        assert "a_b_c" not in await names(gateway)
        mounts.offers("a", OWNER, "tools")
        assert await called(gateway, "a_b_c") == "b_c"
        mounts.disabled = ["a"]
        mounts.unmount("a")
        assert "a_b_c" not in await names(gateway)


async def test_a_name_is_free_once_its_owner_is_removed_from_the_settings(tmp_path: Path) -> None:
    async with mounted_gateway(serve, tmp_path, a=OWNER, a_b=NEWCOMER) as (gateway, mounts):
        before = await names(gateway)
        assert await called(gateway, "a_b_c") == "b_c"
        mounts.unmount("a")
        assert await names(gateway) == ["a_b_c", "a_b_d"]
        assert await called(gateway, "a_b_c") == "c"
        # Now it is the newcomer.
        mounts.mount(Mount(name="a"), OWNER)
        assert await called(gateway, "a_b_c") == "c"
        assert sorted(await names(gateway)) != sorted(before)


async def test_clients_are_notified_when_a_disabled_owner_is_removed(tmp_path: Path) -> None:
    async with mounted_gateway(serve, tmp_path, a=OWNER, a_b=NEWCOMER) as (gateway, mounts):
        mounts.disabled = ["a"]
        mounts.unmount("a")
        assert "a_b_c" not in await names(gateway)
        async with connected(gateway, "all") as wire:
            await wire.initialize()
            mounts.disabled = []
            mounts._table_changed()
            assert (await wire.receive())["method"] == "notifications/tools/list_changed"
        assert "a_b_c" in await names(gateway)


async def test_a_name_is_free_if_the_settings_hide_or_rename_the_tool_of_its_owner(tmp_path: Path) -> None:
    async with mounted_gateway(serve, tmp_path, a=OWNER, a_b=NEWCOMER) as (gateway, mounts):
        mounts.mount(Mount(name="a", tools=ToolChoice(deny=["b_c"])), OWNER)
        assert await called(gateway, "a_b_c") == "c"
        mounts.mount(Mount(name="a_b", tools=ToolChoice(rename={"c": "z"})), NEWCOMER)
        mounts.mount(Mount(name="a"), OWNER)
        assert await names(gateway) == ["a_b_c", "a_own", "a_b_z", "a_b_d"]
        assert await called(gateway, "a_b_c") == "b_c"


async def test_a_tool_cannot_have_the_name_of_one_of_linckia(tmp_path: Path) -> None:
    async with mounted_gateway(serve, tmp_path) as (gateway, mounts):
        async with connected(gateway, "all") as wire:
            await wire.initialize()
            own = [tool["name"] for tool in (await ask(wire, "tools/list"))["result"]["tools"]]
            mount, _, tool = next(name for name in own if "_" in name).partition("_")
            mounts.mount(Mount(name=mount), offered(tools=[{"name": tool}]))
            assert (await wire.receive())["method"] == "notifications/tools/list_changed"
            for _ in range(2):
                await wire.receive()
            found = [each["name"] for each in (await ask(wire, "tools/list"))["result"]["tools"]]
        assert found[: len(own)] == own
        assert len(found) == len(own) + 1
        assert found[-1].startswith(f"{mount}_{tool}_")


async def test_prompts_keep_their_names_too(tmp_path: Path) -> None:
    first, second = offered(prompts=[{"name": "b_c"}]), offered(prompts=[{"name": "c"}])
    async with mounted_gateway(serve, tmp_path, a_b=second) as (gateway, mounts):
        mounts.mount(Mount(name="a"), first)
        assert "a_b_c" in await names(gateway, "prompts")
        async with connected(gateway, "all") as wire:
            await wire.initialize()
            for name, own in (("a_b_c", "c"), (other(await names(gateway, "prompts")), "b_c")):
                await ask(wire, "prompts/get", {"name": name})
                assert json.loads(mounts.requests[-1][1].params)["name"] == own


async def test_resources_of_two_servers_never_share_a_uri() -> None:
    same: Offered = offered(
        resources=[{"uri": "x:1", "name": "one"}], templates=[{"uriTemplate": "x:{id}", "name": "n"}]
    )
    nested = offered(resources=[{"uri": "a/x:1", "name": "one"}])
    async with mounted_gateway(serve, a=same, a_b=same, c=nested) as (gateway, _), connected(gateway, "all") as wire:
        await wire.initialize()
        found = [each["uri"] for each in (await ask(wire, "resources/list"))["result"]["resources"]]
        mine = [uri for uri in found if uri.startswith("linckia://mcp/")]
        assert mine == ["linckia://mcp/a/x:1", "linckia://mcp/a_b/x:1", "linckia://mcp/c/a/x:1"]


async def test_a_tool_whose_two_possible_names_are_taken_is_not_offered(tmp_path: Path) -> None:
    async with mounted_gateway(serve, tmp_path, a=OWNER, a_b=NEWCOMER) as (gateway, _):
        forged = other(await names(gateway)).removeprefix("a_")
    hostile = offered(tools=[{"name": "b_c"}, {"name": forged}])
    async with mounted_gateway(serve, a=hostile) as (gateway, mounts):
        mounts.mount(Mount(name="a_b"), NEWCOMER)
        assert await names(gateway) == ["a_b_c", f"a_{forged}", "a_b_d"]


async def test_without_the_registry_nobody_takes_a_name(tmp_path: Path) -> None:
    async with mounted_gateway(serve, tmp_path, a=OWNER) as (gateway, mounts):
        registry, mounts.registry = mounts.registry, None
        mounts.mount(Mount(name="a_b"), NEWCOMER)
        found = await names(gateway)
        assert ("a_b_d" in found, len(found)) == (True, 4)
        assert await called(gateway, "a_b_c") == "b_c"
        mounts.registry = registry
        mounts.offers("a_b", offered("2", tools=[{"name": "c"}, {"name": "e"}]), "tools")
        assert "a_b_e" in await names(gateway)
        assert await called(gateway, "a_b_c") == "b_c"
