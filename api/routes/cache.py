"""``POST /reset_prefix_cache``: for benchmarks that must begin cold, and for whoever changed what prompts mean."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ..deps import ServicesDep

router = APIRouter()


@router.post("/reset_prefix_cache")
async def reset_prefix_cache(
    services: ServicesDep,
    tier: Annotated[str | None, Query(description="device, host, disk or shared; default: every tier.")] = None,
) -> dict[str, object]:
    """Forget cached prefixes; running requests keep theirs. Asks for the operator's key, if there is one.

    The answer says how many blocks were forgotten. 400 for a tier that this engine lacks.
    """
    forgotten = await services.engine.reset_prefix_cache(tier)
    return {"tier": tier or "all", "blocks_forgotten": forgotten}
