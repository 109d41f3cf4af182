"""A cable between two networks of this machine that loses packets, or is cut.

Packets pass through this process: the kernels of small machines lack the queueing discipline that drops some.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import struct
import subprocess
import threading
from contextlib import suppress

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
HERE, THERE = "10.77.0.1", "10.77.0.2"
"""Addresses of the two ends."""


class Link:
    """From this network to the one named ``there``. ``loss`` is the share of packets lost; 1.0 cuts the cable."""

    def __init__(self, there: str, seed: int = 0) -> None:
        self.loss = 0.0
        self.before = ("ip", "netns", "exec", there)
        self.passed = self.lost = 0
        self._chance = random.Random(seed)
        self._near = _tunnel("chaos0")
        self._far = _tunnel("chaos1")
        _ip("link", "set", "chaos1", "netns", there)
        _ip("addr", "add", HERE, "peer", THERE, "dev", "chaos0")
        _ip("link", "set", "chaos0", "up")
        _ip("-n", there, "addr", "add", THERE, "peer", HERE, "dev", "chaos1")
        _ip("-n", there, "link", "set", "chaos1", "up")
        _ip("-n", there, "link", "set", "lo", "up")
        self._end, self._ended = os.pipe()
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()

    def close(self) -> None:
        os.write(self._ended, b"x")
        self._thread.join(10)
        for one in (self._near, self._far, self._end, self._ended):
            os.close(one)

    def _carry(self) -> None:
        other = {self._near: self._far, self._far: self._near}
        while True:
            ready, _, _ = select.select([self._near, self._far, self._end], [], [])
            if self._end in ready:
                return
            for one in ready:
                with suppress(OSError):  # the other end may be down
                    packet = os.read(one, 65536)
                    if self._chance.random() < self.loss:
                        self.lost += 1
                        continue
                    self.passed += 1
                    os.write(other[one], packet)


def _tunnel(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return device


def _ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True, timeout=30, capture_output=True)
