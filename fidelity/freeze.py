"""Freeze receipts: parameters fixed on the analysis partition before qualification is read."""

from datetime import datetime
from typing import Any

from cke.schemas.reading import canonical_sha256

PARTS = ("quantization_parameters", "layer_assignments", "acceptance_thresholds")


def freeze(parameters: dict[str, Any], timestamp: str) -> dict[str, Any]:
    """Return the receipt of the parameters: all three parts of them, hashed."""
    return {
        "timestamp": timestamp,
        "parameters_sha256": canonical_sha256(parameters),
        "parts": {name: name in parameters for name in PARTS},
    }


def receipt_problems(
    receipt: dict[str, Any] | None, parameters: dict[str, Any] | None, run_at: Any
) -> list[str]:
    """Return why a receipt does not precede a qualification run of these parameters.

    `parameters` is None where they are judged elsewhere.
    """
    if not isinstance(receipt, dict):
        return ["qualification needs a freeze receipt, got none"]
    problems = []
    frozen, run = moment(receipt.get("timestamp")), moment(run_at)
    if frozen is None or run is None:
        problems.append("the receipt and the run need times with a zone")
    elif not frozen < run:
        problems.append(f"the receipt is of {receipt['timestamp']}, not before the run of {run_at}")
    parts = receipt.get("parts")
    missing = [name for name in PARTS if not isinstance(parts, dict) or parts.get(name) is not True]
    problems += [f"the frozen parameters lack `{name}`" for name in missing]
    digest = receipt.get("parameters_sha256")
    if not isinstance(digest, str) or len(digest) != 64:
        problems.append("the receipt hashes no parameters")
    elif parameters is not None and canonical_sha256(parameters) != digest:
        problems.append("the parameters are not those that were frozen")
    return problems


def moment(value: Any) -> datetime | None:
    """Return a time with its zone, None for what is not one."""
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo is not None else None
