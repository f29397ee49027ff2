"""Clients that share mounted servers: one tree of processes for each server, however many clients there are."""

from __future__ import annotations

from pathlib import Path

from tests.bench.shared_servers import own, shared
from tests.chaos.mounted.servers import small

CLIENTS, SERVERS = 4, 3


def test_clients_share_one_tree_of_processes_for_each_server(tmp_path: Path) -> None:
    servers = small(tmp_path, SERVERS)
    assert shared(tmp_path, servers, CLIENTS).trees == SERVERS
    assert own(tmp_path, servers, CLIENTS).trees == SERVERS * CLIENTS
