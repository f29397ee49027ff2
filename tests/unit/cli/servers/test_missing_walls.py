"""What the system cannot do for confined servers is said by `linckia doctor` and `linckia mcp list`."""

from __future__ import annotations

from subprocess import CompletedProcess
from typing import Literal

import pytest

from kernel.cli.care import doctor
from kernel.cli.care.findings import Verdict
from kernel.cli.servers import mcp
from proto.mounts import Flag
from proto.wire.launch import FREE_ATTRIBUTES, NO_ATTRIBUTES, NO_SIGNAL_SCOPE


def test_a_landlock_without_a_scope_for_signals_is_noted() -> None:
    assert doctor.landlock_of(6).verdict is Verdict.OK
    found = doctor.landlock_of(5)
    assert found.verdict is Verdict.NOTE
    assert "ABI 5, without a scope for signals" in found.found
    assert "6.12" in found.remedy


def test_a_system_without_namespaces_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = CompletedProcess[str]([], 1, "", "no mount namespace: Operation not permitted\n")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: ended)
    found = doctor._read_only_mounts()
    assert found.verdict is Verdict.NOTE
    assert found.found.startswith("no mount namespace: Operation not permitted: servers with `confine` cannot change")
    assert "user namespaces" in found.remedy


def served(confined: str, *suspicious: Flag) -> mcp.Server:
    return mcp.Server(
        name="one", state="ready", reason="", last_death="", login="", confine=True, activity="", confined=confined,
        tools=3, flags=[], suspicious=list(suspicious), server="",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("confined", "said"),
    [
        ("", []),
        ("read-only mounts, landlock 7, seccomp", []),
        (f"{NO_ATTRIBUTES} (no mount namespace), landlock 7, seccomp", ["not even below its roots"]),
        (f"{FREE_ATTRIBUTES} (no mount namespace), landlock 5, {NO_SIGNAL_SCOPE}", ["outside its roots", "can signal"]),
    ],
)
def test_the_list_says_what_a_confined_server_lacks(confined: str, said: list[str]) -> None:
    remarks = [str(each) for each in mcp._remarks(served(confined))]
    assert len(remarks) == len(said)
    assert all(part in remark and "linckia doctor" in remark for part, remark in zip(said, remarks, strict=True))


def test_the_list_says_what_clients_see_otherwise_than_the_server_wrote_it() -> None:
    kinds: tuple[Literal["overlong", "look_alike", "dropped"], ...] = ("overlong", "look_alike", "dropped")
    flags = [Flag(kind=kind, where=f"tool {kind}", detail="d") for kind in kinds]
    flags += [Flag(kind="cut", where=f"tool {number}: description", detail="d") for number in range(9)]
    assert mcp._remarks(served("", *flags)) == [
        "one: tool dropped: dropped (d)",
        *(f"one: tool {number}: description: cut (d)" for number in range(4)),
        "one: 5 more; see: linckia mcp diff one",
    ]
