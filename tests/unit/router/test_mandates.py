"""A mandate holds what its client asked for, and no service can make or change one."""

from __future__ import annotations

import base64

import pytest

from kernel.router.mandates import Mandate, Mandates
from proto.errors import Forbidden
from proto.grants import Grant, Token
from proto.later import LaterCall
from proto.ops.tasks import TaskStart
from proto.wire import frames

ASKED = TaskStart(operation="mcp_echo", arguments={"message": "x"})
CALL = LaterCall("mcp_echo", {"message": "x"})


def mandates() -> Mandates:
    return Mandates(b"key", lambda name: None)


def test_a_mandate_has_the_call_its_client_and_its_session() -> None:
    (sealed,) = mandates().seal(ASKED, [CALL], "stdio", Grant("ann"), "session 1")
    assert mandates().opened(sealed) == Mandate("task mcp_echo", "stdio", Grant("ann"), "", CALL, "session 1")


def test_calls_that_the_client_did_not_ask_for_are_not_sealed() -> None:
    for call in (LaterCall("mcp_echo", {"message": "y"}), LaterCall("other", {"message": "x"})):
        with pytest.raises(Forbidden, match="did not ask"):
            mandates().seal(ASKED, [call], "stdio", None)


def test_a_changed_mandate_is_refused() -> None:
    (sealed,) = mandates().seal(ASKED, [CALL], "stdio", None)
    changed = bytearray(base64.b64decode(sealed))
    changed[-1] ^= 1
    with pytest.raises(Forbidden):
        mandates().opened(base64.b64encode(changed).decode())


def test_a_mandate_of_an_earlier_version_has_no_session() -> None:
    made = mandates()
    body = frames.encode(["plan p", "stdio", None, "", {"operation": "mcp_echo", "arguments": {"message": "x"}}])
    sealed = base64.b64encode(made._mac(body) + body).decode()  # as that version sealed it
    assert made.opened(sealed) == Mandate("plan p", "stdio", None, "", CALL)


def test_a_mandate_of_a_revoked_token_does_not_count_for_one_with_its_name() -> None:
    def made(secret: str) -> Token:
        return Token(name="ci", sha256=secret * 64, created=0.0)

    tokens = [made("a")]
    kernel = Mandates(b"key", lambda grant: next((each for each in tokens if grant.id == each.id), None))
    (sealed,) = kernel.seal(ASKED, [CALL], "ci", made("a").grant)
    assert kernel.opened(sealed).token == made("a").sha256
    tokens[:] = [made("b")]
    with pytest.raises(Forbidden, match="not valid now"):
        kernel.opened(sealed)
    # The call was let in before the token was revoked.
    with pytest.raises(Forbidden, match="not valid now"):
        kernel.seal(ASKED, [CALL], "ci", made("a").grant)


def test_a_client_of_an_issuer_needs_no_token_of_the_operator() -> None:
    grant = Grant("oauth:ann", id="oauth:0")
    (sealed,) = mandates().seal(ASKED, [CALL], "oauth:ann", grant)
    assert mandates().opened(sealed).grant == grant
