"""Routes of the page: the shell, its files, and the session that holds a key for the browser."""

from __future__ import annotations

import contextlib
import hashlib
from importlib import resources

from fastapi import APIRouter
from jinja2 import Environment, select_autoescape
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from api.errors import UnauthorizedError
from api.jobs.bodies import StrictBody, checked, read_object
from api.jobs.documents import answer
from api.jobs.door import COOKIE, ServicesDep, identify, refuse_foreign_site
from energyopt.core.errors import NotFoundError
from energyopt.core.jobs import Scope

router = APIRouter(include_in_schema=False)

FILES = {
    "app.css": "text/css",
    "app.js": "text/javascript",
    "devices.js": "text/javascript",
    "lib.js": "text/javascript",
    "plan.js": "text/javascript",
    "studies.js": "text/javascript",
    "study.js": "text/javascript",
    "uplot.css": "text/css",
    "uplot.js": "text/javascript",
    "uplot.LICENSE.txt": "text/plain",
}
VENDORED = {
    "uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
"""SHA-256 of the files of uPlot 1.6.32 (MIT), as its package has them."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing is loaded from anywhere else, and nothing that stands in the page itself is run."""
_SESSION_SECONDS = 8 * 3600


class SessionBody(StrictBody):
    """The key that a person signs in with."""

    key: str


@router.get("/")
async def page(request: Request, services: ServicesDep) -> Response:
    """The page. Without a session it asks for a key and shows nothing else."""
    scopes: list[str] = []
    with contextlib.suppress(UnauthorizedError):  # the page says so, with a form
        scopes = sorted((await identify(request, services)).scopes)
    shell = Environment(autoescape=select_autoescape(default=True)).from_string(_read("page.html.jinja").decode())
    tuning = Scope.TUNE.value in scopes
    session = bool(scopes) and COOKIE in request.cookies
    html = shell.render(version=services.version, signed_in=bool(scopes), tuning=tuning, session=session)
    headers = {"content-security-policy": POLICY, "cache-control": "no-store"}
    return Response(html, media_type="text/html", headers=headers)


@router.get("/static/{name}")
async def static(name: str, request: Request) -> Response:
    """A file of the page."""
    if name not in FILES:
        raise NotFoundError(f"There is no file {name[:60]!r}.")
    content = _read(f"static/{name}")
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"etag": tag})
    return Response(content, media_type=FILES[name], headers={"etag": tag, "cache-control": "no-cache"})


@router.post("/session")
async def sign_in(request: Request, services: ServicesDep) -> Response:
    """Keep a key in a cookie that scripts cannot read and other sites cannot send."""
    refuse_foreign_site(request)
    body = checked(await read_object(request), SessionBody)
    if await run_in_threadpool(services.keys.find, body.key) is None:
        raise UnauthorizedError("The API key is not correct.")
    reply = answer({"signed_in": True})
    secure = request.url.scheme == "https"
    reply.set_cookie(COOKIE, body.key, max_age=_SESSION_SECONDS, httponly=True, samesite="strict", secure=secure)
    return reply


@router.delete("/session")
async def sign_out(request: Request) -> Response:
    """Forget it."""
    refuse_foreign_site(request)
    reply = answer({"signed_in": False})
    reply.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return reply


def _read(name: str) -> bytes:
    place = resources.files("api.web").joinpath(name)
    return place.read_bytes()
