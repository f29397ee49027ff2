"""Changed lists and updated resources reach the clients that should know, in the way of their revision."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from proto import mcp
from proto.mcp import ListChanged, ResourceUpdated
from tests.unit.front.wire import META, connected, gateway_in_process


@pytest.mark.parametrize("which", ["tools", "prompts", "resources"])
async def test_a_changed_list_is_announced_to_every_client_with_a_handshake(which: Any) -> None:
    async with gateway_in_process() as (gateway, dispatcher):
        async with connected(gateway) as first, connected(gateway) as second:
            await first.initialize()
            await second.initialize()
            dispatcher.publish(mcp.LIST_CHANGED, ListChanged(list=which))
            for wire in (first, second):
                assert (await wire.receive())["method"] == f"notifications/{which}/list_changed"
        # No subscriber is left, and nothing is kept of those who were.
        assert (await gateway.server("all")).notifier._sessions == {}
        dispatcher.publish(mcp.LIST_CHANGED, ListChanged(list=which))


async def test_an_updated_resource_is_announced_to_its_subscribers_until_they_unsubscribe() -> None:
    async with gateway_in_process() as (gateway, dispatcher), connected(gateway) as wire, connected(gateway) as other:
        await wire.initialize()
        await other.initialize()

        async def ask(method: str) -> None:
            await wire.send({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"uri": "t://page/1"}})
            assert (await wire.receive())["result"] == {}

        await ask("resources/subscribe")
        dispatcher.publish(mcp.RESOURCE_UPDATED, ResourceUpdated(uri="t://page/1"))
        dispatcher.publish(mcp.RESOURCE_UPDATED, ResourceUpdated(uri="t://page/2"))
        message = await wire.receive()
        assert (message["method"], message["params"]["uri"]) == ("notifications/resources/updated", "t://page/1")
        await ask("resources/unsubscribe")
        dispatcher.publish(mcp.RESOURCE_UPDATED, ResourceUpdated(uri="t://page/1"))
        dispatcher.publish(mcp.LIST_CHANGED, ListChanged(list="tools"))
        assert (await wire.receive())["method"] == "notifications/tools/list_changed"
        assert (await other.receive())["method"] == "notifications/tools/list_changed"


async def test_in_2026_07_28_a_client_listens_for_what_it_wants() -> None:
    async with gateway_in_process() as (gateway, dispatcher), connected(gateway) as wire:
        await wire.open_modern()
        wanted = {"promptsListChanged": True, "resourceSubscriptions": ["t://page/1"]}
        params = {"_meta": META, "notifications": wanted}
        await wire.send({"jsonrpc": "2.0", "id": "s", "method": "subscriptions/listen", "params": params})
        assert (await wire.receive())["method"] == "notifications/subscriptions/acknowledged"
        dispatcher.publish(mcp.LIST_CHANGED, ListChanged(list="tools"))
        dispatcher.publish(mcp.RESOURCE_UPDATED, ResourceUpdated(uri="t://page/1"))
        message = await wire.receive()
        assert message["method"] == "notifications/resources/updated"
        assert message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == "s"


async def test_a_malformed_event_does_no_harm() -> None:
    async with gateway_in_process() as (gateway, dispatcher), connected(gateway) as wire:
        await wire.initialize()
        dispatcher.publish(mcp.LIST_CHANGED, {"list": "nonsense"})
        dispatcher.publish("mcp.unknown", {})
        await trio.testing.wait_all_tasks_blocked()
        await wire.call("t_string", id=2)
        assert (await wire.receive())["id"] == 2


async def test_a_client_is_notified_only_about_lists_of_its_surface() -> None:
    async with gateway_in_process() as (gateway, dispatcher), connected(gateway, "yaml") as wire:
        await wire.initialize()
        # A client that has seen a list is notified when it changes.
        await wire.send({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        assert (await wire.receive())["result"]["tools"]
        dispatcher.publish(mcp.LIST_CHANGED, ListChanged(list="prompts"))
        dispatcher.publish(mcp.LIST_CHANGED, ListChanged(list="resources"))
        dispatcher.publish(mcp.LIST_CHANGED, ListChanged(list="tools"))
        assert (await wire.receive())["method"] == "notifications/tools/list_changed"
