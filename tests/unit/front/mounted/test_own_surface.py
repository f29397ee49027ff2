"""The surface of a mounted server shows what the server wrote, and passes requests on unchanged."""

from __future__ import annotations

from typing import Any

import msgspec
import trio
import trio.testing

from proto.errors import MaybeExecuted
from proto.mounts import UPDATED, Mount, MountRequest, MountResourceUpdated, ToolChoice
from tests.unit.front.mounted.rig import mounted_gateway, offered
from tests.unit.front.wire import META, Wire, connected

ECHO = {
    "name": "echo",
    "title": "Echo",
    "description": "Say it again.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": ["string", "null"]}}, "x-own": [1.0, 2]},
    "annotations": {"readOnlyHint": True},
    "icons": [{"src": "data:,"}],
    "_meta": {"vendor": {"deep": [None]}},
    "unknownMember": True,
}
WRITE = {"name": "write", "inputSchema": {"type": "object"}}
KEEP = {"name": "keep", "inputSchema": {"type": "object"}, "annotations": {"idempotentHint": True}}
TOOLS = offered(tools=[ECHO, WRITE, KEEP], server_info={"name": "theirs", "version": "7"}, instructions="Use echo.")


async def ask(wire: Wire, method: str, params: dict[str, Any] | None = None, id: int = 5) -> dict[str, Any]:
    await wire.send({"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}})
    return await wire.receive()


async def repeat(kind: str, request: MountRequest, params: dict[str, Any]) -> Any:
    return {
        "content": [{"type": "text", "text": kind}],
        "params": params,
        "structuredContent": {"n": 1.5},
        "more": None,
    }


async def test_the_handshake_is_the_servers() -> None:
    async with mounted_gateway(x=TOOLS) as (gateway, _), connected(gateway, "x") as wire:
        result = await wire.initialize()
        assert result["serverInfo"] == {"name": "theirs", "version": "7"}
        assert result["instructions"] == "Use echo."
        assert result["capabilities"]["tools"] == {"listChanged": True}
        assert "logging" not in result["capabilities"]


async def test_a_server_without_instructions_gives_none() -> None:
    async with mounted_gateway(x=offered(tools=[])) as (gateway, _), connected(gateway, "x") as wire:
        assert "instructions" not in await wire.initialize()
    async with mounted_gateway(x=offered(tools=[])) as (gateway, _), connected(gateway, "x") as wire:
        assert "instructions" not in await wire.open_modern()


async def test_definitions_are_listed_as_the_server_wrote_them() -> None:
    async with mounted_gateway(x=TOOLS) as (gateway, _), connected(gateway, "x") as wire:
        await wire.initialize()
        assert (await ask(wire, "tools/list"))["result"] == {"tools": [ECHO, WRITE, KEEP]}
        refused = await ask(wire, "tools/list", {"cursor": "2"})
        assert refused["error"]["code"] == -32602


async def test_a_call_is_passed_on_and_its_result_comes_back_as_it_was_written() -> None:
    async with mounted_gateway(repeat, x=TOOLS) as (gateway, mounts), connected(gateway, "x") as wire:
        await wire.initialize()
        meta = {"progressToken": 3, "vendor/key": [1.0]}
        await wire.call("echo", {"text": None, "big": 12345678901234567890}, meta=meta)
        result = (await wire.receive())["result"]
        arguments = {"text": None, "big": 12345678901234567890}
        assert result == {
            "content": [{"type": "text", "text": "read"}],
            "params": {"name": "echo", "arguments": arguments, "_meta": {"vendor/key": [1.0]}},
            "structuredContent": {"n": 1.5},
            "more": None,
        }
        assert mounts.requests[0][1].name == "echo"


async def test_hints_decide_what_may_be_repeated() -> None:
    async with mounted_gateway(repeat, x=TOOLS) as (gateway, mounts), connected(gateway, "x") as wire:
        await wire.initialize()
        for name in ("echo", "keep", "write"):
            await wire.call(name)
            await wire.receive()
        assert [kind for kind, _ in mounts.requests] == ["read", "repeat", "change"]


async def test_the_servers_errors_keep_code_message_and_data() -> None:
    async def fail(kind: str, request: MountRequest, params: dict[str, Any]) -> Any:
        return {"error": {"code": -32055, "message": "no", "data": {"why": [1]}}}

    async with mounted_gateway(fail, x=TOOLS) as (gateway, _), connected(gateway, "x") as wire:
        await wire.initialize()
        await wire.call("echo")
        assert (await wire.receive())["error"] == {"code": -32055, "message": "no", "data": {"why": [1]}}


async def test_a_death_is_a_failure_that_says_what_may_have_happened() -> None:
    async def die(kind: str, request: MountRequest, params: dict[str, Any]) -> Any:
        raise MaybeExecuted("the server died")

    async with mounted_gateway(die, x=TOOLS) as (gateway, _), connected(gateway, "x") as wire:
        await wire.initialize()
        await wire.call("write")
        result = (await wire.receive())["result"]
        assert result["isError"]
        assert "may have been done" in result["content"][0]["text"]
        answer = await ask(wire, "resources/read", {"uri": "x:y"})
        assert "the server died" in answer["error"]["message"]


async def test_an_unknown_tool_is_refused_with_a_suggestion() -> None:
    async with mounted_gateway(repeat, x=TOOLS) as (gateway, mounts), connected(gateway, "x") as wire:
        await wire.initialize()
        await wire.call("ecko")
        assert "did you mean echo" in (await wire.receive())["error"]["message"]
        assert mounts.requests == []


async def test_a_client_of_2026_gets_results_of_its_revision() -> None:
    async with mounted_gateway(repeat, x=TOOLS) as (gateway, _), connected(gateway, "x") as wire:
        assert (await wire.open_modern())["capabilities"]["tools"] == {"listChanged": True}
        listed = (await ask(wire, "tools/list", {"_meta": META}))["result"]
        assert listed["resultType"] == "complete"
        assert listed["tools"] == [ECHO, WRITE, KEEP]
        await wire.call("echo", {}, meta=META)
        result = (await wire.receive())["result"]
        assert result["resultType"] == "complete"
        assert result["structuredContent"] == {"n": 1.5}
        assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "theirs"
        wrong = {**META, "io.modelcontextprotocol/protocolVersion": "1999-01-01"}
        await wire.call("echo", {}, meta=wrong)
        assert (await wire.receive())["error"]["code"] == -32022


async def test_a_client_of_2026_has_no_requests_to_subscribe() -> None:
    async with mounted_gateway(repeat, x=TOOLS) as (gateway, mounts), connected(gateway, "x") as wire:
        await wire.open_modern()
        for method in ("resources/subscribe", "resources/unsubscribe"):
            assert (await ask(wire, method, {"uri": "a:b", "_meta": META}))["error"]["code"] == -32601
        assert mounts.requests == []


async def test_the_server_learns_the_clients_capabilities() -> None:
    async with mounted_gateway(repeat, x=TOOLS) as (gateway, mounts):
        async with connected(gateway, "x") as wire:
            await wire.initialize(capabilities={"sampling": {}})
            await ask(wire, "tools/call", {"name": "echo"})
        async with connected(gateway, "x") as wire:
            await wire.open_modern()
            capabilities: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"roots": {}}}
            await ask(wire, "tools/call", {"name": "echo", "_meta": {**META, **capabilities}})
        assert [request.capabilities for _, request in mounts.requests] == [b'{"sampling":{}}', b'{"roots":{}}']


async def test_questions_of_a_server_of_2026_pass_unchanged() -> None:
    asked = {"resultType": "input_required", "inputRequests": {"q": {"method": "roots/list"}}, "requestState": "s"}

    async def serve(kind: str, request: MountRequest, params: dict[str, Any]) -> Any:
        assert request.modern
        return {"content": [], "got": params} if "inputResponses" in params else asked

    async with mounted_gateway(serve, x=TOOLS) as (gateway, _), connected(gateway, "x") as wire:
        await wire.open_modern()
        await wire.call("echo", {}, meta=META)
        result = (await wire.receive())["result"]
        assert {key: result[key] for key in asked} == asked
        answers = {"name": "echo", "inputResponses": {"q": {"roots": []}}, "requestState": "s", "_meta": META}
        got = (await ask(wire, "tools/call", answers))["result"]["got"]
        assert got["inputResponses"] == {"q": {"roots": []}}
        assert got["requestState"] == "s"


async def test_settings_choose_and_rename_tools() -> None:
    async with mounted_gateway(repeat) as (gateway, mounts):
        choice = ToolChoice(allow=["e*", "w*"], deny=["write"], rename={"echo": "say"})
        mounts.mount(Mount(name="x", tools=choice), TOOLS)
        await trio.testing.wait_all_tasks_blocked()
        async with connected(gateway, "x") as wire:
            await wire.initialize()
            assert (await ask(wire, "tools/list"))["result"] == {"tools": [{**ECHO, "name": "say"}]}
            await wire.call("say")
            assert (await wire.receive())["result"]["params"]["name"] == "echo"
            await wire.call("write")
            assert "Unknown tool" in (await wire.receive())["error"]["message"]


async def test_a_change_is_announced_once_to_the_clients_that_see_it() -> None:
    async with (
        mounted_gateway(x=TOOLS, y=TOOLS) as (gateway, mounts),
        connected(gateway, "x") as wire,
        connected(gateway, "y") as other,
        connected(gateway, "all") as every,
    ):
        for each in (wire, other, every):
            await each.initialize()
        mounts.offers("x", offered("2", tools=[ECHO]), "tools")
        assert (await wire.receive())["method"] == "notifications/tools/list_changed"
        assert (await ask(wire, "tools/list"))["result"] == {"tools": [ECHO]}
        assert (await every.receive())["method"] == "notifications/tools/list_changed"
        for each in (other, every):
            assert (await ask(each, "ping"))["result"] == {}
        # The same definitions again are no change.
        mounts.offers("x", offered("2", tools=[ECHO]), "tools")
        await trio.testing.wait_all_tasks_blocked()
        assert (await ask(wire, "ping"))["result"] == {}


async def test_the_first_list_waits_for_a_server_that_has_never_started() -> None:
    started, release = trio.Event(), trio.Event()

    async def start(kind: str, request: MountRequest, params: dict[str, Any]) -> Any:
        assert request.method == "ping"
        assert kind == "read"
        started.set()
        await release.wait()
        return {}

    async with mounted_gateway(start, x=offered("")) as (gateway, mounts), connected(gateway, "x") as wire:
        capabilities = (await wire.initialize())["capabilities"]
        assert capabilities["prompts"] == {"listChanged": True}
        await wire.send({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        await started.wait()
        release.set()
        mounts.offers("x", TOOLS, "tools")
        messages = [await wire.receive(), await wire.receive()]
        answer = next(each for each in messages if each.get("id") == 1)
        assert [tool["name"] for tool in answer["result"]["tools"]] == ["echo", "write", "keep"]


async def test_updates_of_resources_reach_subscribers_of_that_server_only() -> None:
    async def serve(kind: str, request: MountRequest, params: dict[str, Any]) -> Any:
        return {}

    async with (
        mounted_gateway(serve, x=TOOLS, y=TOOLS) as (gateway, mounts),
        connected(gateway, "x") as wire,
        connected(gateway, "y") as other,
    ):
        for each in (wire, other):
            await each.initialize()
            assert (await ask(each, "resources/subscribe", {"uri": "a:b"}))["result"] == {}
        mounts.publish(UPDATED, MountResourceUpdated(mount="x", uri="a:b"))
        assert (await wire.receive())["params"] == {"uri": "a:b"}
        assert (await ask(other, "ping"))["result"] == {}


async def test_resources_that_a_client_of_2026_listens_to_are_subscribed() -> None:
    withdrawn = trio.Event()

    async def serve(kind: str, request: MountRequest, params: dict[str, Any]) -> Any:
        if request.method == "resources/unsubscribe":
            withdrawn.set()
        return {}

    listen = {"notifications": {"resourceSubscriptions": ["a:b"]}, "_meta": META}
    async with mounted_gateway(serve, x=TOOLS) as (gateway, mounts), connected(gateway, "x") as wire:
        await wire.open_modern()
        for number in (7, 8):
            await wire.send({"jsonrpc": "2.0", "id": number, "method": "subscriptions/listen", "params": listen})
            assert (await wire.receive())["method"] == "notifications/subscriptions/acknowledged"
        assert [(each.method, each.params) for _, each in mounts.requests] == [
            ("resources/subscribe", b'{"uri":"a:b"}')
        ]
        for number in (7, 8):
            assert not withdrawn.is_set()
            await wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})
        with trio.fail_after(10):
            await withdrawn.wait()
        assert len(mounts.requests) == 2


async def test_a_removed_mount_has_no_surface() -> None:
    async with mounted_gateway(x=TOOLS) as (gateway, mounts):
        mounts.unmount("x")
        await trio.testing.wait_all_tasks_blocked()
        assert gateway.mounted.find("x") is None


async def test_tools_and_prompts_whose_names_lost_hidden_characters_are_called_by_their_own() -> None:
    own = {"tools": {"echo": "ec\u200bho"}, "prompts": {"greet": "gr\u200beet"}}
    shown = offered(tools=[ECHO, WRITE], prompts=[{"name": "greet"}, {"name": "part"}])
    shown = msgspec.structs.replace(shown, own_names=own)
    async with mounted_gateway(repeat, x=shown) as (gateway, mounts):
        for surface, prefix in (("x", ""), ("all", "x_")):
            async with connected(gateway, surface) as wire:
                await wire.initialize()
                for name in ("echo", "write"):
                    await wire.call(f"{prefix}{name}")
                    await wire.receive()
                for name in ("greet", "part"):
                    await ask(wire, "prompts/get", {"name": f"{prefix}{name}"})
                ref = {"type": "ref/prompt", "name": f"{prefix}greet"}
                await ask(wire, "completion/complete", {"ref": ref, "argument": {"name": "a", "value": ""}})
            passed = [msgspec.json.decode(request.params) for _, request in mounts.requests]
            assert [each.get("name") for each in passed] == ["ec\u200bho", "write", "gr\u200beet", "part", None]
            assert passed[4]["ref"] == {"type": "ref/prompt", "name": "gr\u200beet"}
            mounts.requests.clear()


async def test_null_metadata_is_treated_as_absent() -> None:
    async def serve(kind: str, request: MountRequest, params: dict[str, Any]) -> Any:
        return {"content": [], "_meta": None}

    async with mounted_gateway(serve, x=TOOLS) as (gateway, _), connected(gateway, "x") as wire:
        await wire.open_modern()
        await wire.call("echo", meta=META)
        assert (await wire.receive())["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "theirs"
