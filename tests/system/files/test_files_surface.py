"""The surface `files` as its clients see it, over HTTP and stdio: an entry from its scan to its thumbnail, all
documented URIs, and preferences that belong to one session.
"""

from __future__ import annotations

import base64
import io
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from mcp import StdioServerParameters, stdio_client
from mcp.client import Client
from PIL import Image

from tests.system.running import HTTP, RunningKernel, running

STATIC = (
    "nodes", "resource-sets", "jobs", "jobs/pending", "jobs/running", "jobs/completed", "jobs/failed", "metadata",
    "metadata/thumbnails", "plans", "plan-executions",
)  # fmt: skip
SERVICES = ("files", "compare", "watch", "media", "decode")
"""Those that the surface needs."""

TEMPLATES = (
    "nodes/{+path}", "nodes/{+path}/metadata", "nodes/{+path}/thumbnail", "resource-sets/{name}",
    "resource-sets/{name}/entries", "resource-sets/{name}/children", "resource-sets/{name}/parents",
    "resource-sets/{name}/stats", "resource-sets/{name}/metrics/{metric}", "jobs/{id}", "plans/{name}",
    "plans/{name}/executions", "metadata/{hash}",
)  # fmt: skip


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    root = tmp_path_factory.mktemp("root")
    Image.new("RGB", (640, 480), (200, 10, 10)).save(root / "a photo.jpg")
    (root / "folder").mkdir()
    (root / "folder/metadata").write_text("a file that is called so")
    (root / "note.txt").write_text("text")
    with running(tmp_path_factory.mktemp("data"), [root], options=HTTP, services=SERVICES) as started:
        yield started


def target_of(kernel: RunningKernel, transport: str) -> Any:
    if transport == "http":
        return f"{kernel.status()['http_url']}/files"
    arguments = ["-P", "-m", "kernel.cli", "stdio", "--data", str(kernel.data_dir), "--surface", "files"]
    return stdio_client(StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ)))


async def answer(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def read(client: Client, uri: str) -> Any:
    (content,) = (await client.read_resource(f"synthesis://{uri}")).contents
    return json.loads(content.text) if hasattr(content, "text") else base64.b64decode(content.blob)


@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_an_entry_is_found_from_its_scan_to_its_thumbnail(kernel: RunningKernel, transport: str) -> None:
    root = kernel.status()["roots"][0]

    async def main() -> None:
        with anyio.fail_after(60):
            async with Client(target_of(kernel, transport)) as client:
                listed = {str(resource.uri) for resource in (await client.list_resources()).resources}
                assert listed >= {f"synthesis://{uri}" for uri in STATIC}
                templates = (await client.list_resource_templates()).resource_templates
                assert {template.uri_template for template in templates} >= {f"synthesis://{uri}" for uri in TEMPLATES}
                await answer(client, "index", root=root, **{"async": False, "force": True})
                found = await answer(client, "inspect", path=f"{root}/a photo.jpg")
                assert found["metadataUri"] == f"{found['resourceUri']}/metadata"
                shown = await answer(client, "navigate", path=root)
                urls = {entry["name"]: entry.get("thumbnailUrl") for entry in shown["entries"]}
                assert urls == {"a photo.jpg": found["thumbnailUri"], "folder": None, "note.txt": None}
                uri = found["resourceUri"].removeprefix("synthesis://")
                assert (await read(client, uri))["path"] == found["path"]
                assert (await read(client, f"{uri}/metadata"))["metadata"] == found["metadata"]
                with Image.open(io.BytesIO(await read(client, f"{uri}/thumbnail"))) as picture:
                    assert (picture.format, picture.size) == ("JPEG", (320, 240))
                # Directories have no thumbnail, so this is the file of that name.
                assert (await read(client, f"nodes{root}/folder/metadata"))["path"] == f"{root}/folder/metadata"
                (thumbnail,) = (await read(client, "metadata/thumbnails"))["thumbnails"]
                known = await read(client, "metadata?limit=10")
                assert thumbnail["hash"] in {record["hash"] for record in known["metadata"]}
                record = await read(client, f"metadata/{thumbnail['hash']}")
                assert (record["metadata"]["width"], record["metadata"]["height"]) == (640, 480)

    anyio.run(main)


def test_preferences_belong_to_the_session(kernel: RunningKernel) -> None:
    async def main() -> None:
        with anyio.fail_after(60):
            async with (
                Client(target_of(kernel, "http"), mode="legacy") as one,
                Client(target_of(kernel, "http"), mode="legacy") as two,
                Client(target_of(kernel, "stdio"), mode="legacy") as three,
            ):
                clients = {"one": one, "two": two, "three": three}
                for name, client in clients.items():
                    await answer(client, "preferences_set", preferences={"default_sort": name})
                await answer(one, "preferences_set", preferences={"show_hidden": True})
                kernel.kill("files")
                kernel.wait_ready("files")
                found = {
                    name: (await answer(client, "preferences_get"))["preferences"] for name, client in clients.items()
                }
                assert found == {
                    "one": {"default_sort": "one", "show_hidden": True},
                    "two": {"default_sort": "two"},
                    "three": {"default_sort": "three"},
                }
        assert kernel.call("preferences_get")["preferences"] == {}

    anyio.run(main)
