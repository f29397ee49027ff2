"""`linckia token` and the files of tokens, without a kernel."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from kernel.cli import status
from kernel.cli.__main__ import main
from kernel.cli.care.doctor import examine
from kernel.configure import tokens
from kernel.configure.token_editing import expiry
from proto.grants import Token
from proto.ops.kernel import KernelStatus


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LINCKIA_DATA", str(tmp_path / "data"))
    (tmp_path / "root").mkdir()
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("LINCKIA_ROOTS", str(tmp_path / "root"))
    return tmp_path / "data"


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["token", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_token_is_printed_once_and_only_its_hash_is_kept_for_its_owner(
    capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path
) -> None:
    code, out, _ = run(
        capsys, "create", "ci", "--surface", "files", "--root", str(tmp_path / "root"), "--read-only", "--expires", "2d"
    )
    assert code == 0
    secret = out.strip()
    kept = tokens.path(data)
    assert secret not in kept.read_text()
    assert tokens.hash_of(secret) in kept.read_text()
    assert stat.S_IMODE(os.stat(kept).st_mode) == 0o600
    code, out, _ = run(capsys, "list", "--json")
    (listed,) = json.loads(out)
    assert (listed["name"], listed["surfaces"], listed["read_only"]) == ("ci", ["files"], True)
    assert listed["roots"] == [str(tmp_path / "root")]
    assert "sha256" not in listed
    assert run(capsys, "revoke", "ci")[0] == 0
    assert tokens.listed(data) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("ci", "--surface", "fils"), "did you mean files?"),
        (("ci", "--surface", "compact"), "add some"),
        (("ci", "--root", "/nowhere"), "No such file"),
        (("ci", "--root", "/"), "neither a root of Linckia nor below one"),
        (("ci", "--expires", "2020-01-01"), "this is in the past"),
        (("ci", "--expires", "soon"), "30d, 12h, 4w"),
        (("c:i",), "is not a valid token name"),
        (("old",), "the token old already exists"),
    ],
)
def test_invalid_options_are_named_and_change_nothing(
    capsys: pytest.CaptureFixture[str], data: Path, options: tuple[str, ...], said: str
) -> None:
    assert run(capsys, "create", "old")[0] == 0
    before = tokens.path(data).read_bytes()
    code, out, err = run(capsys, "create", *options)
    assert (code, out) == (2, "")
    assert said in err
    assert tokens.path(data).read_bytes() == before


def test_revoking_an_unknown_token_suggests_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "create", "deploy")
    code, _, err = run(capsys, "revoke", "depoly")
    assert code == 2
    assert "did you mean deploy?" in err


def test_surface_all_does_not_limit_a_token(capsys: pytest.CaptureFixture[str], data: Path) -> None:
    run(capsys, "create", "ci", "--surface", "all")
    assert tokens.listed(data)[0].surfaces == ()


def test_expiry_is_a_span_or_a_day() -> None:
    assert expiry("2w", 1000.0) == 1000.0 + 14 * 86400
    assert expiry("2099-01-31T00:00:00+00:00", 0.0) == 4073500800.0


def test_own_token_is_made_once_for_its_owner_alone(data: Path) -> None:
    own = tokens.own(data)
    assert tokens.own(data) == own
    assert stat.S_IMODE(os.stat(tokens.own_path(data)).st_mode) == 0o600
    tokens.own_path(data).chmod(0o644)
    tokens.own(data)
    assert stat.S_IMODE(os.stat(tokens.own_path(data)).st_mode) == 0o600


def test_files_that_are_damaged_are_named_with_the_remedy(data: Path) -> None:
    tokens.own_path(data).write_text("short")
    with pytest.raises(tokens.CannotRead, match="remove it"):
        tokens.own(data)
    tokens.path(data).write_text("{")
    with pytest.raises(tokens.CannotRead, match="make them again"):
        tokens.listed(data)


def test_doctor_names_a_token_that_is_off_and_tokens_that_never_expire(
    capsys: pytest.CaptureFixture[str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernel.cli.care.doctor._torch", lambda: iter(()))
    run(capsys, "create", "forever")
    monkeypatch.setenv("LINCKIA_TOKEN", "off")
    found = [(finding.what, finding.found) for finding in examine(data)]
    assert ("tokens", "never expire: forever") in found
    assert any(what == "token" and text.startswith("off:") for what, text in found)
    monkeypatch.delenv("LINCKIA_TOKEN")
    assert ("token", "HTTP requires one") in [(finding.what, finding.found) for finding in examine(data)]


STATUS = KernelStatus(
    version="1", pid=1, started_at="", uptime_s=1.0, clients=0, roots=[], data_dir="/d", http_url="http://h/mcp",
    page_url="http://h/#key.secret", token="secret", rss_bytes=0, pss_bytes=None, services=[],
)  # fmt: skip


def test_status_shows_the_header_to_send_and_top_shows_no_secret() -> None:
    assert "token  Authorization: Bearer secret" in status.heading(STATUS)
    assert "http://h/#key.secret" in status.heading(STATUS)
    assert "secret" not in status.heading(STATUS, secrets=False)
    assert "token  off: every user" in status.heading(replace(STATUS, open=True, token=None))


async def test_change_is_in_force_once_every_front_that_waits_has_it(data: Path) -> None:
    live = tokens.LiveTokens(data)
    known = []

    async def follow(front: str, rounds: int) -> None:
        version = 0
        for _ in range(rounds):
            table = await live.after(version, front)
            version = table.version
            known.append((front, [token.name for token in table.tokens]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow, "front", 3)
        nursery.start_soon(follow, "front-2", 3)
        await trio.testing.wait_all_tasks_blocked()
        tokens.store(data, [Token(name="ci", sha256="0", created=0.0)])
        assert await live.reload()
        assert sorted(known[2:]) == [("front", ["ci"]), ("front-2", ["ci"])]
        nursery.cancel_scope.cancel()


async def test_front_that_does_not_answer_is_not_waited_for(data: Path, autojump_clock: trio.testing.MockClock) -> None:
    live = tokens.LiveTokens(data)

    async def hang() -> None:
        await live.after((await live.after(0, "front")).version, "front")
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hang)
        await trio.testing.wait_all_tasks_blocked()
        assert not await live.reload()
        nursery.cancel_scope.cancel()
