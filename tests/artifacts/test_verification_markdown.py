"""The Markdown of a verification report: what was found, and nothing that was not."""

import msgspec
import pytest

from cke.artifacts.stages import STAGE_IDS
from cke.artifacts.verdict import Setting, build_report
from cke.artifacts.verification_markdown import NOTES, render_verification
from cke.artifacts.verify import Findings
from tests.artifacts.generations import workflow

replace = msgspec.structs.replace
SETTING = Setting(
    level="demo",
    mode="runtime_differential",
    submode="runtime_regression",
    reference="one",
    candidate="two",
)


class Fixed:
    """An attempt with an id of its own and no stage yet."""

    id = "lisa1:" + "0" * 32
    stages = ()


def rendered(*results, **cut_short):
    return render_verification(build_report(Fixed, SETTING, Findings(*results), **cut_short))


def results():
    found = workflow()[0]
    return [found.calibration, found.tokens, found.reproduction, found.layers, found.stages]


REGRESSION = f"""\
# LIS Verification Report

- Verdict: **REGRESSION** (exit code 4)
- Reason: `pass4.local_digest_mismatch`
- Compared: one (reference), two (candidate)
- Level: demo; mode runtime_differential; submode runtime_regression
- Attempt: `lisa1:{"0" * 32}`
- Next: diagnose layer 2, (post_attention_residual, mlp_norm_output], at step 6, \
as `cke xray` does for a model

## Tokens

- Preflight: comparison_allowed
  - binary_fingerprint_mismatch (informational)
- Status: first_mismatch_found
- First difference: generated token 5 (runtime step 6)
- Reference chose {{one}}, candidate {{two}}
- Reproduction: reproduction_verified

## Layers

- Status: observable_mismatch_found
- Interval: `(layer.1.output, layer.2.output]`

| layer output | digest |
|---|---|
| layer.0.output | equal |
| layer.1.output | equal |
| layer.2.output | differs |

## Stages of layer 2

- Status: observable_intra_layer_mismatch_found
- Interval: `(post_attention_residual, mlp_norm_output]`

| stage | digest |
|---|---|
{{stages}}

## Stages of the attempt

| stage | status |
|---|---|

## Notes

{{notes}}
"""


@pytest.mark.contract("LIS-149", "LIS-126", "LIS-138", "LIS-139")
def test_report_of_a_regression_is_whole():
    tokens = results()[1]
    rows = [
        f"| {name} | {'equal' if at < 12 else 'differs'} |" for at, name in enumerate(STAGE_IDS)
    ]
    assert rendered(*results()) == REGRESSION.format(
        one=tokens.reference_token_id,
        two=tokens.candidate_token_id,
        stages="\n".join(rows),
        notes="\n".join(NOTES),
    )
    assert len(NOTES) == 3


@pytest.mark.contract("LIS-149")
def test_what_was_not_found_has_no_line():
    calibration, tokens, _, layers, stages = results()
    equal = replace(
        tokens,
        status="token_equivalent_on_observed_range",
        generated_index=None,
        runtime_checkpoint_step=None,
    )
    text = rendered(calibration, equal)
    assert "- Status: token_equivalent_on_observed_range" in text
    for absent in ("- Next:", "First difference", "chose", "Reproduction", "## Layers", "of layer"):
        assert absent not in text
    assert "## Tokens" not in rendered()
    bare = {"interval": None, "comparisons": ()}
    text = rendered(calibration, tokens, None, replace(layers, **bare), replace(stages, **bare))
    assert "## Layers" in text
    assert "## Stages of layer 2" in text
    for absent in ("- Interval:", "| layer output |", "| stage | digest |"):
        assert absent not in text


@pytest.mark.contract("LIS-138", "LIS-142")
def test_run_that_ended_chose_nothing_and_unobserved_layers_are_listed():
    calibration, tokens, reproduction, layers, _ = results()
    ended = replace(tokens, candidate_token_id=None)
    names = ("layer.1.output", "layer.2.output")
    wide = replace(layers, interval=replace(layers.interval, unobserved=names))
    text = rendered(calibration, ended, reproduction, wide)
    assert f"- Reference chose {tokens.reference_token_id}, candidate nothing\n" in text
    assert "- Unobserved in between: layer.1.output, layer.2.output\n" in text


@pytest.mark.contract("LIS-54", "LIS-149")
def test_reason_is_a_sentence_without_markup():
    text = rendered(verdict="HARNESS_ERROR", reason="the `disk` is *gone*")
    assert "- Reason: `the ?disk? is ?gone?`\n" in text
