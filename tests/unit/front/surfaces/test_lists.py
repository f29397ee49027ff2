"""Lists are answered without the SDK, as the SDK answers them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from kernel import VERSION
from proto import grants, ops
from proto.operation import SURFACES
from proto.origin import Origin
from services.front.gateway import Gateway, open_gateway
from services.front.prompts import FilePrompts, Folder
from services.front.protocol import lists
from services.front.transport import stdio
from tests.unit.front.inprocess import in_process
from tests.unit.front.operations import TABLE, open_service
from tests.unit.front.wire import META, MODERN, connected

REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", MODERN]

GRANTS = [None, grants.Grant("ann", roots=("/nowhere",), surfaces=("core",))]

REQUESTS: list[Any] = [
    *({"method": method} for method in lists.MEMBERS),
    {"method": "tools/list", "params": {"cursor": "2"}},
    {"method": "tools/list", "params": {"unknown": 1}},
    {"method": "prompts/list", "params": {"_meta": {"progressToken": "p"}}},
]


def prepared(request: dict[str, Any], revision: str) -> dict[str, Any]:
    """A request of this revision."""
    params = request.get("params", {})
    if revision == MODERN:
        params = {**params, "_meta": {**META, **params.get("_meta", {})}}
    return {"jsonrpc": "2.0", "id": 1, **request, **({"params": params} if params else {})}


async def answers(surface: str, revision: str, folder: Path) -> list[Any]:
    prompts = (Folder(folder),)
    found = []
    async with (
        in_process(open_service) as dispatcher,
        open_gateway(ops.load(), dispatcher, dispatcher, version=VERSION, prompt_folders=prompts) as gateway,
        connected(gateway, surface) as wire,
    ):
        gateway.mounted.catalogue.loaded.set()
        await (wire.open_modern() if revision == MODERN else wire.initialize(revision))
        for request in REQUESTS:
            await wire.send(prepared(request, revision))
            found.append(await wire.receive())
    return found


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("surface", SURFACES)
async def test_lists_are_the_sdks_on_every_surface_in_every_revision(
    surface: str, revision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt-of-the-user.md").write_text("# A prompt\n")
    for grant in GRANTS if surface == "core" else GRANTS[:1]:
        with monkeypatch.context() as patched:
            # Local clients have no grant, and so the SDK's answers can be compared for all of them.
            patched.setattr(stdio, "Origin", partial(Origin, grant=grant))
            ours = await answers(surface, revision, tmp_path)
            patched.setattr(lists, "answer", left_to_the_sdk)
            theirs = await answers(surface, revision, tmp_path)
        for request, one, other in zip(REQUESTS, ours, theirs, strict=True):
            assert one == other, request
        assert ours[0]["result"]["tools"]


async def left_to_the_sdk(*_: object) -> None:
    return None


async def test_a_list_waits_for_the_tools_of_mounted_servers_and_not_for_the_sdk(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with in_process(open_service) as dispatcher, trio.open_nursery() as nursery:
        gateway = Gateway(TABLE, dispatcher, dispatcher, nursery, VERSION, FilePrompts())
        async with connected(gateway) as wire:
            await wire.initialize()
            await wire.send(prepared({"method": "tools/list"}, "2025-11-25"))
            await wire.send({"jsonrpc": "2.0", "id": 2, "method": "ping"})
            assert (await wire.receive())["id"] == 2
            gateway.mounted.catalogue.loaded.set()
            assert (await wire.receive())["result"]["tools"]
            assert not gateway.needed.is_set()
        nursery.cancel_scope.cancel()


async def test_a_call_of_an_unknown_tool_waits_for_the_tools_of_mounted_servers(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with in_process(open_service) as dispatcher, trio.open_nursery() as nursery:
        gateway = Gateway(TABLE, dispatcher, dispatcher, nursery, VERSION, FilePrompts())
        async with connected(gateway) as wire:
            await wire.initialize()
            call = {"method": "tools/call", "params": {"name": "small_echo", "arguments": {}}}
            await wire.send(prepared(call, "2025-11-25"))
            await wire.send({"jsonrpc": "2.0", "id": 2, "method": "ping"})
            assert (await wire.receive())["id"] == 2
            assert not gateway.needed.is_set()
            gateway.mounted.catalogue.loaded.set()
            # The SDK says that the tool is unknown.
            await gateway.needed.wait()
        nursery.cancel_scope.cancel()
