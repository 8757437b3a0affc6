"""The page /docs: the OpenAPI document as plain HTML, without scripts or files from elsewhere."""

import html
import json
from typing import Any

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>pidlease</title><style>
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
pre { background: #8882; padding: .5rem; overflow-x: auto } td { padding: 0 1rem 0 0 }
td { vertical-align: top; white-space: pre-line } summary { cursor: pointer }
</style></head><body><h1>HTTP API of pidlease</h1>
<p>From <a href="openapi.json">openapi.json</a>.</p>
"""


def docs_page(document: dict[str, Any]) -> str:
    """Render an OpenAPI document."""
    parts = [_HEAD]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts.append(_operation(f"{method.upper()} {path}", operation))
    schemas = document["components"]["schemas"]
    parts += ["<h2>Schemas</h2>", *(_json(name, schemas[name]) for name in sorted(schemas))]
    return "\n".join([*parts, "</body></html>"])


def _operation(title: str, operation: dict[str, Any]) -> str:
    parts = [
        f'<h2 id="{_text(operation["operationId"])}">{_text(title)}</h2>',
        f"<p>{_text(operation.get('description', ''))}</p>",
        _table([(f"{e['name']} ({e['in']})", e) for e in operation.get("parameters", ())]),
    ]
    for kind, body in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(_json(f"Body: {kind}", body))
    parts.append(_table(operation["responses"].items()))
    return "\n".join(parts)


def _table(rows: Any) -> str:  # noqa: ANN401 - JSON
    lines = (
        f"<tr><td>{_text(name)}</td><td>{_text(row.get('description', ''))}</td></tr>"
        for name, row in rows
    )
    return f"<table>{''.join(lines)}</table>"


def _json(title: str, content: Any) -> str:  # noqa: ANN401 - JSON
    text = _text(json.dumps(content, indent=2))
    return f"<details><summary>{_text(title)}</summary><pre>{text}</pre></details>"


def _text(text: str) -> str:
    return html.escape(text)
