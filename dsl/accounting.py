"""Accounting of config keys: each is read, ignored by name, or an error.

A key is read when the circuit's text mentions it, also as a later choice of `??`. A nested table
that is read must have all its keys read by name too.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from cke.dsl import syntax
from cke.dsl.circuit import Circuit
from cke.dsl.model import OpenModel
from cke.dsl.reads import config_keys, get_names, read_keys, walk
from cke.errors import Diagnostic, Note

GENERIC = ("general.", "tokenizer.", "quantize.", "split.", "imatrix.", "adapter.")
"""GGUF keys that describe the file and not the architecture."""

BOOKKEEPING = frozenset(
    """
    _attn_implementation_autoset _commit_hash _name_or_path architectures auto_map bad_words_ids
    base_model_pp_plan base_model_tp_plan begin_suppress_tokens bos_token_id decoder_start_token_id
    diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size eos_token_id
    exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id
    gradient_checkpointing id2label initializer_range label2id length_penalty max_length min_length
    model_type no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences
    output_attentions output_hidden_states output_scores pad_token_id prefix problem_type
    remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id
    suppress_tokens task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p
    torch_dtype torchscript transformers.js_config transformers_version typical_p use_bfloat16
    use_cache
    """.split()
)
"""HF keys that any config may carry: its file, training, labels and generation."""


def ignored_and_read(circuit: Circuit) -> list[Diagnostic]:
    """Return an error for every key that the circuit both reads and ignores."""
    read = config_keys(_expressions(circuit))
    places = {
        (path.path[0] if path.format == "hf" else ".".join(path.path)): node.span
        for path, node in read_keys(_expressions(circuit)).items()
    }
    return [
        Diagnostic(
            code="CKE302",
            message=f"config key `{key}` is both read and ignored",
            span=span,
            notes=(Note("read at", places[key]),),
        )
        for key, span in circuit.ignored.items()
        if key in read
    ]


def unread_keys(circuit: Circuit, model: OpenModel) -> list[Diagnostic]:
    """Return an error for every key of the model's config that nothing reads or ignores."""
    keys = _gguf_keys(circuit, model) if model.format == "gguf" else _hf_keys(circuit, model)
    file = model.source.name if model.format == "gguf" else "config.json"
    return [
        Diagnostic(
            code="CKE301",
            message="unknown config key",
            file=file,
            path=path,
            notes=(
                Note(
                    f"bind it in `config`, or add `ignore {name}` to {circuit.file}", label="help"
                ),
            ),
        )
        for path, name in keys
    ]


def _hf_keys(circuit: Circuit, model: OpenModel) -> Iterator[tuple[str, str]]:
    expressions = list(_expressions(circuit))
    read = {path.path[0] for path in read_keys(expressions) if path.format == "hf"}
    nested = get_names(expressions)
    for key, value in model.root.items():
        if key in circuit.ignored or (key in BOOKKEEPING and key not in read):
            continue
        if key not in read:
            yield f"$.{key}", key
        elif isinstance(value, Mapping):
            yield from _nested(key, value, nested, circuit)


def _nested(
    path: str, table: Mapping[str, Any], read: set[str], circuit: Circuit
) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        inner = f"{path}.{key}"
        if inner in circuit.ignored:
            continue
        if key not in read:
            yield f"$.{inner}", inner
        elif isinstance(value, Mapping):
            yield from _nested(inner, value, read, circuit)


def _gguf_keys(circuit: Circuit, model: OpenModel) -> Iterator[tuple[str, str]]:
    expressions = list(_expressions(circuit))
    read = {".".join(path.path) for path in read_keys(expressions) if path.format == "gguf"}
    full = {
        node.index.value
        for expression in expressions
        for node in walk(expression)
        if isinstance(node, syntax.Index)
        and isinstance(node.value, syntax.Root)
        and isinstance(node.index, syntax.Literal)
    }
    for key in model.source.config:
        name = key.removeprefix(model.prefix)
        known = name in read or name in circuit.ignored or key in full
        if not known and not key.startswith(GENERIC):
            yield key, name


def _expressions(circuit: Circuit) -> Iterator[object]:
    yield from (bind.value for bind in circuit.config.values())
    yield from (bind.value for bind in circuit.schedule_rows.values())
    yield from (row.condition for row in circuit.requires)
    yield from (row.condition for row in circuit.match)
