"""Encodes a dashboard as Grafana's JSON, and places its panels."""

import json
from collections.abc import Iterator
from typing import Any, Final

from deploy.grafana.panels import Board, Limits, Panel, Variable

_COLUMNS: Final = 24
_HEIGHTS: Final = {"stat": 4, "timeseries": 8, "table": 8}
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_SCHEMA: Final = 39

Json = dict[str, Any]


def to_json(board: Board) -> str:
    """Return the JSON text of a dashboard."""
    return json.dumps(_dashboard(board), indent=1, ensure_ascii=False) + "\n"


def _dashboard(board: Board) -> Json:
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.text,
        "tags": ["pidlease"],
        "schemaVersion": _SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [_dashboard_list()],
        "templating": {"list": [_datasource(), *map(_variable, board.variables)]},
        "annotations": {"list": []},
        "panels": list(_panels(board)),
    }


def _dashboard_list() -> Json:
    """Return the menu of the other dashboards, which keeps the time range."""
    return {
        "type": "dashboards", "tags": ["pidlease"], "title": "pidlease", "asDropdown": True,
        "keepTime": True, "includeVars": True, "targetBlank": False, "icon": "external link",
    }  # fmt: skip


def _datasource() -> Json:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource",
            "query": "prometheus", "hide": 0, "refresh": 1}  # fmt: skip


def _variable(variable: Variable) -> Json:
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": variable.query,
        "query": {"query": variable.query, "refId": variable.name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        # Not a list of the present values: it grows long, and lacks those that are added later.
        "allValue": None if variable.narrow else ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


# ---------------------------------------------------------------------- panels


def _panels(board: Board) -> Iterator[Json]:
    """Yield the rows' titles, each followed by its panels, from left to right and downwards."""
    number, y = 1, 0
    for row in board.rows:
        place = {"x": 0, "y": y, "w": _COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False,
               "gridPos": place, "panels": []}  # fmt: skip
        number, y, x, height = number + 1, y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > _COLUMNS:
                x, y, height = 0, y + height, 0
            tall = _HEIGHTS[panel.kind]
            yield _panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": tall})
            number, x, height = number + 1, x + panel.width, max(height, tall)
        y += height


def _panel(panel: Panel, number: int, place: Json) -> Json:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _OPTIONS[panel.kind],
        "targets": list(_targets(panel)),
        **({"transformations": _TABLE_COLUMNS} if panel.kind == "table" else {}),
    }


def _targets(panel: Panel) -> Iterator[Json]:
    for place, query in enumerate(panel.queries):
        now = panel.kind != "timeseries"
        yield {
            "refId": chr(ord("A") + place),
            "datasource": _SOURCE,
            "expr": query.expr,
            "legendFormat": query.legend,
            "instant": now,
            "range": not now,
            **({"format": "table"} if panel.kind == "table" else {}),
        }


def _field(panel: Panel) -> Json:
    found: Json = {"unit": panel.unit, "color": {"mode": "palette-classic"}, "mappings": []}
    if panel.kind == "timeseries":
        found["custom"] = {"fillOpacity": 8, "lineWidth": 1, "showPoints": "never",
                           "axisSoftMin": 0}  # fmt: skip
    if panel.kind == "stat":
        found["color"] = {"mode": "thresholds"}
        found["thresholds"] = {"mode": "absolute", "steps": _steps(panel.limits)}
    if panel.words:
        options = {value: {"text": text, "index": i}
                   for i, (value, text) in enumerate(panel.words.items())}  # fmt: skip
        found["mappings"] = [{"type": "value", "options": options}]
    return found


def _steps(limits: Limits | None) -> list[Json]:
    """Return the colours, each with the value that it begins at."""
    if limits is None:
        return [{"color": "green", "value": None}]
    between = [] if limits.orange == limits.red else ["orange"]
    colours, bounds = ["green", *between, "red"], [*dict.fromkeys((limits.orange, limits.red))]
    if limits.falling:
        colours.reverse()
        bounds.reverse()
    return [{"color": c, "value": b} for c, b in zip(colours, [None, *bounds], strict=True)]


_OPTIONS: Final[dict[str, Json]] = {
    "timeseries": {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "background", "graphMode": "none", "textMode": "auto", "orientation": "auto",
    },
    "table": {"showHeader": True, "sortBy": [{"displayName": "Value", "desc": True}]},
}  # fmt: skip
_TABLE_COLUMNS: Final = [{"id": "organize", "options": {"excludeByName": {"Time": True}}}]
