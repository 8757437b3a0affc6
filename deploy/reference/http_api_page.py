"""docs/reference/http-api.md: every route of the HTTP port, from its OpenAPI document."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from deploy.reference.markdown_tables import NOTE, cell, code, sentence, table
from pidlease.http_api.problems import Problem
from proxy.http.http_listener import add_http_api
from proxy.ops.ops_api import ops_app

_INTRODUCTION: Final = """\
The routes of the HTTP port (`--http-listen`), made from its OpenAPI document. A running server has the document at
`/openapi.json`, and a page for browsers at `/docs`. [HTTP](../produce/http.md) explains how to produce and read.
"""
_ERRORS: Final = """\
Every error is a problem document (RFC 9457) of type `application/problem+json`. Codes are stable: compare `code`, not
the texts. Each code has one status. A response with status 503 has the header `Retry-After`. `/readyz` and `/v1/status`
return 503 with a status, which is no error.
"""
_SCHEMAS: Final = "#/components/schemas/"
_Json = dict[str, Any]


def http_api_page() -> str:
    """Return the page."""
    document = openapi()
    parts = [f"# HTTP API\n\n{NOTE}\n\n{_INTRODUCTION}"]
    operations = [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    parts.append(
        table(
            ("route", "what it does"),
            (
                (f"[{route}](#{_anchor(route)})", _first(operation))
                for route, operation in operations
            ),
        )
    )
    parts += [_operation(route, operation, document) for route, operation in operations]
    parts.append(_errors())
    parts.append("## Schemas\n")
    schemas: _Json = document["components"]["schemas"] | dict(_inline(document))
    used = {name for _, operation in operations for name in _schemas_in(operation)}
    for _ in schemas:  # those that are part of others
        used |= {name for each in used for name in _schemas_in(schemas[each])}
    parts += [_schema(name, schemas[name]) for name in sorted(used)]
    return "\n".join(parts)


def openapi() -> _Json:
    """Return the OpenAPI document of a server."""

    async def scrape() -> bytes:
        return b""

    app = ops_app(lambda: None, 0, scrape, lambda: "")
    add_http_api(app, lambda: None, lambda: None)
    return app.openapi()


def _first(operation: _Json) -> str:
    return cell(operation.get("description", "").partition("\n\n")[0])


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _operation(route: str, operation: _Json, document: _Json) -> str:
    parts = [f"## {route}\n", f"{_paragraphs(operation.get('description', ''))}\n"]
    rows = [
        (code(each["name"]), each["in"], _type(each["schema"]),
         "required" if each.get("required") else _default(each["schema"]),
         cell(each.get("description", "")))
        for each in operation.get("parameters", ())
    ]  # fmt: skip
    parts.append(table(("parameter", "in", "values", "default", "meaning"), rows))
    contents = operation.get("requestBody", {}).get("content", {})
    for kind, body in contents.items():
        parts.append(f"Body, `{kind}`: {_type(body['schema'])}.\n")
        parts += _examples(body, document)
    parts.append(table(("status", "response"), _responses(operation["responses"])))
    return "\n".join(part for part in parts if part)


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(each.split()) for each in text.split("\n\n"))


def _examples(body: _Json, document: _Json) -> Iterator[str]:
    schema = body["schema"]
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].removeprefix(_SCHEMAS)]
    values = [body["example"]] if "example" in body else schema.get("examples", [])
    for value in values:
        if isinstance(value, str):
            yield f"```text\n{value.rstrip()}\n```\n"
        else:
            yield f"```json\n{json.dumps(value, indent=2)}\n```\n"


def _responses(responses: _Json) -> Iterator[tuple[str, str]]:
    for status, response in sorted(responses.items()):
        codes = re.findall(r"- `(\w+)`", response["description"])
        if codes:
            yield status, ", ".join(f"[`{each}`](#errors)" for each in codes)
            continue
        bodies = [
            f"{_type(body['schema'])}" if kind == "application/json" else code(kind)
            for kind, body in response.get("content", {}).items()
        ]
        text = "" if response["description"] == "Successful Response" else response["description"]
        yield status, cell(" ".join([*filter(None, [text]), *bodies])) or "no body"


def _errors() -> str:
    rows = [(code(each.code), each.status, cell(sentence(each.title))) for each in Problem]
    return f"## Errors\n\n{_ERRORS}\n{table(('code', 'status', 'meaning'), rows)}"


def _schema(name: str, schema: _Json) -> str:
    text = _paragraphs(schema.get("description", "").partition("\n\nAttributes:")[0])
    needed = schema.get("required", ())
    rows = [
        (code(field), _type(each), "required" if field in needed else _default(each),
         cell(each.get("description", "")))
        for field, each in schema.get("properties", {}).items()
    ]  # fmt: skip
    listed = table(("field", "values", "default", "meaning"), rows)
    return "\n".join(filter(None, [f"### {name}\n", f"{text}\n" if text else "", listed]))


def _default(schema: _Json) -> str:
    return code(json.dumps(schema["default"])) if "default" in schema else ""


def _type(schema: _Json) -> str:
    """Return the values that a schema allows, in words."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_SCHEMAS)
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_type, schema["anyOf"])))
    if "enum" in schema:
        return ", ".join(code(str(each)) for each in schema["enum"])
    if "const" in schema:
        return code(str(schema["const"]))
    kind = schema.get("type", "any")
    if kind == "array":
        return f"array of {_type(schema.get('items', {}))}" + _bounds(schema, "Items")
    if kind == "object":
        return _object(schema)
    return (
        "text" + _bounds(schema, "Length") if kind == "string" else kind + _bounds(schema, "imum")
    )


def _object(schema: _Json) -> str:
    if "base64" in schema.get("properties", {}):
        return code('{"base64": "..."}')
    if _is_inline(schema):
        return f"[{schema['title']}](#{schema['title'].lower()})"
    values = schema.get("additionalProperties")
    return f"object of {_type(values)}" if isinstance(values, dict) else "object"


def _bounds(schema: _Json, suffix: str) -> str:
    low, high = schema.get(f"min{suffix}"), schema.get(f"max{suffix}")
    if low is not None and high is not None:
        return f", {int(low):,} to {int(high):,}"
    if low is not None:
        return f", from {int(low):,}"
    return "" if high is None else f", up to {int(high):,}"


def _schemas_in(value: object) -> Iterator[str]:
    """Find the names of the schemas that a part of the document refers to."""
    if isinstance(value, dict):
        reference = value.get("$ref")
        if isinstance(reference, str):
            yield reference.removeprefix(_SCHEMAS)
        if _is_inline(value):
            yield value["title"]
        for each in value.values():
            yield from _schemas_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from _schemas_in(each)


def _inline(value: object) -> Iterator[tuple[str, _Json]]:
    """Find the schemas that stand where they are used, by title."""
    if isinstance(value, dict):
        if _is_inline(value):
            yield value["title"], value
        for each in value.values():
            yield from _inline(each)
    elif isinstance(value, list):
        for each in value:
            yield from _inline(each)


def _is_inline(schema: _Json) -> bool:
    return schema.get("type") == "object" and "title" in schema and "properties" in schema
