"""A gateway with mounted servers, whose replies a test writes."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Unpack

import msgspec
import trio
from msgspec import Raw

from kernel import VERSION
from proto import ops
from proto.errors import LinckiaError, OperationError, Unavailable
from proto.mounts import (
    CHANGED,
    Definitions,
    Mount,
    MountChanged,
    MountRequest,
    MountTable,
    Offered,
    operations_of,
)
from proto.operation import Operation, Params
from proto.ops import Table
from proto.ops.kernel import KernelMounts
from proto.ops.mounts import MountsName, MountsOffered
from services.front.gateway import Gateway, open_gateway
from services.mounts.offers.names import Names
from services.runtime.dispatch import CallOptions
from tests.unit.front.inprocess import InProcess, in_process
from tests.unit.front.operations import TABLE, open_service

Serve = Callable[[str, MountRequest, dict[str, Any]], Awaitable[Any]]


def raw(*definitions: dict[str, Any]) -> list[Raw]:
    return [Raw(msgspec.json.encode(each)) for each in definitions]


def offered(version: str = "1", **lists: Any) -> Offered:
    """What a server offers; `tools=[{…}]` and so on."""
    plain: dict[str, Any] = {
        name: lists.pop(name) for name in ("server_info", "capabilities", "instructions") if name in lists
    }
    capabilities: dict[str, Any] = {name: {} for name in ("tools", "resources", "prompts")}
    members: dict[str, Any] = {"capabilities": capabilities, **plain}
    members |= {name: raw(*each) for name, each in lists.items()}
    return Offered(version=version, definitions=Definitions(**members))


class Mounts:
    """A dispatcher that has mounted servers beside the services of another one.

    `serve` gets the kind of the operation, the request and its decoded parameters, and returns the result, a
    `{"error": …}`, or raises LinckiaError.
    """

    def __init__(self, others: InProcess, serve: Serve) -> None:
        self.others = others
        self.serve = serve
        self.mounts: dict[str, Mount] = {}
        self.offered: dict[str, Offered] = {}
        self.requests: list[tuple[str, MountRequest]] = []
        self.version = 0
        self.disabled: list[str] = []
        self.registry: Names | None = None
        self._changed = trio.lowlevel.ParkingLot()
        self.on_event, self.publish = others.on_event, others.publish

    def mount(self, mount: Mount, offered: Offered) -> None:
        self.mounts[mount.name], self.offered[mount.name] = mount, offered
        self._table_changed()

    def unmount(self, name: str) -> None:
        del self.mounts[name]
        self._table_changed()

    def _table_changed(self) -> None:
        self.version += 1
        self._changed.unpark_all()

    def offers(self, name: str, offered: Offered, *lists: str) -> None:
        """The server of a mount offers something else from now on."""
        self.offered[name] = offered
        self.publish(CHANGED, MountChanged(mount=name, lists=list(lists)))

    async def call(self, operation: Operation[Any], params: Params[Any], **options: Unpack[CallOptions]) -> object:
        if isinstance(params, KernelMounts):
            while params.version == self.version:
                await self._changed.park()
            table = MountTable(version=self.version, mounts=list(self.mounts.values()), disabled=self.disabled)
            return msgspec.to_builtins(table)
        if isinstance(params, MountsName):
            if self.registry is None:
                raise operation.failure(Unavailable("the registry is away"))
            await trio.lowlevel.checkpoint()
            return Raw(msgspec.json.encode(self.registry.give(params.wanted, params.released)))
        if isinstance(params, MountsOffered):
            return Raw(msgspec.json.encode(self.offered[params.mount]))
        routed = operation.routed
        if not isinstance(params, MountRequest):
            return await self.others.call(operation, params, **options)
        kinds = {op.name: kind for name in self.mounts for kind, op in operations_of(name).items()}
        self.requests.append((kinds[routed.name], params))
        try:
            result = await self.serve(kinds[routed.name], params, msgspec.json.decode(params.params))
        except LinckiaError as error:
            raise operation.failure(error) from None
        reply = result if isinstance(result, dict) and set(result) == {"error"} else {"result": result}
        if options.get("written"):
            return operation.received(Raw(msgspec.json.encode(reply)))
        return operation.received(msgspec.json.decode(msgspec.json.encode(reply)))


async def refuse(kind: str, request: MountRequest, params: dict[str, Any]) -> Any:
    raise OperationError("not expected")


@contextlib.asynccontextmanager
async def mounted_gateway(
    serve: Serve = refuse, kept: Path | None = None, **mounts: Offered
) -> AsyncIterator[tuple[Gateway, Mounts]]:
    """A gateway to the test's operations and the mounts; `kept` is the folder of the registry, if that goes on."""
    named = ("kernel_mounts", "mounts_offered", "ops_query", "ops_execute", "ops_describe")
    table = Table([*TABLE.values(), *(op for op in ops.load().values() if op.name in named)])
    with tempfile.TemporaryDirectory() as folder:
        registry = Names(kept or Path(folder))
        async with in_process(open_service) as others, _gateway(table, others, serve, mounts, registry) as opened:
            yield opened


@contextlib.asynccontextmanager
async def _gateway(
    table: Table, others: InProcess, serve: Serve, mounts: dict[str, Offered], registry: Names
) -> AsyncIterator[tuple[Gateway, Mounts]]:
    dispatcher = Mounts(others, serve)
    dispatcher.registry = registry
    for name, each in mounts.items():
        dispatcher.mount(Mount(name=name), each)
    async with open_gateway(table, dispatcher, dispatcher, version=VERSION) as gateway:
        await gateway.server("all")
        await gateway.mounted.complete()
        yield gateway, dispatcher
