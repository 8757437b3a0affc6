"""What the OpenAPI description says of a request that is not read by FastAPI."""

from collections.abc import Mapping
from typing import Any, Final

from pidlease.http_api.record_messages import NUMBER_MAX, AppendRequest
from proxy.http.request_producer import PRODUCER_EPOCH, PRODUCER_ID, PRODUCER_SEQ

_NUMBER: Final = {"type": "integer", "minimum": 0, "maximum": NUMBER_MAX}


def append_description() -> dict[str, Any]:
    """The headers and the body of an append."""
    schema = AppendRequest.model_json_schema()
    kinds = schema.pop("$defs", {})
    return {
        "parameters": [
            _header(PRODUCER_ID, {"type": "string"}, "1 to 256 bytes of UTF-8, all visible"),
            _header(PRODUCER_EPOCH, _NUMBER, "higher each time the producer begins anew"),
            _header(PRODUCER_SEQ, _NUMBER, "counts requests, from 0 in each epoch"),
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": _inlined(schema, kinds)},
                "application/octet-stream": {
                    "schema": {"type": "string", "format": "binary"},
                },
            },
        },
    }


def _header(name: str, schema: Mapping[str, Any], text: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "schema": schema, "description": text}


def _inlined(schema: Any, kinds: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """A JSON schema whose definitions stand where they are used."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _inlined(kinds[schema["$ref"].rpartition("/")[2]], kinds)
        return {key: _inlined(value, kinds) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_inlined(each, kinds) for each in schema]
    return schema
