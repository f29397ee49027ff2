"""A language model behind the real kernel: reached from its own sandbox, with the key from a file, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from tests.system.running import running
from tests.unit.llm.server import saying, serving


async def test_a_search_is_refined_by_the_model_that_the_settings_name(tmp_path: Path) -> None:
    root = tmp_path / "notes"
    root.mkdir()
    for name in ("one", "two"):
        (root / f"{name}.md").write_text(f"# {name}\n\nNote {name} of a zebra with stripes, long enough to be one.\n")
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "key").write_text("the-key\n")
    (secrets / "key").chmod(0o600)
    said = {"intent": "Zebras.", "ranking": [2, 1]}
    async with serving(saying(said)) as server:
        environment = {
            "LINCKIA_LLM__URL": server.url,
            "LINCKIA_LLM__MODEL": "small",
            "LINCKIA_LLM__PROTOCOL": "ollama",
            "LINCKIA_LLM__KEY_FILE": str(secrets / "key"),
        }

        def search() -> dict[str, Any]:
            services = ("knowledge", "retrieve", "llm")
            with running(tmp_path / "data", [root], environment=environment, services=services) as kernel:
                answer: dict[str, Any] = kernel.call("notes_search", {"query": "zebra"})
                return answer

        answer = await trio.to_thread.run_sync(search)
    (request,) = server.requests
    assert request.headers["authorization"] == "Bearer the-key"
    assert [hit["id"] for hit in answer["results"]] == [each["id"] for each in request.material["results"]][::-1]
    assert (answer["metadata"]["sonar_enabled"], answer["metadata"]["intent"]) == (True, "Zebras.")
