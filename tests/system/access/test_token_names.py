"""A token that gets the name of a revoked one gets nothing else of it."""

from __future__ import annotations

from pathlib import Path

from tests.system.access.tokens import HttpClient, create, token_command
from tests.system.running import HTTP, running


def test_a_new_token_of_the_same_name_has_no_tasks_timers_or_answers_of_the_old_one(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "secret.yaml").write_text("password: hidden\nlist: []\n")
    data = tmp_path / "data"
    with running(data, [root], options=HTTP, services=["echo", "yaml", "tasks"], token=True) as kernel:
        former = HttpClient(kernel, create(kernel, "ci"))
        write = {"file": str(root / "secret.yaml"), "path": "list", "value": "x"}
        started = former.tool("tasks_start", {"operation": "mcp_echo", "arguments": {"message": "hidden"}}).json
        task = started["result"]["structuredContent"]["id"]
        assert former.tool("tasks_wait", {"id": task}).json["result"]["structuredContent"]["state"] == "completed"
        timer = {"operation": "mcp_echo", "arguments": {"message": "hidden"}, "cron": "0 3 * * *"}
        assert "cron" in former.tool("schedule", timer).text
        token_command(kernel, "revoke", "ci")
        again = HttpClient(kernel, create(kernel, "ci", "--read-only"))
        assert again.tool("tasks_list").json["result"]["structuredContent"] == {"tasks": [], "total": 0}
        refused = again.tool("tasks_get", {"id": task})
        assert "there is no task" in refused.text
        assert "hidden" not in refused.text
        assert again.tool("timers_list").json["result"]["structuredContent"] == {"timers": []}
        # A key counts for one token only.
        call = {"name": "yaml_append", "arguments": write}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        for _ in range(2):
            token_command(kernel, "revoke", "ci")
            writer = HttpClient(kernel, create(kernel, "ci"))
            headers = {"mcp_session_id": writer.initialize(), "mcp_protocol_version": "2025-11-25"}
            for _ in range(2):
                assert writer.request("POST", "/mcp/all", body, idempotency_key="once", **headers).status == 200
        assert (root / "secret.yaml").read_text().endswith("list: [x, x]\n")
