"""The HTTP application: routes, errors and middleware around one bundle of services."""

from __future__ import annotations

from fastapi import Depends, FastAPI

from .auth import require_key, require_operator
from .errors import install_handlers
from .middleware import BodyLimitMiddleware, LastNetMiddleware, RequestIdMiddleware
from .routes import attribution, cache, chat, completions, health, kv_events, metrics, models, tokens
from .services import Services


def create_app(services: Services) -> FastAPI:
    """An application that answers from ``services``. It starts and owns nothing: whoever made the bundle closes it.

    ``/v1`` asks for the API key, if there is one, ``/reset_prefix_cache`` for the operator's; ``/health``,
    ``/metrics`` and ``/version`` never do, because probes and scrapers carry none.
    """
    # The stock pages for /docs load scripts from elsewhere; /openapi.json says the same without a network.
    app = FastAPI(title="energyopt", version=services.version, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.services = services
    install_handlers(app)
    for module in (attribution, chat, completions, models, tokens):
        app.include_router(module.router, dependencies=[Depends(require_key)])
    for module in (cache, kv_events):
        app.include_router(module.router, dependencies=[Depends(require_operator)])
    for module in (health, metrics):
        app.include_router(module.router)
    # The last one added is the outermost.
    app.add_middleware(BodyLimitMiddleware, limit=services.limits.max_body_bytes)
    app.add_middleware(LastNetMiddleware)
    app.add_middleware(RequestIdMiddleware)
    return app
