"""The application of the job service: routes, problems and middleware around one bundle."""

from __future__ import annotations

from fastapi import FastAPI

from api.middleware import BodyLimitMiddleware, LastNetMiddleware, RequestIdMiddleware
from api.web import page

from .feed import DeviceFeed
from .guard import GuardMiddleware
from .hub import EventHub
from .openapi import describe
from .problems import install_problems, problem_of
from .rate import RateLimit
from .routes import actions, events, files, health, keys, leases, machine, plans, results, studies
from .services import JobServices

DESCRIPTION = "Tunes LLM serving for tokens per joule under a latency SLO. Units are SI; unknown values are null."


def create_job_app(services: JobServices) -> FastAPI:
    """An application that answers from ``services`` and owns nothing but the streams to watchers.

    ``app.state.hub.close()`` ends those. Every route but ``/health`` and ``/version`` asks who calls.
    """
    app = FastAPI(
        title="energyopt",
        description=DESCRIPTION,
        version=services.version,
        docs_url=None,  # the stock pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.services = services
    app.state.hub = EventHub(services.tail, max_watchers=services.limits.max_watchers)
    app.state.devices = DeviceFeed(services.devices.look, lambda: app.state.hub.closed)
    install_problems(app)
    # Actions first: "{study_id}" of the others would take ":cancel" for a part of an id.
    for module in (actions, studies, results, events, leases, files, machine, plans, keys, health, page):
        app.include_router(module.router)
    describe(app, services.planner.form, services.plans.form)
    limit = RateLimit(services.clock, rate=services.limits.rate, burst=services.limits.burst)
    # The last one added is the outermost.
    app.add_middleware(BodyLimitMiddleware, limit=services.limits.max_body_bytes, answer=problem_of)
    app.add_middleware(GuardMiddleware, limit=limit)
    app.add_middleware(LastNetMiddleware, answer=problem_of)
    app.add_middleware(RequestIdMiddleware)
    return app
