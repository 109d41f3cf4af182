"""Describing bodies that are parsed by hand, so that ``/openapi.json`` shows them all the same."""

from __future__ import annotations

from typing import Any

from ..schemas import GenerationBody


def body_of(schema: type[GenerationBody]) -> dict[str, Any]:
    """The ``requestBody`` of an operation that reads ``schema``."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema.model_json_schema()}}}}
