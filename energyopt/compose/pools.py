"""Serves one model by a prefill pool and a decode pool on this host: engines as processes, and a front over them."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal

from pydantic import Field

from api.pools.app import PoolsFront
from api.pools.balance import Balancer
from api.pools.pulse import SILENCE, Pulse
from api.pools.workers import Pools, Role
from api.serve import Server, bind
from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.config import Config, ParallelLayout
from energyopt.core.errors import ConfigError, LaunchError
from energyopt.core.units import Seconds
from engine.offload import SECRET

from .governed import fixed_power
from .meters import device_identities
from .pool_plan import occupied, plan_workers
from .pool_process import ENGINE, PoolProcess
from .power import power_controller, put_back_left
from .service import Notify, ServeRequest

logger = logging.getLogger(__name__)

GRACE = Seconds(30.0)
_END_SECONDS = 15.0

Beside = Callable[[], Coroutine[Any, Any, None]]
"""Work beside the requests, until it is cancelled."""


class PoolsRequest(Config):
    """What ``energyopt serve --prefill N --decode M`` was asked; ``serve`` is every engine's, but for its address.

    A pool whose layout is None has that of ``serve``. Blocks are handed over between any two: the ranks of one hold
    other heads and layers than those of the other, and together the same.
    """

    serve: ServeRequest
    prefill: int = Field(1, ge=1, le=64)
    decode: int = Field(1, ge=1, le=64)
    prefill_layout: ParallelLayout | None = None
    decode_layout: ParallelLayout | None = None
    rebalance: Literal["auto", "off"] = "off"

    def roles(self) -> dict[str, Role]:
        """The engines by name, in the order of their start."""
        names = {f"prefill-{n}": Role.PREFILL for n in range(self.prefill)}
        return names | {f"decode-{n}": Role.DECODE for n in range(self.decode)}

    def layouts(self) -> list[ParallelLayout]:
        """The layout of each of them."""
        return [self.layout_of(role) for role in self.roles().values()]

    def layout_of(self, role: Role) -> ParallelLayout:
        """The layout of a pool's engines."""
        own = self.prefill_layout if role is Role.PREFILL else self.decode_layout
        return own or self.serve.engine.layout


def run_pools(request: PoolsRequest, notify: Notify) -> None:
    """Serve until SIGINT or SIGTERM. The port is taken before the first engine starts.

    Raises ConfigError (port in use, what pools cannot do), LaunchError if an engine does not come up.
    """
    if request.serve.power_auto:
        raise ConfigError("--power-cap auto governs one engine; with --prefill and --decode a fixed cap is allowed.")
    with bind(request.serve.host, request.serve.port) as listener:
        devices = device_identities(request.serve.engine.device, occupied(request.layouts()))
        for line in put_back_left():
            notify(line)
        with fixed_power(power_controller(devices), request.serve.power, notify):
            PoolService(request, notify).run(listener)


class PoolService:
    """The processes and the front. ``command`` is another program for the engines than the usual one; one of them that
    says nothing for ``silence`` seconds is replaced. ``watch`` sees to that while the front serves."""

    def __init__(
        self, request: PoolsRequest, notify: Notify, command: Sequence[str] = ENGINE, *, silence: float = SILENCE
    ) -> None:
        self._request = request
        self._notify = notify
        self._clock: Clock = MonotonicClock()
        self._server: _PoolServer | None = None
        names = request.roles()
        self.pools = Pools(names, self._clock)
        serve = request.serve
        self.front = PoolsFront(
            self.pools,
            self._clock,
            operator_key=serve.api_key,
            has_tenants=bool(serve.tenants),
            on_resize=self._resized,
        )
        plan = plan_workers(serve, request.layouts())
        if plan.note:
            notify(plan.note)
        secret = os.environ.get(SECRET) or secrets.token_hex(16)
        self.processes = [
            PoolProcess(
                name,
                engine.request,
                self._clock,
                on_up=self._upper(name),
                on_down=self._downer(name),
                environment={SECRET: secret, **engine.environment},
                command=command,
            )
            for name, engine in zip(names, plan.engines, strict=True)
        ]
        processes = {process.name: process for process in self.processes}
        self.watch = Pulse(self.front, self._clock, lambda name, why: processes[name].replace(why), silence=silence)

    def run(self, listener: socket.socket) -> None:
        """Start every engine, then serve on ``listener`` until a signal."""
        try:
            self._start()
            host, port = listener.getsockname()[:2]
            ready = f"serving on http://{host}:{port}/v1 (stop with Ctrl-C)"
            self._server = _PoolServer(
                self.front, abort=self._stop, on_ready=lambda: self._notify(ready), beside=self._beside()
            )
            self._server.run(sockets=[listener])
        finally:
            self._stop()
            for process in self.processes:
                process.join(_END_SECONDS)

    def stop(self) -> None:
        """Ask for the end, from any thread, as a signal does."""
        if self._server is not None:
            self._server.stop()

    def _beside(self) -> list[Beside]:
        """What runs beside the requests: a watch over the engines and, if roles shall follow the load, the balancer."""
        work: list[Beside] = [self.watch.run]
        if self._request.rebalance == "auto":
            work.append(Balancer(self.front, self._clock, self._request.serve.engine.max_num_seqs).run)
        return work

    def _start(self) -> None:
        self._notify(f"starting {len(self.processes)} engines ...")
        for process in self.processes:
            process.start()
        for process in self.processes:
            process.ready.wait()
            if process.failure is not None:
                raise LaunchError(process.failure)
            self._notify(f"{process.name} is up")

    def _stop(self) -> None:
        self.pools.close()
        for process in self.processes:
            process.stop()

    def _upper(self, name: str) -> Callable[[str], None]:
        return lambda url: self.pools.up(name, url)

    def _downer(self, name: str) -> Callable[[], None]:
        return lambda: self.pools.down(name)

    def _resized(self, names: tuple[str, ...]) -> None:
        prefill, decode = (self.pools.count(role) for role in Role)
        self._notify(f"{', '.join(names)} changed role: {prefill} engines prefill, {decode} decode now")


class _PoolServer(Server):
    """Runs what is beside the requests, and ends the front's connections in the loop that made them."""

    def __init__(
        self,
        front: PoolsFront,
        *,
        abort: Callable[[], None],
        on_ready: Callable[[], None],
        beside: Sequence[Beside],
    ) -> None:
        super().__init__(front.app, grace=GRACE, abort=abort, on_ready=on_ready)
        self._front = front
        self._beside = beside
        self._tasks: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for work in self._beside:
            task = asyncio.create_task(work())
            task.add_done_callback(_report)
            self._tasks.append(task)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().shutdown(sockets)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._front.close()


def _report(task: asyncio.Task[None]) -> None:
    """A task beside the requests that fails is a fault of ours: said in the log, since nobody awaits it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("A task beside the pools ended: %s", error, exc_info=error)
