"""The wire between two machines, each of which is a network namespace: a process that carries Ethernet frames.

    python -m tests.system.support.network.wire SEED

It makes both namespaces, with one TAP device in each, and copies frames from one device to the other with a delay,
jitter and loss. It needs no kernel module for that (`tc netem`), and both devices do without checksum offload, so what
arrives is what a network card would receive.

Its first line of output names the descriptors of the namespaces, through which others enter. Then it reads one
`Weather` per line of its input and answers each with its `Count`. The namespaces have no names, so they end with their
last process, even if everything is killed.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time
from pathlib import Path

import msgspec

ADDRESSES = ("10.77.0.1", "10.77.0.2")
DEVICE = "wire0"

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000

CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
"""Of the namespace. It is reno, which each kernel has and lets a namespace choose. Like cubic, which most machines use,
it slows down at each loss, while bbr hardly does."""

MOST_BYTES = 65536
AT_ONCE = 64
"""Frames that are read from one device before the other one has its turn."""


class Weather(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to frames from now on. Those on their way keep their delay, unless the cable is cut.

    Each takes `delay_s` in one direction, more or less by up to `jitter_s`, and never overtakes another one. The share
    `loss` of them is dropped, and for `cut_s` from now on, all.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    cut_s: float = 0.0


class Count(msgspec.Struct, kw_only=True):
    """Frames carried and dropped so far, and the greatest number on their way at once."""

    carried: int = 0
    dropped: int = 0
    most: int = 0


class Wire:
    """Frames on their way between two devices."""

    def __init__(self, devices: tuple[int, int], chance: random.Random) -> None:
        self._others = {devices[0]: devices[1], devices[1]: devices[0]}
        self._chance = chance
        self._weather = Weather()
        self._cut_until = 0.0
        self._count = Count()
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._last = dict.fromkeys(devices, 0.0)
        self._number = 0

    def change(self, weather: Weather, now: float) -> Count:
        """Set the weather; return what happened until now."""
        self._weather = weather
        self._cut_until = now + weather.cut_s
        if weather.cut_s:
            self._count.dropped += len(self._under_way)
            self._under_way.clear()
        return self._count

    def take(self, device: int, now: float) -> None:
        """Read the frames that a machine has sent."""
        for _ in range(AT_ONCE):
            try:
                frame = os.read(device, MOST_BYTES)
            except BlockingIOError:
                return
            weather = self._weather
            if now < self._cut_until or self._chance.random() < weather.loss:
                self._count.dropped += 1
                continue
            due = now + max(0.0, weather.delay_s + self._chance.uniform(-weather.jitter_s, weather.jitter_s))
            self._last[device] = due = max(due, self._last[device])
            self._number += 1
            heapq.heappush(self._under_way, (due, self._number, self._others[device], frame))
        self._count.most = max(self._count.most, len(self._under_way))

    def deliver(self, now: float) -> float | None:
        """Deliver what is due; return the time until the next frame is, None if there is none."""
        while self._under_way and self._under_way[0][0] <= now:
            _, _, device, frame = heapq.heappop(self._under_way)
            try:
                os.write(device, frame)
                self._count.carried += 1
            except BlockingIOError:
                self._count.dropped += 1
        return self._under_way[0][0] - now if self._under_way else None

    def run(self) -> None:
        """Carry frames until the input ends."""
        devices = list(self._others)
        commands = b""
        while True:
            wait_s = self.deliver(time.monotonic())
            readable, _, _ = select.select([*devices, 0], [], [], wait_s)
            now = time.monotonic()
            for device in devices:
                if device in readable:
                    self.take(device, now)
            if 0 in readable:
                if not (data := os.read(0, MOST_BYTES)):
                    return
                *lines, commands = (commands + data).split(b"\n")
                for line in lines:
                    _say(self.change(msgspec.json.decode(line, type=Weather), now))


_libc = ctypes.CDLL(None, use_errno=True)


def _checked(code: int) -> None:
    if code:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def own_namespace() -> int:
    """Return a descriptor of the network namespace that this process is in."""
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def machine(number: int) -> tuple[int, int]:
    """Make a namespace that this process is in from now on; return its descriptor and its device's. Raises OSError."""
    _checked(_libc.unshare(CLONE_NEWNET))
    namespace = own_namespace()
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TAP | IFF_NO_PI))
    own, other = ADDRESSES[number], ADDRESSES[1 - number]
    for command in (
        "link set lo up",
        f"addr add {own}/24 dev {DEVICE}",
        f"link set {DEVICE} up",
        # Programs find their own address by the route to the rest of the world.
        f"route add default via {other}",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    CONGESTION.write_text("reno", encoding="ascii")
    return namespace, device


def _say(message: object) -> None:
    os.write(1, msgspec.json.encode(message) + b"\n")


def main() -> None:
    """Make the machines and carry frames between them."""
    outside = own_namespace()
    try:
        (first, left), (second, right) = machine(0), machine(1)
        # Whatever is in one of the machines is killed with it.
        _checked(_libc.setns(outside, CLONE_NEWNET))
    except OSError as error:
        sys.exit(str(error))
    _say([first, second])
    Wire((left, right), random.Random(int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
