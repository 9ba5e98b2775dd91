"""A diagnosis for Google's Model Explorer: the graphs that it loads, and the errors as node data.

`graphs` is a JSON list of graphs, one for each phase: a node has the colour of its error, and the
border of a group is the worst colour in it. `node_data` is the file of per-node values that is
loaded over them. Both are made of the report.
"""

import re
from itertools import accumulate
from typing import Any

from cke.schemas.diagnosis import CircuitRow, Diagnosis
from cke.xray.diff import OVER as ROWS_OVER

FINDING, OVER, WITHIN, EXACT, UNSEEN = "#a40e26", "#ff9b8a", "#fff3c4", "#b7e4c0", "#d0d7de"
SEVERITY = (UNSEEN, EXACT, WITHIN, OVER, FINDING)
WORST = (*ROWS_OVER, "layout")


def graphs(report: Diagnosis) -> list[dict[str, Any]]:
    """Return the graphs of a report: a node for every op, an edge for every value that it reads."""
    return [
        {
            "id": phase,
            "nodes": [_node(report, place, row) for place, row in rows],
            "groupNodeAttributes": {"": _about(report)},
            "groupNodeConfigs": _groups(report, [row for _, row in rows]),
        }
        for phase, rows in _phases(report).items()
    ]


def node_data(report: Diagnosis) -> dict[str, Any]:
    """Return the errors of every compared op by graph and node, each with its colour."""
    return {
        phase: {
            "results": {
                _id(row): {"value": row.rmse, "bgColor": _colour(report, row)}
                for _, row in rows
                if row.rmse is not None
            }
        }
        for phase, rows in _phases(report).items()
    }


def _phases(report: Diagnosis) -> dict[str, list[tuple[int, CircuitRow]]]:
    found: dict[str, list[tuple[int, CircuitRow]]] = {}
    for place, row in enumerate(report.circuit):
        found.setdefault(row.phase, []).append((place, row))
    return found


def _id(row: CircuitRow) -> str:
    return f"{row.step}/{row.op}"


def _namespace(row: CircuitRow) -> list[str]:
    return [row.step, *row.op.split(".")[:-1]]


def _groups(report: Diagnosis, rows: list[CircuitRow]) -> list[dict[str, str]]:
    worst: dict[str, str] = {}
    for row in rows:
        for group in accumulate(_namespace(row), "{}/{}".format):
            worst[group] = max(worst.get(group, UNSEEN), _colour(report, row), key=SEVERITY.index)
    return [
        {
            "namespaceRegex": f"^{re.escape(group)}$",
            "borderColor": colour,
            **({"textColor": FINDING} if colour == FINDING else {}),
        }
        for group, colour in worst.items()
    ]


def _node(report: Diagnosis, place: int, row: CircuitRow) -> dict[str, Any]:
    name = row.op.rpartition(".")[2]
    sources = [report.circuit[index] for index in row.reads]
    return {
        "id": _id(row),
        "label": row.operator,
        "namespace": "/".join(_namespace(row)),
        "attrs": [{"key": key, "value": value} for key, value in _facts(report, row, name)],
        "incomingEdges": [
            {
                "sourceNodeId": _id(source),
                "sourceNodeOutputId": "0",
                "targetNodeInputId": str(number),
            }
            for number, source in enumerate(sources)
        ],
        "style": {"backgroundColor": _colour(report, row)},
    }


def _facts(report: Diagnosis, row: CircuitRow, name: str) -> list[tuple[str, str]]:
    facts: list[tuple[str, Any]] = [
        ("op", name),
        ("kernel", row.kernel_id),
        ("required contract", row.required_contract_id),
        ("resolved contract", row.resolved_contract_id),
        ("checkpoints", ", ".join(report.points[stop].checkpoint_id for stop in row.stops)),
        ("max_abs", row.max_abs),
        ("rmse", row.rmse),
        ("exact_ratio", row.exact_ratio),
    ]
    found = report.first_divergence
    if found is not None and _is_finding(report, row):
        facts += [
            ("first divergence", found.failure_class or "open"),
            ("owner", found.fix_owner or "open"),
        ]
    return [(key, "not compared" if value in (None, "") else str(value)) for key, value in facts]


def _about(report: Diagnosis) -> dict[str, str]:
    return {
        "banner": report.banner,
        "verdict": report.verdict or "none",
        "oracle": str(report.oracle.get("producer")),
        "again": report.reproduce,
    }


def _is_finding(report: Diagnosis, row: CircuitRow) -> bool:
    found = report.first_divergence
    if found is None or found.op != row.op or found.layer != row.layer:
        return False
    return found.phase in (None, row.phase)


def _colour(report: Diagnosis, row: CircuitRow) -> str:
    if _is_finding(report, row):
        return FINDING
    states = {report.points[stop].status for stop in row.stops}
    if not states:
        return UNSEEN
    if states & set(WORST):
        return OVER
    return EXACT if states == {"exact"} else WITHIN
