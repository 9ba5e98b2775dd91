"""Pages on execution artifacts and differential verification, made from the tables of the code."""

from typing import Any, get_args

import msgspec

from cke.artifacts.fingerprints import POLICIES
from cke.artifacts.pass0 import EXTERNAL_BLOCKS, OUTCOMES, REASONS, SUBMODE_EASES
from cke.artifacts.pass1 import DISPOSITIONS as TOKEN_DISPOSITIONS
from cke.artifacts.pass4_reasons import DISPOSITIONS
from cke.artifacts.pass4_reasons import REASONS as STAGE_REASONS
from cke.artifacts.stages import FAMILIES, LOCALISED, STAGES
from cke.artifacts.verdict import EXIT_CODES, INTERRUPTED, STRICT_UNSUPPORTED
from cke.schemas import differential
from cke.schemas.run_report import MAX_PREFIX, ForcedPrefix, PrefixBinding
from tests.artifacts.contract_table import table


def verify_contract_page() -> str:
    """The forced_prefix object, its binding input, and the rules of source binding."""
    lines = [
        "# The forced prefix and its sources",
        "",
        "A run with `--forced-prefix` feeds tokens as if they had been selected. With a run",
        "report, it needs `--forced-prefix-binding-json`: a regular file of at most 16 KiB, opened",
        "without following links, with exactly the keys below and no duplicate. The runner counts",
        "and hashes the prefix itself; the raw token array stands in no report.",
        "",
        "## The object `forced_prefix`",
        "",
        *_fields(ForcedPrefix),
        "",
        "`prefix_end_exclusive`, `target_generated_token_step` and `token_count` are equal,",
        "`runtime_checkpoint_step` is one more, and `context_position` is the prompt's count plus",
        f"the prefix's. At most {MAX_PREFIX} tokens are injected.",
        "",
        "## The binding input",
        "",
        *_fields(PrefixBinding),
        "",
        "## Policies",
        "",
        "| policy | penalty | suppression | sha256 |",
        "|---|---|---|---|",
        *(
            f"| `{item.name}` | {item.penalty} | {'yes' if item.suppression else 'no'} "
            f"| `{item.sha256}` |"
            for item in POLICIES.values()
        ),
        "",
        "## What binds a rerun to its original",
        "",
        "Role by role: the same binary, model, config, input, backend, threads, context and",
        "precision; a new `artifact_set_id`; the policy of the original; and exactly one selected",
        "token, equal to the original's at the boundary. Anything else is refused by Pass 2.",
    ]
    return "\n".join(lines) + "\n"


def differential_page() -> str:
    """The staged contracts of differential verification."""
    lines = [
        "# Differential verification",
        "",
        "`cke verify` runs two runtimes on the same tokens and narrows a difference down: to a",
        "token, to the outputs of layers, to the stages of one layer. Each pass is a function of",
        "`cke.artifacts`; its result is a bounded document of `lis.execution_artifact/v1`.",
        "",
        "Evidence is digests of what both sides captured. Equal digests are no claim that tensors",
        "are equal; a differing one confirms no first divergence and names no cause. Every result",
        "carries these as fields, all of them false:",
        "",
        *(f"- `{name}`" for name in differential.Nonclaims.__struct_fields__),
        "",
        "## Pass 0: may the runs be compared",
        "",
        "| code | domain | severity | note |",
        "|---|---|---|---|",
        *(_reason_row(code) for code in REASONS),
        "",
        "| worst severity | verdict | eligibility | strength limit |",
        "|---|---|---|---|",
        *(f"| {worst} | {' | '.join(outcome)} |" for worst, outcome in OUTCOMES.items()),
        "",
        "## Pass 1: the first differing token",
        "",
        "Generated token N is selected by runtime step N + 1. A shorter run differs at its end.",
        "",
        "| status | Pass 2 |",
        "|---|---|",
        *(f"| `{status}` | {after} |" for status, after in TOKEN_DISPOSITIONS.items()),
        "",
        "## Pass 2: an independent reproduction",
        "",
        "See [the forced prefix and its sources](../lis_verify_contract.md).",
        "",
        *(f"- `{status}`" for status in get_args(differential.ReproductionStatus)),
        "",
        "Tiers: " + ", ".join(f"`{tier}`" for tier in get_args(differential.Tier)) + ".",
        "",
        "## Pass 3: the earliest differing layer output",
        "",
        "Before a summary is read, each trace is bound: the report's SHA-256 to Pass 2, the",
        "trace's `artifact_set_id` and manifest to the report, the step, then the trace's SHA-256.",
        "Coverage is what both sides captured, in the order of execution; what one side alone has",
        "is listed and is no difference. The result is an interval `(last equal, first different]`",
        "or `[entry, first different]`, with the unobserved layers in between.",
        "",
        *(f"- `{status}`" for status in get_args(differential.LayerStatus)),
        "",
        "Families that are localised: "
        + ", ".join(f"`{name}`" for name in sorted(LOCALISED))
        + ". Circuits have these families: "
        + ", ".join(f"`{circuit}` is `{family}`" for circuit, family in FAMILIES.items())
        + ", any other is `<circuit>_decoder`.",
        "",
        "## Pass 4: the earliest differing stage",
        "",
        "Pass 3A finds the layer and is provenance only. Four fresh runs are taken with the stages",
        "of that layer, Passes 0 to 3 are made again from them, and Pass 3B is the authority. Its",
        "layer output is the closing boundary, which no stage repeats.",
        "",
        "| order | stage | name |",
        "|---|---|---|",
        *(f"| {n} | `{stage.id}` | {stage.public_name} |" for n, stage in enumerate(STAGES)),
        "",
        "| reason | status | disposition |",
        "|---|---|---|",
        *(
            f"| `{code}` | {f'`{status}`' if status else 'secondary only'} "
            f"| {DISPOSITIONS[status] if status else ''} |"
            for code, status in STAGE_REASONS.items()
        ),
        "",
        "## Verdicts of `cke verify`",
        "",
        "| verdict | exit code |",
        "|---|---|",
        *(f"| {name} | {code} |" for name, code in EXIT_CODES.items()),
        f"| UNSUPPORTED with `--require-supported` | {STRICT_UNSUPPORTED} |",
        *(f"| {name} | {code} |" for name, code in INTERRUPTED.items()),
        "",
        "A token mismatch stays a regression, whatever the localisation finds after it.",
        "",
        "## Lines and tests",
        "",
        "The lines stand in [their contract page](contracts/execution-artifacts.md).",
        "",
        table(),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _reason_row(code: str) -> str:
    domain, severity = REASONS[code]
    notes = []
    if code in EXTERNAL_BLOCKS:
        notes.append("blocks in `external_semantic`")
    if code in SUBMODE_EASES:
        notes.append(f"informational in `{SUBMODE_EASES[code]}`")
    return f"| `{code}` | {domain} | {severity} | {'; '.join(notes)} |"


def _fields(kind: type[msgspec.Struct]) -> list[str]:
    rows = ["| field | value |", "|---|---|"]
    schema: Any = msgspec.json.schema(kind)["$defs"][kind.__name__]
    return rows + [f"| `{name}` | {_value(item)} |" for name, item in schema["properties"].items()]


def _value(item: dict[str, Any]) -> str:
    if "enum" in item:
        return " or ".join(f"`{str(value).lower()}`" for value in item["enum"])
    if "pattern" in item:
        return "64 lower-case hex digits"
    low, high = item.get("minimum"), item.get("maximum")
    if low is not None and low == high:
        return f"`{low}`"
    return f"an integer from {low}" + (f" to {high}" if high is not None else "")
