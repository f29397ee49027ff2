"""Over HTTP each client may do what its token says, and nothing else: through every way in."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from http.client import IncompleteRead
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from proto import ops
from proto.grants import Grant
from proto.operation import CLIENT, Operation
from proto.wire.front import SERVICE as FRONT
from tests.system.access import token_walk
from tests.system.access.tokens import Answer, HttpClient, create, token_command
from tests.system.running import HTTP, RunningKernel, running, wait_until

SERVICES = (
    "echo", "yaml", "files", "compare", "watch", "media", "decode", "knowledge", "documents", "retrieve", "graph",
    "transcripts", "fetch", "events", "tasks",
)  # fmt: skip
WITHOUT_FILES = frozenset({"embed", "rerank"})
"""Services that are left out here, since they take seconds to load: they see no path and keep nothing."""

MARKER = "okapi7f3a"
"""Text in contents and names below the other root, and in no request."""


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("roots").resolve()
    mine, theirs = folder / "mine", folder / "theirs"
    for root in (mine, theirs):
        said = "zebra" if root == mine else f"zebra {MARKER}"
        (root / "sub").mkdir(parents=True)
        (root / "prompts").mkdir()
        (root / "note.md").write_text(f"# Zebra\n\n{said} #stripes\n")
        (root / "plain.yaml").write_text(f"key: {said}\nlist: [1]\n")
        (root / "sub" / "same.txt").write_text("the same in both\n")
        (root / "code.py").write_text("def zebra():\n    return 1\n")
    (theirs / f"{MARKER}.md").write_text("# Zebra again\n\nzebra\n")
    (theirs / "sub" / f"{MARKER}.txt").write_text("the same in both\n")
    (theirs / "prompts" / "PROMPT-theirs.md").write_text(f"# Theirs {MARKER}\n")
    (mine / "prompts" / "PROMPT-mine.md").write_text("# Mine\n")
    return mine, theirs


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory, roots: tuple[Path, Path]) -> Iterator[RunningKernel]:
    data = tmp_path_factory.mktemp("data")
    with running(data, roots, options=HTTP, services=SERVICES, token=True) as started:
        for root in roots:
            started.call("index", {"root": str(root), "async": False, "force": True}, timeout_s=60)
            started.call("documents_add", {"path": str(root), "recursive": True, "snapshot_label": "all"}, timeout_s=60)
        started.call("knowledge_ingest", {"vectors": False}, timeout_s=60)
        started.call("sets_create", {"name": "zebras"})
        paths = [f"{roots[1]}/{MARKER}.md"]
        started.call("sets_modify", {"name": "zebras", "operation": "add", "paths": paths})
        yield started


@pytest.fixture(scope="module")
def own(kernel: RunningKernel) -> HttpClient:
    """A client with the kernel's own token."""
    return HttpClient(kernel, kernel.status()["token"])


def is_refused(answer: Answer, why: str) -> bool:
    return answer.status in (200, 400, 403) and why in answer.text


# The kernel's own token


def test_without_a_token_only_health_and_the_empty_page_are_served(kernel: RunningKernel) -> None:
    stranger = HttpClient(kernel, None)
    for path in ("/health", "/livez", "/readyz", "/"):
        assert stranger.request("GET", path).status == 200, path
    for path in ("/status", "/metrics", "/v1/models", "/api/content?path=/", "/mcp", "/dag/stats"):
        refused = stranger.request("GET", path)
        assert refused.status == 401, path
        assert refused.headers["www-authenticate"].startswith("Bearer")
    assert stranger.tool("mcp.echo", {"message": "hello"}).status == 401
    assert HttpClient(kernel, "linckia_" + "x" * 43).tool("mcp.echo", {"message": "hello"}).status == 401


def test_the_kernel_s_own_token_is_private_and_grants_everything(kernel: RunningKernel, own: HttpClient) -> None:
    file = kernel.data_dir / "token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().strip() == own.token
    assert "hello" in own.tool("mcp.echo", {"message": "hello"}).text
    assert own.request("GET", "/metrics").status == 200
    assert own.request("GET", "/status").status == 200


def test_page_gets_token_and_key_from_behind_the_hash_alone(kernel: RunningKernel, own: HttpClient) -> None:
    _, _, fragment = kernel.status()["page_url"].partition("#")
    key, _, token = fragment.partition(".")
    assert unquote(token) == own.token
    document = own.request("GET", "/").text
    assert key not in document
    assert token not in document
    # A client learns neither.
    status = own.request("GET", "/status").json
    assert (status["token"], status["page_url"]) == (None, None)


def test_service_that_is_stopped_by_hand_leaves_the_system_ready(kernel: RunningKernel) -> None:
    stranger = HttpClient(kernel, None)
    kernel.call("kernel_stop", {"service": "echo"})
    try:
        assert stranger.request("GET", "/readyz").status == 200
    finally:
        kernel.call("kernel_start", {"service": "echo"})


# Named tokens


def test_a_revoked_token_is_invalid_at_once_in_open_sessions_and_streams_too(kernel: RunningKernel) -> None:
    client = HttpClient(kernel, create(kernel, "leaving"))
    session = client.initialize()
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    assert client.in_session(session, ping).status == 200
    headers = {"mcp_session_id": session, "mcp_protocol_version": "2025-11-25"}
    with client.open("GET", "/mcp/all", **headers) as stream:
        assert stream.status == 200
        token_command(kernel, "revoke", "leaving")
        assert client.in_session(session, ping).status == 401
        # It is cut off.
        with pytest.raises(IncompleteRead):
            stream.read()
    log = kernel.data_dir / "audit" / "audit.jsonl"
    wait_until(lambda: "action=revoke name=leaving" in log.read_text())
    # Another of the same name does not take over what that one had.
    again = HttpClient(kernel, create(kernel, "leaving"))
    assert again.in_session(session, ping).status == 404


def test_session_is_of_the_token_that_opened_it(kernel: RunningKernel, own: HttpClient) -> None:
    one, other = (HttpClient(kernel, create(kernel, name)) for name in ("one", "other"))
    session = one.initialize()
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    call = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "mcp.echo", "arguments": {}}}
    for stranger in (other, own):
        for message in (ping, call):
            assert stranger.in_session(session, message).status == 404
        assert stranger.request("DELETE", "/mcp/all", mcp_session_id=session).status == 404
    assert one.in_session(session, ping).status == 200


def test_token_that_only_reads_changes_nothing_by_any_way(kernel: RunningKernel, roots: tuple[Path, Path]) -> None:
    client = HttpClient(kernel, create(kernel, "reader", "--read-only"))
    file = roots[0] / "plain.yaml"
    before = file.read_bytes()
    change = {"file": str(file), "path": "key", "value": "changed"}
    assert "zebra" in client.tool("yaml_get", {"file": str(file), "path": "key"}).text
    step = {"op": "yaml_set", "params": change}
    why = "the token reader may only read"
    assert is_refused(client.tool("yaml_set", change), why)
    assert is_refused(client.tool("execute", {"operations": [step]}), why)
    assert is_refused(client.tool("execute", {"operations": [step]}, surface="compact"), why)
    assert is_refused(client.tool("session", {"action": "start", "params": {"label": "x"}}), why)
    assert is_refused(client.request("POST", "/v1/ingest", {"provider": "openai", "request": {}, "response": {}}), why)
    assert file.read_bytes() == before


def test_token_of_a_surface_reaches_that_surface_by_any_way_and_no_other(
    kernel: RunningKernel, roots: tuple[Path, Path]
) -> None:
    client = HttpClient(kernel, create(kernel, "some", "--surface", "yaml", "--surface", "compact"))
    get = {"file": str(roots[0] / "plain.yaml"), "path": "key"}
    assert "zebra" in client.tool("yaml_get", get, surface="yaml").text
    step = {"op": "yaml_get", "params": get}
    assert "zebra" in client.tool("query", {"steps": [step]}, surface="compact").text
    for surface in ("all", "files", "documents", "knowledge", "transcripts"):
        answer = client.tool("yaml_get", get, surface=surface)
        assert (answer.status, "does not allow the surface" in answer.text) == (403, True)
    assert client.request("POST", "/v1/mcp", {}).status == 403
    why = "is on no surface of the token some"
    for op in ("navigate", "documents.list", "documents_list", "kernel_status"):
        path = {"path": str(roots[0])} if op == "navigate" else {}
        answer = client.tool("query", {"steps": [{"op": op, "params": path}]}, surface="compact")
        assert why in answer.text or "unknown op" in answer.text, answer.text
        assert "succeeded" not in answer.text
    for url in ("/status", "/metrics", "/dag/stats", f"/api/content?path={quote(get['file'])}"):
        answer = client.request("GET", url)
        assert (answer.status, why in answer.text) == (403, True), url


def test_plan_calls_nothing_that_its_client_may_not(kernel: RunningKernel, roots: tuple[Path, Path]) -> None:
    client = HttpClient(kernel, create(kernel, "planner", "--surface", "files"))
    outcome = {
        "type": "tool",
        "tool": "yaml_set",
        "arguments": {"file": "{{entry.path}}", "path": "a", "value": "1"},
    }
    source = {"type": "filesystem.index", "config": {"path": str(roots[0])}}
    plan = {"name": "planned", "sources": [source], "outcomes": [outcome]}
    answer = client.tool("plans_create", plan, surface="files")
    assert "noyalib_set is on no surface of the token planner" in answer.text
    kernel.call("plans_create", plan)
    assert "noyalib_set is on no surface" in client.tool("plans_execute", {"name": "planned"}, surface="files").text
    kernel.call("plans_delete", {"name": "planned"})


# Roots


@pytest.fixture(scope="module")
def limited(kernel: RunningKernel, roots: tuple[Path, Path]) -> HttpClient:
    return HttpClient(kernel, create(kernel, "limited", "--root", str(roots[0])))


OPERATIONS = [op for op in ops.load().values() if op.admits(CLIENT)]
LIMITED = Grant("limited", roots=("/",))


def is_served(op: Operation[object]) -> bool:
    return op.service in SERVICES or op.service == FRONT


def test_no_operation_reveals_another_root_to_a_token_of_one_root(
    limited: HttpClient, own: HttpClient, roots: tuple[Path, Path]
) -> None:
    answered, wrong = set(), []
    for op in OPERATIONS:
        for root in map(str, roots):
            answer = token_walk.call(limited, op, token_walk.arguments_of(op, root))
            if MARKER in answer.text:
                wrong.append((op.name, root, answer.text[:500]))
            if op.refusal(LIMITED):
                if is_served(op) and "token limited is limited to" not in answer.text:
                    wrong.append((op.name, root, f"not refused: {answer.status} {answer.text[:500]}"))
            elif root == str(roots[0]) and is_success(answer):
                answered.add(op.name)
    assert not wrong, "\n".join(map(str, wrong))
    # Each admitted operation really ran.
    admitted = {op.name for op in OPERATIONS if not op.refusal(LIMITED) and is_served(op)}
    assert admitted - answered == FAIL_HERE


FAIL_HERE = {
    "files_node_thumbnail", "scratchpad_read", "documents_session", "tasks_get", "tasks_wait", "tasks_cancel",
    "timers_cancel",
}  # fmt: skip
"""A text has no thumbnail, no answer was long enough to be kept, and no action was named."""


def is_success(answer: Answer) -> bool:
    return answer.status == 200 and '"isError":true' not in answer.text and '"error":' not in answer.text


def test_the_marker_can_be_found_with_full_rights(own: HttpClient, roots: tuple[Path, Path]) -> None:
    """Else the test above could not fail."""
    told = set()
    for op in OPERATIONS:
        if op.access.value == "read":
            answer = token_walk.call(own, op, token_walk.arguments_of(op, str(roots[1])))
            told |= {op.service} if MARKER in answer.text else set()
    assert told >= {"yaml", "files", "media", "knowledge", "documents"}


def test_steps_and_their_results_do_not_lead_out_of_the_roots(limited: HttpClient, roots: tuple[Path, Path]) -> None:
    mine, theirs = map(str, roots)
    for path in (f"{theirs}/plain.yaml", f"{mine}/../theirs/plain.yaml", "plain.yaml", "/proc/self/root" + theirs):
        steps = [{"op": "yaml_get", "params": {"file": path, "path": "key"}}]
        for surface in ("all", "compact"):
            assert MARKER not in limited.tool("query", {"steps": steps}, surface=surface).text
    link = Path(mine, "link.yaml")
    link.symlink_to(f"{theirs}/plain.yaml")
    try:
        assert MARKER not in limited.tool("yaml_get", {"file": str(link), "path": "key"}).text
        assert MARKER not in limited.request("GET", f"/api/content?path={quote(str(link))}").text
        assert limited.request("GET", f"/api/content?path={quote(f'{theirs}/note.md')}").status == 403
    finally:
        link.unlink()
    change = {
        "operations": [{"op": "yaml_set", "params": {"file": f"{theirs}/plain.yaml", "path": "key", "value": "x"}}]
    }
    assert "outside the roots" in limited.tool("execute", change).text
    assert MARKER in Path(theirs, "plain.yaml").read_text()


def test_stored_versions_are_not_compared_for_a_token_of_one_root(
    limited: HttpClient, own: HttpClient, roots: tuple[Path, Path]
) -> None:
    note = {"path": f"{roots[0]}/note.md"}
    for side, field in (({"hash": "0" * 64}, "after.hash"), ({"path": "x", "snapshot": "x"}, "after.snapshot")):
        steps = {"steps": [{"op": "files_diff", "params": {"before": note, "after": side}}]}
        assert f"`{field}`: stored versions come from all roots" in limited.tool("query", steps).text
        assert re.search("Snapshot not found|no stored content", own.tool("query", steps).text)


def test_lists_prompts_and_notifications_cover_the_token_s_roots_only(limited: HttpClient, own: HttpClient) -> None:
    def prompts(client: HttpClient) -> set[str]:
        return {prompt["name"] for prompt in client.rpc("prompts/list", {}).json["result"]["prompts"]}

    assert prompts(own) - prompts(limited) == {"theirs"}
    assert "mine" in prompts(limited)
    assert MARKER in own.rpc("prompts/get", {"name": "theirs"}).text
    assert "Unknown prompt" in limited.rpc("prompts/get", {"name": "theirs"}).text
    session = limited.initialize("files")
    params = {"uri": "synthesis://nodes/anything"}
    message = {"jsonrpc": "2.0", "id": 2, "method": "resources/subscribe", "params": params}
    assert "is limited to some" in limited.in_session(session, message, "files").text


def test_system_wide_information_is_refused_to_a_limited_token(limited: HttpClient) -> None:
    for path in ("/metrics", "/status", "/dag/stats", "/dag/history"):
        answer = limited.request("GET", path)
        assert (answer.status, "token limited is limited to" in answer.text) == (403, True), path
