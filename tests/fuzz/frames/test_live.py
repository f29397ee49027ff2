"""A hostile service in a real kernel: it pays alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from proto.control.client import CallFailed
from tests.fuzz.frames.live import OPTIONS, fuzz
from tests.system.running import RunningKernel, running


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    # Those whose operations it tries.
    services = ("echo", "retrieve", "graph", "documents", "yaml")
    folder = tmp_path_factory.mktemp("hostile")
    with running(folder, options=OPTIONS, services=services, all_ready=False) as live:
        live.wait_ready("hostile", "echo")
        yield live


def test_service_calls_nothing_that_does_not_name_it(kernel: RunningKernel) -> None:
    for op, params in (
        ("retrieve_delete", {"collection": "notes", "ids": []}),
        ("graph_delete", {"ids": []}),
        ("documents_put_commit", {"id": "x"}),
        ("kernel_stop", {"service": "echo"}),
        ("yaml_set", {}),
        ("hostile_lie", {}),
    ):
        assert kernel.call("hostile_call", {"op": op, "params": params})["refused"] == "forbidden", op


def test_an_invalid_result_is_reported_as_such(kernel: RunningKernel) -> None:
    with pytest.raises(CallFailed, match="hostile_lie: service hostile returned an invalid result") as caught:
        kernel.call("hostile_lie")
    assert (caught.value.failure["kind"], caught.value.failure["executed"]) == ("internal", "maybe")


def test_frames_without_end_and_violations_end_the_hostile_service_alone(kernel: RunningKernel) -> None:
    ways = ["text that is no UTF-8", "a body that is too deep", "a part in parts"]
    status = fuzz(kernel, 6000, 15, ways, lot=2000)
    assert status["deaths"] == {"protocol": 3}
