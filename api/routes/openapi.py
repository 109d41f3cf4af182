"""Describing bodies that are parsed by hand, so that ``/openapi.json`` shows them all the same."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def body_of(schema: type[BaseModel]) -> dict[str, Any]:
    """The ``requestBody`` of an operation that reads ``schema``."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema.model_json_schema()}}}}
