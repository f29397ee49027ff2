"""Inputs that reach different code or once revealed a defect are read without one."""

from __future__ import annotations

import importlib

import pytest

from tests.fuzz.coverage import TARGETS, corpus


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_is_read_with_documented_failures_only(target: str) -> None:
    module = importlib.import_module(f"tests.fuzz.coverage.{target}")
    for data in (*module.SEEDS, *corpus(target)):
        try:
            module.read(data)
        except Exception as error:
            raise AssertionError(f"{target}: {data!r}") from error


def test_corpus_is_small() -> None:
    assert sum(len(repr(data)) for target in TARGETS for data in corpus(target)) <= 200 * 1024
