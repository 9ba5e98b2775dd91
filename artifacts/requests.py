"""What is refused before inference, and why; and the binding of a forced prefix."""

from cke.artifacts.check_report import ELEMENT_SIZES
from cke.artifacts.engine import Facts, RunRequest
from cke.artifacts.fingerprints import ids_sha
from cke.artifacts.refusal import refuse_request, refuse_unsupported
from cke.artifacts.stages import LOCALISED
from cke.schemas.run_report import MAX_PREFIX


def check_request(facts: Facts, request: RunRequest) -> None:
    """Refuse a request that the model cannot serve or the artifacts cannot describe."""
    if not request.tokens:
        refuse_request("expected at least one prompt token")
    if request.generate < 1:
        refuse_request("expected --generate of at least 1")
    if request.batch < 1:
        refuse_request("expected --batch of at least 1")
    wrong = [token for token in (*request.tokens, *request.forced) if not _known(facts, token)]
    if wrong:
        refuse_request(f"token {wrong[0]} is not one of {facts.vocabulary}")
    needed = len(request.tokens) + len(request.forced)
    if request.context and request.context < needed:
        refuse_request(f"--context {request.context} is too small for {needed} tokens")
    if facts.kv is None or facts.kv.dtype not in ELEMENT_SIZES:
        refuse_unsupported("the state of this model is not one that report.kv_cache can describe")
    check_checkpoints(facts, request)
    check_prefix(request)


def _known(facts: Facts, token: int) -> bool:
    return 0 <= token < facts.vocabulary


def check_checkpoints(facts: Facts, request: RunRequest) -> None:
    """Refuse checkpoints that the run has no step, layer or support for."""
    step, layer = request.checkpoint_step, request.intra_layer
    if step is not None:
        if step < 0:
            refuse_request("--layer-checkpoints expects a step of at least 0")
        if step == 0 and len(request.tokens) < 2:
            refuse_request("--layer-checkpoints 0 expects a prompt of at least two tokens")
        if step > len(request.forced) + request.generate:
            refuse_request(f"--layer-checkpoints {step} is past the last step of the run")
    if layer is None:
        return
    if step is None:
        refuse_request("--intra-layer-checkpoints requires --layer-checkpoints")
    if step == 0:
        refuse_request("--intra-layer-checkpoints is for decode steps: expected a step above 0")
    if request.batch != 1:
        refuse_request("--intra-layer-checkpoints requires a batch size of 1")
    if facts.family not in LOCALISED:
        refuse_request(f"--intra-layer-checkpoints does not support the family {facts.family}")
    if not 0 <= layer < facts.total_layers:
        refuse_request(
            f"--intra-layer-checkpoints expects a layer from 0 to {facts.total_layers - 1}, "
            f"got {layer}"
        )


def check_prefix(request: RunRequest) -> None:
    """Refuse a binding that does not name the prefix, the prompt and the policy of the run."""
    binding = request.binding
    if binding is None:
        return
    if not request.forced:
        refuse_request("--forced-prefix-binding-json requires --forced-prefix")
    if len(request.forced) > MAX_PREFIX:
        refuse_request(f"--forced-prefix expects at most {MAX_PREFIX} tokens")
    rows = (
        ("token_count", len(request.forced), binding.token_count),
        ("token_ids_sha256", ids_sha(request.forced), binding.token_ids_sha256),
        ("prompt_token_count", len(request.tokens), binding.prompt_token_count),
        ("selection_policy", request.policy.name, binding.selection_policy),
        ("selection_policy_sha256", request.policy.sha256, binding.selection_policy_sha256),
    )
    for field, applied, bound in rows:
        if applied != bound:
            refuse_request(f"the binding's {field} is {bound}, the run's is {applied}")
