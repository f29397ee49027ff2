"""The methods of a class as handlers."""

from __future__ import annotations

from typing import cast

import pytest
import trio

from services.runtime.handlers import Context, Handlers, handles
from tests.unit.router.ops import Said, Say, Write


def _said(text: str) -> Said:
    return Said(text=text, generation=1, caller="client")


class Speech:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    @handles(Say)
    async def say(self, params: Say, ctx: Context) -> Said:
        return _said(self._prefix + params.text)

    @handles(Write)
    async def write(self, params: Write, ctx: Context) -> Said:
        return _said(params.text)

    async def no_handler(self) -> None:
        raise AssertionError


CTX = cast(Context, None)


def test_marked_methods_are_registered_and_keep_their_object() -> None:
    handlers = Handlers(Speech("> "))
    assert set(handlers.by_name) == {"test.say", "test.write"}
    operation, handler = handlers.by_name["test.say"]
    assert operation.params is Say
    assert trio.run(handler, Say(text="a"), CTX) == _said("> a")


def test_a_marked_method_can_be_called_directly() -> None:
    assert trio.run(Speech("").say, Say(text="a"), CTX) == _said("a")


def test_an_operation_has_one_handler() -> None:
    handlers = Handlers(Speech(""))
    with pytest.raises(ValueError, match="two handlers"):
        handlers.add(Speech(""))


def test_a_class_without_marked_handlers_is_an_error() -> None:
    with pytest.raises(ValueError, match="no method that is marked"):
        Handlers(object())
