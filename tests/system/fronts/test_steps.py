"""Steps that no list shows, called by a real MCP client as `ops_query` and `ops_execute` have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client

from tests.system.running import HTTP, RunningKernel, running


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root").resolve()


@pytest.fixture(scope="module")
def kernel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    services = ("files", "compare", "watch", "decode", "documents", "yaml")
    with running(tmp_path_factory.mktemp("data"), [root], options=HTTP, services=services) as started:
        yield started


Call = Callable[..., Any]


def by_client(kernel: RunningKernel, use: Callable[[Call], Any]) -> None:
    """Give `use` a function that calls a step, by its name and parameters, and returns its result."""

    async def main() -> None:
        async with Client(f"{kernel.status()['http_url']}/all") as client:

            async def call(op: str, *, reads: bool = False, fails: bool = False, **params: Any) -> Any:
                tool, field = ("ops_query", "steps") if reads else ("ops_execute", "operations")
                done = await client.call_tool(tool, {field: [{"op": op, "params": params}]})
                assert done.is_error == fails, done.content
                return done.structured_content if reads else done.structured_content["results"][0]

            await use(call)

    anyio.run(main)


def test_a_folder_is_copied_and_a_second_copy_does_not_overwrite_it(kernel: RunningKernel, root: Path) -> None:
    (root / "copied/in").mkdir(parents=True)
    (root / "copied/in/a").write_text("a\n")

    async def use(call: Call) -> None:
        given = [{"from": str(root / "copied"), "to": str(root / "new/copy")}]
        done = await call("files_copy", copies=given, makeDirectories=True)
        assert (done["succeeded"], (root / "new/copy/in/a").read_text()) == (1, "a\n")
        again = await call("files_copy", fails=True, copies=given)
        assert "already exists" in again["results"][0]["error"]

    by_client(kernel, use)


def test_folders_are_made_and_existing_ones_are_said(kernel: RunningKernel, root: Path) -> None:
    async def use(call: Call) -> None:
        paths = [str(root / "made/deep"), str(root)]
        done = await call("folders_create", paths=paths)
        assert [each.get("existed", False) for each in done["results"]] == [False, True]
        assert (root / "made/deep").is_dir()

    by_client(kernel, use)


def test_a_folder_is_read_without_an_index(kernel: RunningKernel, root: Path) -> None:
    (root / "shown/in").mkdir(parents=True)
    (root / "shown/a").write_text("four")

    async def use(call: Call) -> None:
        found = await call("files_read", reads=True, path=str(root / "shown"))
        assert (found["text"], found["source"]) == ("file 4 a\ndirectory - in/\n", "folder")

    by_client(kernel, use)


def test_a_file_is_compared_with_its_stored_version(kernel: RunningKernel, root: Path) -> None:
    (root / "versions").mkdir()
    file = root / "versions/a.txt"
    file.write_text("old\n")

    async def use(call: Call) -> None:
        added = await call("documents_add", path=str(file))
        file.write_text("new\n")
        found = await call("files_diff", reads=True, before={"hash": added["hash"]}, after={"path": str(file)})
        assert found["diff"].splitlines()[2:] == ["@@ -1 +1 @@", "-old", "+new"]

    by_client(kernel, use)


def test_a_yaml_file_is_merged_into_another_one(kernel: RunningKernel, root: Path) -> None:
    (root / "base.yaml").write_text("a: 1  # kept\nb:\n  - x\n")
    (root / "over.yaml").write_text("b: [z]\nc: {d: 2}\n")

    async def use(call: Call) -> None:
        base, over = str(root / "base.yaml"), str(root / "over.yaml")
        done = await call("yaml_merge", file=base, source=over, lists="append")
        assert done["changed"]
        assert (root / "base.yaml").read_text() == "a: 1  # kept\nb:\n  - x\n  - z\nc:\n  d: 2\n"

    by_client(kernel, use)


def test_a_restarted_service_loses_no_call(kernel: RunningKernel, root: Path) -> None:
    (root / "counted.yaml").write_text("n: [0]\n")
    file = str(root / "counted.yaml")

    async def use(call: Call) -> None:
        answered: list[int] = []
        restarted = anyio.Event()

        async def append(number: int) -> None:
            await call("yaml_append", file=file, path="n", value=number)
            answered.append(number)

        async def restart() -> None:
            before = kernel.service("yaml")["generation"]
            done = await call("services_restart", service="yaml")
            assert "yaml is ready" in done["message"]
            assert kernel.service("yaml")["generation"] == before + 1
            restarted.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(restart)
            number = 0
            while not restarted.is_set() or number < 40:
                async with anyio.create_task_group() as some:
                    for _ in range(8):
                        number += 1
                        some.start_soon(append, number)
        read = await call("yaml_get", reads=True, file=file, path="n")
        written = [int(each) for each in read["text"].strip("[]").split(",")]
        assert sorted(written) == [0, *sorted(answered)] == list(range(number + 1))

    by_client(kernel, use)


def test_what_a_client_may_not_restart_is_said(kernel: RunningKernel) -> None:
    async def use(call: Call) -> None:
        for service, reason in (("front", "carries this call"), ("nothing", "there is no service 'nothing'")):
            refused = await call("services_restart", fails=True, service=service)
            assert reason in str(refused)
        kernel.call("kernel_stop", {"service": "documents"})
        try:
            refused = await call("services_restart", fails=True, service="documents")
            assert "the operator has stopped documents" in str(refused)
        finally:
            kernel.call("kernel_start", {"service": "documents"})

    by_client(kernel, use)
