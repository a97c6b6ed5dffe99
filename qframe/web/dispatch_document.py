"""The part of the OpenAPI document about dispatching: a schema for each allowed class."""

from __future__ import annotations

import re
from typing import Any

from pydantic import PydanticInvalidForJsonSchema

from qframe.exceptions import UnknownJob
from qframe.jobs.definition import JobDefinition
from qframe.web import openapi
from qframe.web.dispatching import DispatchedJob, JobPort

_PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "Why there is no answer (RFC 9457)",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "type": {"type": "string"},
                    "loc": {"type": "array", "items": {"type": ["string", "integer"]}},
                    "msg": {"type": "string"},
                },
                "required": ["type", "loc", "msg"],
            },
        },
    },
    "required": ["type", "title", "status", "detail"],
}
_CODES = {
    400: "the body is no JSON, or the key is none",
    401: "a token is required",
    403: "this token may not, or the class, queue or connection is not allowed",
    408: "the body did not arrive in time",
    413: "the request or the payload is too large",
    422: "the data does not fit the class",
    429: "too many requests, or too many wrong tokens",
    500: "an allowed class is not there",
    503: "the backend does not answer: try again with the same Idempotency-Key",
}


def whole(port: JobPort) -> dict[str, Any]:
    """Returns the document of the API, with the classes that may be dispatched."""
    document = openapi.document()
    try:
        classes = port.classes()
    except UnknownJob:  # `qframe web` refuses to start; in an application the dispatch says it
        classes = []
    if not classes:
        return document
    schemas = dict(document["components"]["schemas"])
    schemas["DispatchProblem"] = _PROBLEM
    schemas["DispatchedJob"] = DispatchedJob.model_json_schema(mode="serialization")
    names = [_request(port, each, schemas) for each in classes]
    references = {name: f"#/components/schemas/{name}" for name in names}
    operation = {
        "summary": "Dispatch a job",
        "operationId": "dispatch",
        "parameters": [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "description": "Another request with the key, for the class, queues nothing",
                "schema": {"type": "string", "pattern": "^[!#-~]{1,255}$"},
            }
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {"oneOf": [{"$ref": r} for r in references.values()]}
                }
            },
        },
        "responses": _responses(),
        "security": [{"token": []}],
    }
    paths = dict(document["paths"])
    paths["/api/v1/jobs"] = {**paths["/api/v1/jobs"], "post": operation}
    components = {**document["components"], "schemas": schemas}
    return {**document, "paths": paths, "components": components}


def _request(port: JobPort, job_class: type[JobDefinition], schemas: dict[str, Any]) -> str:
    """Adds the schemas of a class' fields and of a request. Returns the request's name."""
    fields = re.sub(r"[^A-Za-z0-9._-]", "_", job_class.own_name())
    try:
        schema = job_class.schema_of_fields(f"#/components/schemas/{fields}.{{model}}")
    except PydanticInvalidForJsonSchema:
        schema = {"type": "object", "description": "see the class"}
    for name, inner in schema.pop("$defs", {}).items():
        schemas[f"{fields}.{name}"] = inner
    schemas[fields] = schema
    allowed = port.settings
    properties: dict[str, Any] = {
        "job": {"const": job_class.own_name()},
        "data": {"$ref": f"#/components/schemas/{fields}"},
        "delay": {
            "type": "number",
            "minimum": 0,
            "maximum": allowed.max_delay,
            "description": "Seconds until the job is ready",
        },
    }
    if allowed.queues:
        described = f"Matches one of: {', '.join(allowed.queues)}"
        properties["queue"] = {"type": "string", "description": described}
    if allowed.connections:
        properties["connection"] = {"enum": allowed.connections}
    schemas[f"{fields}.request"] = {
        "type": "object",
        "properties": properties,
        "required": ["job", "data"] if schema.get("required") else ["job"],
        "additionalProperties": False,
    }
    return f"{fields}.request"


def _responses() -> dict[str, Any]:
    done: dict[str, Any] = {
        "description": "the job is queued, or was, with this key",
        "headers": {"Location": {"schema": {"type": "string"}}},
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/DispatchedJob"}}},
    }
    reference = {"$ref": "#/components/schemas/DispatchProblem"}
    problems = {
        str(code): {
            "description": text,
            "content": {"application/problem+json": {"schema": reference}},
        }
        for code, text in _CODES.items()
    }
    return {"201": done, **problems}
