"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from fastapi import APIRouter

from ..call import served_model
from ..deps import ServicesDep
from ..services import Services

router = APIRouter()


@router.get("/v1/models")
async def models(services: ServicesDep) -> dict[str, object]:
    """Every name the model is served under."""
    return {"object": "list", "data": [_card(services, name) for name in services.model_names]}


@router.get("/v1/models/{model_id:path}")
async def model(model_id: str, services: ServicesDep) -> dict[str, object]:
    """One of them; 404 for any other name."""
    return _card(services, served_model(services, model_id))


def _card(services: Services, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": services.created,
        "owned_by": "energyopt",
        "root": services.model_names[0],
        "max_model_len": services.max_model_len,
    }
