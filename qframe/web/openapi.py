"""The OpenAPI document of the JSON API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from qframe.operations.actions.table import ACTIONS
from qframe.operations.actions.wanted import Done, Wanted
from qframe.web import api

_REFUSALS = {
    "401": {"description": "nobody is let in without password or token"},
    "403": {"description": "this is not allowed"},
    "429": {"description": "too many wrong passwords or tokens"},
}


class Problem(BaseModel):
    """Why there is no answer."""

    error: str


@cache
def document() -> dict[str, Any]:
    models: set[type[BaseModel]] = {each.gives for each in api.ENDPOINTS.values()}
    models |= {Wanted, Done, Problem}
    mode: Literal["serialization"] = "serialization"
    in_order = sorted(models, key=lambda each: each.__name__)
    _, schemas = models_json_schema(
        [(each, mode) for each in in_order],
        ref_template="#/components/schemas/{model}",
    )
    paths: dict[str, Any] = {
        f"/api{path}": {"get": _described(path, each)} for path, each in api.ENDPOINTS.items()
    }
    paths["/api/v1/actions/{action}"] = {"post": _action()}
    paths["/api/v1/doctor"] = {"post": _doctor()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "qframe", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {"type": "http", "scheme": "basic"},
            },
        },
        "security": [{"token": []}, {"password": []}],
    }


def _described(path: str, endpoint: api.Endpoint[Any]) -> dict[str, Any]:
    schema = endpoint.query.model_json_schema()
    in_path = set(re.findall(r"\{(\w+)\}", path))
    parameters = [
        {
            "name": name,
            "in": "path" if name in in_path else "query",
            "required": name in in_path,
            "schema": {key: value for key, value in kind.items() if key != "title"},
        }
        for name, kind in schema.get("properties", {}).items()
    ]
    return {
        "summary": endpoint.says,
        "operationId": re.sub(r"\W+", "_", path).strip("_"),
        "parameters": parameters,
        "responses": _responses(endpoint.gives),
    }


def _action() -> dict[str, Any]:
    return {
        "summary": "Do something; those that act on a filter go on in the background",
        "operationId": "act",
        "parameters": [
            {
                "name": "action",
                "in": "path",
                "required": True,
                "schema": {"type": "string", "enum": sorted(ACTIONS)},
            }
        ],
        "requestBody": {"required": True, "content": _content(Wanted)},
        "responses": _responses(Done),
    }


def _doctor() -> dict[str, Any]:
    archive = {"type": "string", "format": "binary"}
    return {
        "summary": "Get an archive for a bug report, without secrets and payloads",
        "operationId": "doctor",
        "responses": {
            **_REFUSALS,
            "200": {"description": "it", "content": {"application/zip": {"schema": archive}}},
        },
    }


def _responses(gives: type[BaseModel]) -> dict[str, Any]:
    return {
        "200": _answer("it", gives),
        **_REFUSALS,
        "404": _answer("there is none", Problem),
        "422": _answer("what was asked cannot be", Problem),
        "503": _answer("a backend does not answer", Problem),
    }


def _answer(text: str, model: type[BaseModel]) -> dict[str, Any]:
    return {"description": text, "content": _content(model)}


def _content(model: type[BaseModel]) -> Mapping[str, Any]:
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"application/json": {"schema": reference}}
