"""A real Mooncake master on loopback, for tests of the pool that engines share."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path


class MooncakePool:
    """A Mooncake master with its metadata server on loopback, which a test may kill and start again."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "mooncake_master.log"
        self._port, self._http, self._metrics = _free_ports(3)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"mooncake://127.0.0.1:{self._port}?metadata=http://127.0.0.1:{self._http}/metadata"

    def start(self) -> None:
        """Start the master and wait until it answers."""
        command = [
            str(Path(sys.executable).with_name("mooncake_master")),
            "--rpc_address=127.0.0.1",
            f"--rpc_port={self._port}",
            "--enable_http_metadata_server=true",
            "--http_metadata_server_host=127.0.0.1",
            f"--http_metadata_server_port={self._http}",
            f"--metrics_port={self._metrics}",
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        while not all(_answers(port) for port in (self._port, self._http)):
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, "the master does not listen"
            time.sleep(0.05)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(made.getsockname()[1]) for made in sockets]
    for made in sockets:
        made.close()
    return ports


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
