"""Hosts of a network with slow links, on one machine: network namespaces on a bridge, each link cut
down to a rate by a token bucket in both directions. Needs root, `ip` and `tc`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence

MISSING = os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc"))
REASON = "needs root, ip and tc (Debian: iproute2)"


class ShapedHosts:
    """Namespaces with one interface `eth0` each, in a subnet with the bridge; a context manager.

    Args:
        count: hosts.
        rate: of each link in tc's words, e.g. 200mbit.
    """

    def __init__(self, count: int, rate: str) -> None:
        self._key = secrets.token_hex(3)
        self._net = f"10.{200 + secrets.randbelow(50)}.{secrets.randbelow(250)}"
        self._bridge = f"hb{self._key}"
        self.names = [f"howdah-{self._key}-{number}" for number in range(count)]
        self._rate = rate
        self.address = f"{self._net}.254"
        """Of this machine, as the hosts see it."""

    def __enter__(self) -> ShapedHosts:
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("addr", "add", f"{self.address}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for number, name in enumerate(self.names):
                outside = f"hv{self._key}{number}"
                _ip("netns", "add", name)
                _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
                _ip("link", "set", outside, "master", self._bridge, "up")
                _ip("-n", name, "addr", "add", f"{self.address_of(number)}/24", "dev", "eth0")
                _ip("-n", name, "link", "set", "eth0", "up")
                _ip("-n", name, "link", "set", "lo", "up")
                self._shape(["-n", name], "eth0")
                self._shape([], outside)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_) -> None:
        self._remove()

    def address_of(self, number: int) -> str:
        """A host's address, as the others see it."""
        return f"{self._net}.{number + 1}"

    def inside(self, number: int, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` on a host."""
        return ["ip", "netns", "exec", self.names[number], *argv]

    def _shape(self, where: list[str], device: str) -> None:
        bucket = ["rate", self._rate, "burst", "256kb", "latency", "100ms"]
        _run("tc", *where, "qdisc", "add", "dev", device, "root", "tbf", *bucket)

    def _remove(self) -> None:
        for name in self.names:  # the veth pairs go with their namespaces
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
