"""The operator's page shows the nodes of a real Ray cluster, and what runs there."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.browser import chromium
from tests.browser.visiting import Visitor, axe_violations
from tests.system.running import HTTP, running, wait_until
from tests.system.support.ray_nodes import node_of, ray_nodes, settings, wait_here, wait_on_node

pytestmark = [
    chromium.needed,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs linckia[ray]"),
    # Ray leaves files and sockets of its own to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def test_the_nodes_are_listed_with_their_services_and_a_lost_cluster_is_reported(tmp_path: Path, browser: Any) -> None:
    with ray_nodes(1) as nodes:
        settings(tmp_path, nodes.address, {"echo": "num_cpus = 1"})
        with running(tmp_path, services=["front", "echo"], options=HTTP, token=True) as kernel:
            wait_until(lambda: kernel.status()["page_url"])
            node = node_of(wait_on_node(kernel, "echo"))
            for width, theme in (("desktop", "light"), ("phone", "dark")):
                visitor = Visitor(browser, width, theme)
                visitor.sign_in(kernel)
                visitor.sees(node)
                row = visitor.page.locator("tr", has_text=node)
                row.get_by_role("link", name="echo").wait_for()
                assert visitor.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
                assert axe_violations(visitor.page) == []
                # The first view asks services that this kernel does not serve.
                assert [each for each in visitor.complaints if "404" not in each] == []
            nodes.kill_head()
            wait_here(kernel, "echo")
            visitor.sees("is not connected")
