"""The registry keeps who has which name, and flags collisions."""

from __future__ import annotations

from pathlib import Path

from proto.mounts import Flag, Holder, MountNames, Taken, Wanted
from proto.ops.mounts import MountsForget, MountsName
from services.mounts.offers import names
from services.mounts.offers.names import Names
from tests.in_process import Bench
from tests.unit.mounts.test_registry import offered, put, registry, restart


def wanted(mount: str, own: str, name: str = "a_b_c", *, is_taken: bool = False) -> Wanted:
    return Wanted(kind="tools", mount=mount, own=own, name=name, other=f"{name}_{mount}", is_taken=is_taken)


async def give(bench: Bench, *wanted: Wanted, released: list[Taken] | None = None) -> dict[str, tuple[str, str]]:
    found: MountNames = await bench.call(MountsName(wanted=list(wanted), released=released or []), caller="front")
    return {name: (each.mount, each.own) for name, each in found.tools.items()}


ONE, OTHER = wanted("a", "b_c"), wanted("a-b", "c")


async def test_a_name_belongs_to_the_first_through_restarts_and_in_any_order(tmp_path: Path) -> None:
    async with registry(tmp_path) as bench:
        assert await give(bench, ONE) == {"a_b_c": ("a", "b_c")}
        both = {"a_b_c": ("a", "b_c"), "a_b_c_a-b": ("a-b", "c")}
        assert await give(bench, OTHER, ONE) == both
        await restart(bench)
        assert await give(bench, OTHER) == both
        assert await give(bench, OTHER, ONE) == both


async def test_collisions_are_flags_of_the_newcomer(tmp_path: Path) -> None:
    async with registry(tmp_path) as bench:
        for mount in ("a", "a-b"):
            await put(bench, [], mount=mount)
        await give(bench, ONE, OTHER, wanted("a-b", "own", "read", is_taken=True))
        await restart(bench)
        assert (await offered(bench, "a")).flags == []
        assert (await offered(bench, "a-b")).flags == [
            Flag(kind="collision", where="tool c",
                 detail="the name a_b_c belongs to b_c of a; it is offered as a_b_c_a-b"),
            Flag(kind="collision", where="tool own",
                 detail="the name read belongs to one of Linckia's own; it is offered as read_a-b"),
        ]  # fmt: skip
        await give(bench, wanted("a", "x", "a_b_c_a-b"))
        third = Wanted(kind="tools", mount="c", own="z", name="a_b_c", other="a_b_c_a-b")
        await put(bench, [], mount="c")
        await give(bench, ONE, OTHER, third)
        (flag,) = (await offered(bench, "c")).flags
        assert flag.detail == "the name a_b_c belongs to b_c of a; it is not offered"


async def test_a_released_name_and_those_of_a_forgotten_mount_are_free(tmp_path: Path) -> None:
    async with registry(tmp_path) as bench:
        await give(bench, ONE, OTHER)
        stale = Taken(kind="tools", name="a_b_c", holder=Holder(mount="x", own="y"))
        assert (await give(bench, OTHER, released=[stale]))["a_b_c"] == ("a", "b_c")
        released = Taken(kind="tools", name="a_b_c", holder=Holder(mount="a", own="b_c"))
        assert await give(bench, OTHER, released=[released]) == {"a_b_c": ("a-b", "c")}
        await give(bench, ONE, OTHER)
        await bench.call(MountsForget(mount="a-b"))
        assert await give(bench, ONE) == {"a_b_c": ("a", "b_c")}


async def test_renamed_tools_exchange_their_names(tmp_path: Path) -> None:
    async with registry(tmp_path) as bench:
        await give(bench, wanted("a", "x", "n1"), wanted("b", "y", "n2"))
        changed = await give(bench, wanted("b", "y", "n1"), wanted("a", "x", "n2"))
        assert changed == {"n1": ("b", "y"), "n2": ("a", "x")}


def test_a_damaged_file_is_kept_aside(tmp_path: Path) -> None:
    (tmp_path / names.FILE).write_bytes(b"{")
    assert Names(tmp_path).table == MountNames()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"{"]


def test_a_server_cannot_hold_names_without_bound(tmp_path: Path) -> None:
    kept = Names(tmp_path)
    for turn in range(3):
        kept.give([wanted("a", f"{turn} {number}", f"n{turn}_{number}") for number in range(names.MAX_UNUSED)], [])
    assert len(kept.table.tools) == 2 * names.MAX_UNUSED
    assert "n0_0" not in kept.table.tools
    assert "n2_0" in kept.table.tools
