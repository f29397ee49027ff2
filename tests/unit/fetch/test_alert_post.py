"""Alerts are sent to the public Internet, or where the operator wrote an address himself, and to no other place."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from proto.errors import Forbidden, OperationError
from proto.ops.fetch import AlertPost
from proto.target import described
from services.fetch.main import Fetch, read_settings
from tests.unit.fetch.rig import Request, serving


async def post(folder: Path, url: str) -> None:
    await Fetch(read_settings({}), folder).alert_post(AlertPost(hook=url, body=b'{"kind":"disk"}'), cast("Any", None))


async def test_an_address_that_is_written_as_a_number_is_used(tmp_path: Path) -> None:
    async def answer(request: Request) -> None:
        await request.answer("204 No Content")

    async with serving(answer) as served:
        await post(tmp_path, f"http://127.0.0.1:{served.port}/hook")
        assert [each.target for each in served.asked] == ["/hook"]


@pytest.mark.parametrize("status", ["302 Found", "404 Not Found", "503 Service Unavailable"])
async def test_another_answer_than_success_is_an_error(tmp_path: Path, status: str) -> None:
    async def answer(request: Request) -> None:
        await request.answer(status, b"", location="http://127.0.0.1:1/")

    async with serving(answer) as served:
        with pytest.raises(OperationError, match=status[:3]):
            await post(tmp_path, f"http://127.0.0.1:{served.port}/hook")
        assert len(served.asked) == 1


async def test_a_name_that_leads_to_a_private_address_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolved(*asked: object, **more: object) -> list[Any]:
        return [(2, 1, 6, "", ("10.0.0.7", 80))]

    monkeypatch.setattr("trio.socket.getaddrinfo", resolved)
    with pytest.raises(Forbidden, match="not on the public Internet"):
        await post(tmp_path, "http://alerts.example/hook")


async def test_a_server_that_is_away_is_an_error_without_the_path(tmp_path: Path) -> None:
    with pytest.raises(OperationError) as failed:
        await post(tmp_path, "http://127.0.0.1:9/a-secret-path")
    assert "a-secret" not in str(failed.value)


def test_the_address_is_not_in_the_log_of_calls() -> None:
    assert described(AlertPost(hook="https://example.org/secret", body=b"{}")) == ""
