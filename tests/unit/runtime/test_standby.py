"""What wakes a standby reaches it, whatever of its own the kernel had not read by then."""

from __future__ import annotations

import os
import socket

import pytest

from proto.birth import PREPARED
from services.runtime.standby import receive


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@pytest.mark.parametrize("unread", [False, True])
def test_wake_is_received_after_the_kernel_closed_its_end(*, unread: bool) -> None:
    kernel, standby = pair()
    with kernel, standby:
        if unread:
            standby.send(PREPARED)
        socket.send_fds(kernel, [b"wake"], [0])
        kernel.close()
        packet, fds = receive(standby)
        assert packet == b"wake"
        assert len(fds) == 1
        os.close(fds[0])
        assert receive(standby) == (b"", [])


@pytest.mark.parametrize("unread", [False, True])
def test_closed_end_without_a_wake_is_an_empty_packet(*, unread: bool) -> None:
    kernel, standby = pair()
    with kernel, standby:
        if unread:
            standby.send(PREPARED)
        kernel.close()
        assert receive(standby) == (b"", [])
