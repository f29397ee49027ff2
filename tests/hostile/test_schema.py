"""A client's JSON Schema costs a bounded amount of thread time, and reads nothing but the document."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from proto.errors import LinckiaError
from services.runtime.roots import Roots
from services.yaml import schema as checking
from services.yaml.errors import Code, YamlError
from services.yaml.main import CHECKS, open_service
from services.yaml.operations import NoyalibGet, YamlValidate
from services.yaml.yaml_files import YamlFiles
from tests.in_process import services_in_process

DEPTH = 40


def doubled(keyword: str, last: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A schema of a few lines that expands to 2**DEPTH."""
    each = {f"a{n}": {keyword: [{"$ref": f"#/$defs/a{n + 1}"}] * 2, **more} for n in range(DEPTH)}
    return {"$defs": {**each, f"a{DEPTH}": last}, "$ref": "#/$defs/a0"}


def dynamic() -> dict[str, Any]:
    each = {f"a{n}": {"$dynamicAnchor": f"a{n}", "anyOf": [{"$dynamicRef": f"#a{n + 1}"}] * 2} for n in range(DEPTH)}
    return {"$defs": {**each, "last": {"$dynamicAnchor": f"a{DEPTH}", "type": "null"}}, "$ref": "#/$defs/a0"}


DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}

LONG = "\n".join(f"k{n}: {'x' * 200}" for n in range(2_000)) + "\n"
WIDE = "\n".join(f"- {n}" for n in range(2_000)) + "\n"

COSTLY: dict[str, tuple[str, dict[str, Any]]] = {
    "anyOf": ("a: 1\n", doubled("anyOf", {"type": "null"})),
    "allOf": ("a: 1\n", doubled("allOf", {})),
    "oneOf": ("a: 1\n", doubled("oneOf", {})),
    "unevaluated": ("a: 1\n", doubled("allOf", {}, unevaluatedProperties=True)),
    "dynamic references": ("a: 1\n", dynamic()),
    "an older draft": (
        "a: 1\n",
        {"$schema": "http://json-schema.org/draft-07/schema#"} | doubled("anyOf", {"not": {}}),
    ),
    "wide alternatives": (WIDE, {"items": {"anyOf": [*[{"type": "string"}] * 2_000, True]}}),
    "messages": (LONG, {"allOf": [{"anyOf": [*[{"type": "string"}] * 2_000, True]}] * 500}),
    "long enumerations": (WIDE, {"items": {"anyOf": [{"enum": [*range(2_000, 22_000)]}, True]}}),
    "patterns of names": (LONG, {"patternProperties": {f"^k.*{n}$": True for n in range(2_000)}}),
    "equal items": (WIDE, {"allOf": [{"uniqueItems": True}] * 20_000}),
    "the schema itself": ("a: 1\n", {"properties": {f"k{n}": {"type": ["string"]} for n in range(20_000)}}),
}


@pytest.fixture
def yaml(tmp_path: Path) -> YamlFiles:
    return YamlFiles(Roots([tmp_path]), max_bytes=1 << 30)


@pytest.mark.parametrize("name", COSTLY)
def test_a_check_that_takes_too_long_is_stopped_and_names_the_limit(
    tmp_path: Path, yaml: YamlFiles, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, schema = COSTLY[name]
    (tmp_path / "f.yaml").write_text(text)
    monkeypatch.setattr(checking, "MAX_CPU_S", 0.05)
    with pytest.raises(YamlError, match=r"^schema: validation takes more than 0\.05 s of processor time") as refused:
        yaml.validate(str(tmp_path / "f.yaml"), schema)
    assert refused.value.code == Code.INVALID_PARAMS
    # The thread's next check has its own time limit.
    monkeypatch.undo()
    (tmp_path / "g.yaml").write_text("a: 1\n")
    assert yaml.validate(str(tmp_path / "g.yaml"), {"required": ["a"]}).valid


def test_pattern_that_is_large_for_a_long_text_is_refused_before_it_is_matched(tmp_path: Path, yaml: YamlFiles) -> None:
    """Linear time in the text is not enough: the pattern's size is a factor, and a match cannot be interrupted."""
    (tmp_path / "f.yaml").write_text(f"a: {'a' * 200_000}\n")
    with pytest.raises(YamlError, match=r"^schema: the pattern .* is too large for a text of 200000 characters"):
        yaml.validate(str(tmp_path / "f.yaml"), {"properties": {"a": {"pattern": "(a|b){0,980}c"}}})
    assert yaml.validate(str(tmp_path / "f.yaml"), {"properties": {"a": {"pattern": "^a+$"}}}).valid


@pytest.mark.parametrize("value", ["x" * 1_000_000, "[" + "xxxxxxxx," * 100_000 + "]"])
def test_messages_show_long_values_in_part(tmp_path: Path, yaml: YamlFiles, value: str) -> None:
    (tmp_path / "f.yaml").write_text(f"a: {value}\n")
    checked = yaml.validate(str(tmp_path / "f.yaml"), {"properties": {"a": {"type": "integer"}}})
    (fault,) = checked.faults
    assert len(fault.message) < 400
    assert fault.message.endswith("is not of type 'integer'")


def test_merges_cost_what_they_merge(tmp_path: Path, yaml: YamlFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = "".join(f"s{n}: &s{n} {{k{n}: 1, same: {n}}}\n" for n in range(300))
    (tmp_path / "f.yaml").write_text(f"{sources}m:\n  <<: [{', '.join(f'*s{n}' for n in range(300))}]\n")
    every = {"required": [f"k{n}" for n in range(300)], "properties": {"same": {"const": 0}}}
    assert yaml.validate(str(tmp_path / "f.yaml"), {"properties": {"m": every}}).valid


def test_references_are_never_fetched(tmp_path: Path, yaml: YamlFiles) -> None:
    (tmp_path / "f.yaml").write_text("a: 1\n")
    (tmp_path / "s.json").write_text('{"type": "string"}')
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/s.json"
        for reference in (address, (tmp_path / "s.json").as_uri(), "s.json", f"{address}#/$defs/a"):
            for schema in ({"$ref": reference}, {"$schema": reference, "$id": address, "$ref": reference + "x"}):
                with pytest.raises(YamlError, match="points outside the schema") as refused:
                    yaml.validate(str(tmp_path / "f.yaml"), schema)
                assert refused.value.code == Code.INVALID_PARAMS
        with pytest.raises(BlockingIOError):
            listener.accept()


async def test_other_calls_do_not_wait_for_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f.yaml").write_text("a: 1\n")
    released, begun = threading.Event(), threading.Semaphore(0)
    validate = checking.validate

    def slow(*arguments: Any) -> Any:
        begun.release()
        released.wait()
        return validate(*arguments)

    monkeypatch.setattr(checking, "validate", slow)
    file = str(tmp_path / "f.yaml")
    async with services_in_process({"yaml": open_service}, tmp_path / "data", roots=[tmp_path]) as bench:
        checked: list[bool | LinckiaError] = []

        async def check() -> None:
            checked.append((await bench.call(YamlValidate(file=file, schema={}))).valid)

        async with trio.open_nursery() as nursery:
            for _ in range(CHECKS + 6):
                nursery.start_soon(check)
            for _ in range(CHECKS):
                await trio.to_thread.run_sync(begun.acquire)
            try:
                assert (await bench.call(NoyalibGet(file=file, path="a"))).text == "1"
                assert checked == []
            finally:
                released.set()
        assert checked == [True] * (CHECKS + 6)
