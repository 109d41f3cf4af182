"""What ``/openapi.json`` says about bodies that are read by hand, with examples, and about problems."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from energyopt.core.study import StudySpec

from .bodies import (
    BeatBody,
    CapBody,
    CompleteBody,
    FailBody,
    FaultBody,
    KeyBody,
    LeaseBody,
    StudyPatch,
    TrialBody,
)

_REF = "#/components/schemas/{model}"
_PROBLEM: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["detail"],
                "properties": {
                    "pointer": {"type": "string"},
                    "parameter": {"type": "string"},
                    "detail": {"type": "string"},
                },
            },
        },
    },
}


_BODIES: tuple[type[BaseModel], ...] = (
    *(StudySpec, StudyPatch, TrialBody, KeyBody, CapBody),
    *(LeaseBody, BeatBody, CompleteBody, FailBody, FaultBody),
)
"""Models of the bodies that every service has."""


def _body(*schemas: str, examples: dict[str, object]) -> dict[str, Any]:
    refs = [{"$ref": _REF.format(model=name)} for name in schemas]
    shown = {name: {"value": value} for name, value in examples.items()}
    schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "examples": shown}}}}


CREATE = _body(
    "TuneForm",
    "StudySpec",
    examples={
        "model and SLO": {
            "model": "smollm2-135m",
            "slos": ["ttft:p90<500ms", "itl:p99<100ms"],
            "quick": True,
            "labels": {"team": "search"},
        }
    },
)
PATCH = _body("StudyPatch", examples={"more trials": {"budget": {"trials": 48}, "labels": {"team": "search"}}})
KEY = _body("KeyBody", examples={"a key for CI": {"name": "ci", "scopes": ["tune"], "tenant": "search"}})
CAP = _body("CapBody", examples={"an hour at 300 W": {"devices": [], "cap": 300, "ttl": 3600}})
_WORKER = {"id": "gpu-7:4711", "host": "gpu-7", "hardware": "8 x H200", "devices": ["GPU-a1"], "kinds": ["embedded"]}
LEASE = _body("LeaseBody", examples={"a worker that waits": {"worker": _WORKER, "wait": 20}})
BEAT = _body("BeatBody", examples={"half of the window": {"stage": "measuring", "fraction": 0.5}})
_RUN = {"window": 30, "requests": 40, "failed_requests": 0, "prompt_tokens": 24000, "cached_tokens": 0}
_METERED = {"output_tokens": 640, "latencies": {}, "verdicts": [], "power_valid": False, "power_reasons": ["no meter"]}
_POINT = {"decode.engine.max_num_seqs": 32}
ENQUEUE = _body(
    "TrialBody",
    examples={
        "a point": {"params": _POINT},
        "measured elsewhere": {"params": _POINT, "result": {**_RUN, **_METERED}},
        "failed elsewhere": {"params": _POINT, "outcome": "oom", "error": "It needs 90 GB, there are 72 GB."},
    },
)
COMPLETE = _body("CompleteBody", examples={"a run without a meter": {"result": {**_RUN, **_METERED}}})
FAIL = _body("FailBody", examples={"out of memory": {"outcome": "oom", "error": "It needs 90 GB, there are 72 GB."}})
FAULT = _body("FaultBody", examples={"a full disk": {"reason": "No space is left on the device."}})
PLAN = _body(
    "PlanForm",
    examples={
        "eight H100": {
            "model": "llama-3.1-70b",
            "gpus": ["h100"],
            "devices": 8,
            "prompt": 2000,
            "output": 300,
            "slos": ["ttft:p90<1s", "tpot:p90<50ms"],
        }
    },
)


def describe(app: FastAPI, tune: type[BaseModel], plan: type[BaseModel]) -> None:
    """Let ``app`` describe itself with the models of bodies, and problems as the answer to whatever goes wrong."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(
                app, {"TuneForm": _labelled(tune), "PlanForm": plan.model_json_schema(ref_template=_REF)}
            )
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI documents this assignment


def _document(app: FastAPI, forms: dict[str, dict[str, Any]]) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas: dict[str, Any] = document.setdefault("components", {}).setdefault("schemas", {})
    for name, schema in forms.items():
        schemas |= schema.pop("$defs", {})
        schemas[name] = schema
    for model in _BODIES:
        schema = model.model_json_schema(ref_template=_REF)
        schemas |= schema.pop("$defs", {})
        schemas[model.__name__] = _with_labels(schema) if model is StudySpec else schema
    schemas["Problem"] = _PROBLEM
    problem = {"application/problem+json": {"schema": {"$ref": _REF.format(model="Problem")}}}
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = {"description": "A problem (RFC 9457).", "content": problem}
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemes = document["components"].setdefault("securitySchemes", {})
    schemes["key"] = {"type": "http", "scheme": "bearer"}
    document["security"] = [{}, {"key": []}]
    return document


def _labelled(form: type[BaseModel]) -> dict[str, Any]:
    return _with_labels(form.model_json_schema(ref_template=_REF))


def _with_labels(schema: dict[str, Any]) -> dict[str, Any]:
    labels = {"type": "object", "additionalProperties": {"type": "string", "maxLength": 120}, "maxProperties": 32}
    return {**schema, "properties": {**schema["properties"], "labels": labels}}
