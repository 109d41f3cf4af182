"""The HTTP application of the front: OpenAI's routes through both pools, everything else to one of the engines."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing

import aiohttp
from fastapi import FastAPI
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response

from api.errors import ForbiddenError, UnauthorizedError, install_handlers, problem_of
from api.fanout import until_disconnect
from api.middleware import BodyLimitMiddleware, LastNetMiddleware, RequestIdMiddleware
from api.streamed import StreamedResponse
from energyopt.core.clock import Clock
from energyopt.core.errors import EngineDeadError, RequestError

from .journey import BROKEN, Journey
from .legs import legs_of
from .pages import CONTENT_TYPE, merged_page
from .through import through
from .workers import Pools, Role, Worker

MAX_BODY = 32 << 20
_NOT_PASSED = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"),
        *("transfer-encoding", "upgrade", "host", "content-length", "expect", "content-encoding", "x-request-id"),
    )
)
_SCRAPE = aiohttp.ClientTimeout(total=5.0)


class PoolsFront:
    """Answers for ``pools``. ``operator_key`` guards ``/admin``; without one it is open, unless tenants have keys.

    ``on_resize`` hears of each change of roles.
    """

    def __init__(
        self,
        pools: Pools,
        clock: Clock,
        *,
        operator_key: str | None = None,
        has_tenants: bool = False,
        on_resize: Callable[[tuple[str, ...]], None] = lambda names: None,
    ) -> None:
        self.pools = pools
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._operator_key = operator_key
        self._has_tenants = has_tenants
        self._on_resize = on_resize
        self._made: aiohttp.ClientSession | None = None
        self.app = self._application()

    async def close(self) -> None:
        """End connections to engines. In the loop that served."""
        if self._made is not None:
            await self._made.close()

    async def pages(self) -> dict[str, str]:
        """The metrics page of each engine that answers, by name."""
        asked = [worker for worker in self.pools.workers if worker.url is not None]
        pages = await asyncio.gather(*(self._text(worker, "/metrics") for worker in asked))
        return {worker.name: page for worker, page in zip(asked, pages, strict=True) if page is not None}

    def resize(self, prefill: int) -> tuple[str, ...]:
        """Change roles; see ``Pools.resize``."""
        names = self.pools.resize(prefill)
        if names:
            self.counts["role_changes"] += len(names)
            self._on_resize(names)
        return names

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._made is None:
            limits = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
            self._made = aiohttp.ClientSession(connector=limits, timeout=timeout, auto_decompress=False)
        return self._made

    def _application(self) -> FastAPI:
        app = FastAPI(title="energyopt", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
        install_handlers(app)
        for path in ("/v1/chat/completions", "/v1/completions"):
            app.add_route(path, self._generate, methods=["POST"])
        app.add_route("/health", self._health)
        app.add_route("/metrics", self._metrics)
        app.add_route("/admin/pools", self._admin, methods=["GET", "POST"])
        app.add_route("/reset_prefix_cache", self._reset, methods=["POST"])
        app.add_route("/{path:path}", self._pass, methods=["GET", "POST"])
        app.add_middleware(BodyLimitMiddleware, limit=MAX_BODY)
        app.add_middleware(LastNetMiddleware)
        app.add_middleware(RequestIdMiddleware)
        return app

    async def _generate(self, request: Request) -> Response:
        """A request for tokens, in two legs where that is possible."""
        legs = legs_of(await request.body())
        path = _path(request)
        journey = Journey(self.pools, self._session, self._clock, self.counts, path, legs, _headers(request))
        try:
            await until_disconnect(request.receive, journey.open())
            if legs.stream and journey.status == 200:
                return _relay(journey)
            body = await until_disconnect(request.receive, journey.whole())
            return Response(body, journey.status, _back(journey.headers))
        except BaseException:
            journey.close()
            raise
        finally:
            if not (legs.stream and journey.status == 200):
                journey.close()

    async def _pass(self, request: Request) -> Response:
        """What no pool is needed for: to an engine that is up, whose answer comes back as it comes."""
        body = await request.body()
        worker = self.pools.any_up()
        if worker is None:
            raise EngineDeadError("No engine is up; the request can be sent again.")
        try:
            answer = await until_disconnect(request.receive, self._ask(worker, request, body))
        except BROKEN as error:
            self.pools.shun(worker)
            raise EngineDeadError("The engine broke off; the request can be sent again.") from error
        return through(answer, _back(answer.headers))

    async def _reset(self, request: Request) -> Response:
        """Every engine forgets; the answer is by engine."""
        answers: dict[str, object] = {}
        for worker in self.pools.workers:
            if worker.url is not None:
                url = f"{worker.url}{_path(request)}"
                try:
                    async with self._session.post(url, headers=_headers(request)) as answer:
                        raw = await answer.read()
                except BROKEN as error:
                    raise EngineDeadError(f"{worker.name} broke off; the request can be sent again.") from error
                if answer.status != 200:
                    return Response(raw, answer.status, _back(answer.headers))
                answers[worker.name] = from_json(raw)
        return _json(answers)

    async def _health(self, _: Request) -> Response:
        """200 while an engine is up; the body says which are."""
        state = _state(self.pools)
        return _json(state, 200 if any(worker.url is not None for worker in self.pools.workers) else 503)

    async def _metrics(self, _: Request) -> Response:
        page = merged_page(await self.pages(), self.pools.workers, self.counts)
        return Response(page, media_type=CONTENT_TYPE)

    async def _admin(self, request: Request) -> Response:
        """GET says who does what; POST ``{"prefill": N, "decode": M}`` changes it, M being what is left."""
        self._check_operator(request)
        if request.method == "POST":
            prefill = _wanted(await request.body(), len(self.pools.workers))
            return _json({"changed": list(self.resize(prefill)), **_state(self.pools)})
        return _json(_state(self.pools))

    def _check_operator(self, request: Request) -> None:
        if self._operator_key is None:
            if self._has_tenants:
                raise ForbiddenError("Changing the pools takes the operator's key, and this service has none.")
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        sent = given.strip().encode("latin-1")
        if scheme.lower() != "bearer" or not hmac.compare_digest(sent, self._operator_key.encode()):
            raise UnauthorizedError("Changing the pools takes the operator's key: 'Authorization: Bearer KEY'.")

    async def _ask(self, worker: Worker, request: Request, body: bytes) -> aiohttp.ClientResponse:
        url = f"{worker.url}{_path(request)}"
        return await self._session.request(request.method, url, data=body or None, headers=_headers(request))

    async def status_of(self, url: str, path: str, patience: float) -> int | None:
        """What an engine answers to a GET in so many seconds; None if nothing."""
        try:
            async with self._session.get(f"{url}{path}", timeout=aiohttp.ClientTimeout(total=patience)) as answer:
                await answer.read()
                return answer.status
        except BROKEN:
            return None

    async def _text(self, worker: Worker, path: str) -> str | None:
        try:
            async with self._session.get(f"{worker.url}{path}", timeout=_SCRAPE) as answer:
                return (await answer.read()).decode(errors="replace")
        except BROKEN:  # it restarts: its series are absent meanwhile
            return None


def _relay(journey: Journey) -> StreamedResponse:
    """A journey's events as they come; when the client goes away, the engine is told at once."""
    owned = AsyncExitStack()
    owned.callback(journey.close)
    return StreamedResponse(_events(journey), owned, journey.status, _back(journey.headers))


async def _events(journey: Journey) -> AsyncGenerator[bytes]:
    """The stream's body; that no engine was left to end it is its last event."""
    async with aclosing(journey.chunks()) as chunks:
        try:
            async for data in chunks:
                yield data
        except EngineDeadError as error:
            yield b"event: error\ndata: " + problem_of(error).body + b"\n\n"


def _path(request: Request) -> str:
    query = request.scope["query_string"].decode("latin-1")
    return request.url.path + (f"?{query}" if query else "")


def _headers(request: Request) -> dict[str, str]:
    """The client's headers for an engine, with the one id that all legs of a request have."""
    kept = {name: value for name, value in request.headers.items() if name not in _NOT_PASSED}
    given = request.headers.get("x-request-id")
    return kept if given is None else {**kept, "x-request-id": given}


def _back(headers: Mapping[str, str]) -> dict[str, str]:
    """An engine's headers for the client. The front's own middleware says the id."""
    return {name: value for name, value in headers.items() if name.lower() not in _NOT_PASSED}


def _state(pools: Pools) -> dict[str, object]:
    return {
        "prefill": pools.count(Role.PREFILL),
        "decode": pools.count(Role.DECODE),
        "workers": [
            {
                "name": worker.name,
                "role": worker.role.value,
                "up": worker.url is not None,
                "legs": {role.value: worker.legs[role] for role in Role},
            }
            for worker in pools.workers
        ],
    }


def _wanted(raw: bytes, engines: int) -> int:
    """The prefill pool's size that a body asks for. Raises RequestError."""
    try:
        given = from_json(raw)
    except ValueError as error:
        raise RequestError(f"The request body is not valid JSON: {error}.") from error
    sizes = {role: given.get(role.value) for role in Role} if isinstance(given, dict) else {}
    known = {role: size for role, size in sizes.items() if type(size) is int}
    if not known or (len(known) == 2 and sum(known.values()) != engines):
        raise RequestError(f'The body must be {{"prefill": N, "decode": M}} with {engines} engines in all.')
    return known[Role.PREFILL] if Role.PREFILL in known else engines - known[Role.DECODE]


def _json(value: object, status: int = 200) -> Response:
    return Response(json.dumps(value), status, media_type="application/json")
