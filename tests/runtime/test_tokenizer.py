"""Tokenizers from files, against transformers' reading of the same files."""

from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from cke.chat import render_chat
from cke.errors import CkeError, MissingInputError
from cke.runtime.tokenizer import StreamDecoder, TextTokenizer, load_tokenizer
from cke.runtime.weights import open_model
from tests.runtime.weights_files import write_folder

TEXTS = (
    "The capital of France is",
    "  a  b\n\n\tc 12345",
    "你好 世界 🎉 café",
    "<|im_start|>user\nhi<|im_end|>\n",
    "I'm it's WE'RE don't",
    "x=1;  //c\r\n",
    "<|im_start|><|im_end|> <|endoftext|>x",
    " \u00a0\u2003 \u200b tab\t\ttab ",
    "e\u0301 \u1e9b\u0323 ﬁ Å",
    "👩‍👩‍👧‍👦🇩🇪 \U0001f3f4",
    "١٢٣ 3.14e-10 0x1F",
    "\x00\x01\x7f",
    "مرحبا שלום हिन्दी ไทย",
    "",
)


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf: Path) -> TextTokenizer:
    return load_tokenizer(open_model(smollm2_gguf))


@pytest.mark.real_model
@pytest.mark.oracle_torch
def test_gguf_vocabulary_gives_the_ids_of_transformers(
    tokenizer: TextTokenizer, smollm2_gguf: Path
) -> None:
    from transformers import AutoTokenizer

    other = AutoTokenizer.from_pretrained(smollm2_gguf.parent, gguf_file=smollm2_gguf.name)
    for text in TEXTS:
        assert tokenizer.encode(text) == other.encode(text), text


@pytest.mark.real_model
def test_decoding_gives_the_text_back(tokenizer: TextTokenizer) -> None:
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text), special=True) == text


@pytest.mark.real_model
def test_a_stream_shows_whole_characters_only(tokenizer: TextTokenizer) -> None:
    text = "你好 🎉 done"
    stream = StreamDecoder(tokenizer)
    parts = [stream.add(token) for token in tokenizer.encode(text)]
    assert "\ufffd" not in "".join(parts)
    assert "".join(parts) + stream.rest() == text


@pytest.mark.real_model
def test_the_models_own_chat_template_is_rendered(tokenizer: TextTokenizer) -> None:
    text = render_chat(
        tokenizer.chat_template, [{"role": "user", "content": "Hi"}], tokens={"bos_token": "<s>"}
    )
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_a_missing_template_is_an_error() -> None:
    with pytest.raises(CkeError, match=r"CKE443\]: expected a chat template, got none"):
        render_chat(None, [], tokens={})


def test_a_template_cannot_leave_the_sandbox() -> None:
    with pytest.raises(CkeError, match="CKE443"):
        render_chat("{{ ''.__class__.__mro__[1].__subclasses__() }}", [], tokens={})


def trained(size: int = 320) -> Tokenizer:
    """A small byte-level vocabulary."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(
        ["the theme of the thing", "user hello it's 123 1234 é"] * 3, trainer
    )
    return tokenizer


def byte_pair_metadata(pre: str | None) -> dict[str, Any]:
    import json

    model = json.loads(trained().to_str())["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].get), "<|im_start|>", "<|im_end|>"]
    kinds = [1] * (len(tokens) - 2) + [3, 3]
    found: dict[str, Any] = {
        "model": "gpt2",
        "tokens": tokens,
        "merges": [" ".join(pair) for pair in model["merges"]],
        "token_type": kinds,
        "eos_token_id": len(tokens) - 1,
    }
    return found if pre is None else {**found, "pre": pre}


def write_vocabulary(path: Path, metadata: dict[str, Any], architecture: str = "llama") -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        name = f"tokenizer.ggml.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    writer.add_block_count(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def loaded(path: Path, metadata: dict[str, Any], architecture: str = "llama") -> TextTokenizer:
    return load_tokenizer(open_model(write_vocabulary(path / "x.gguf", metadata, architecture)))


def test_a_qwen2_vocabulary_splits_and_composes_as_its_model_does(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, byte_pair_metadata("qwen2"), "qwen2")
    inner = tokenizer.inner
    split = [text for text, _ in inner.pre_tokenizer.pre_tokenize_str("it's 123\n\nthe  end")]
    assert split == ["it", "'s", "Ġ", "1", "2", "3", "ĊĊ", "the", "Ġ", "Ġend"]
    assert tokenizer.encode("e\u0301") == tokenizer.encode("é")
    for text in TEXTS:
        composed = inner.normalizer.normalize_str(text)
        assert tokenizer.decode(tokenizer.encode(text), special=True) == composed


@pytest.mark.parametrize(
    ("pre", "split"),
    [
        ("llama-bpe", ["it", "'S", "Ġ", "123", "4", "Ġthe"]),
        ("smollm", ["it", "'", "S", "Ġ", "1", "2", "3", "4", "Ġthe"]),
        ("default", ["it", "'", "S", "Ġ1234", "Ġthe"]),
        (None, ["it", "'", "S", "Ġ1234", "Ġthe"]),
    ],
)
def test_text_is_split_as_the_vocabulary_says(
    pre: str | None, split: list[str], tmp_path: Path
) -> None:
    tokenizer = loaded(tmp_path, byte_pair_metadata(pre))
    found = [text for text, _ in tokenizer.inner.pre_tokenizer.pre_tokenize_str("it'S 1234 the")]
    assert found == split
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text), special=True) == text


def pieces_metadata(**more: Any) -> dict[str, Any]:
    """A small SentencePiece vocabulary with byte tokens, such as Llama 2's."""
    words = ["▁", "h", "e", "l", "o", "w", "r", "d", "▁h", "ll", "he", "lo", "▁he", "llo", "▁hello"]
    words += ["▁w", "or", "ld", "▁wor", "▁world", "▁▁", "1", "2", "。", "\n"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(words))]
    types = [2, 3, 3] + [6] * 256 + [1] * len(words)
    return {
        "model": "llama",
        "tokens": tokens,
        "scores": scores,
        "token_type": types,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **more,
    }


PIECE_TEXTS = ("hello world", "held  12", "world。\n\nhello 🎉", "")


@pytest.mark.oracle_torch
@pytest.mark.parametrize("text", PIECE_TEXTS)
def test_a_llama_vocabulary_gives_the_ids_of_transformers(text: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = loaded(tmp_path, pieces_metadata())
    other = AutoTokenizer.from_pretrained(tmp_path, gguf_file="x.gguf")
    ours = tokenizer.encode(text, special=False)
    assert ours == other.encode(text, add_special_tokens=False)
    assert tokenizer.encode(text) == [1, *ours]


def test_a_space_is_put_before_every_text_as_sentencepiece_does(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, pieces_metadata())
    pieces = [tokenizer.text_of(token) for token in tokenizer.encode("  hello<s>hello")]
    assert pieces == ["<s>", "▁▁", "▁hello", "<s>", "▁hello"]


@pytest.mark.real_model
def test_every_numeral_is_split_off_as_the_models_own_file_says(tokenizer: TextTokenizer) -> None:
    split = tokenizer.inner.pre_tokenizer.pre_tokenize_str("a ½²12")
    assert [text for text, _ in split] == ["a", "Ġ", "Â½", "Â²", "1", "2"]


@pytest.mark.parametrize("text", PIECE_TEXTS)
@pytest.mark.parametrize("prefix", [True, False])
def test_a_llama_vocabulary_gives_the_text_back(text: str, prefix: bool, tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, pieces_metadata(add_space_prefix=prefix, add_bos_token=False))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, special=True).strip() == text.strip()
    stream = StreamDecoder(tokenizer)
    assert "".join(map(stream.add, ids)) + stream.rest() == tokenizer.decode(ids)


def test_an_end_is_added_when_the_vocabulary_asks(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, pieces_metadata(add_eos_token=True))
    assert tokenizer.encode("hello")[::2] == [1, 2]
    assert tokenizer.encode("hello", special=False) == tokenizer.encode("hello")[1:-1]
    assert tokenizer.eos == {2}


def test_an_unknown_pre_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CkeError) as caught:
        loaded(tmp_path, byte_pair_metadata("tekken"))
    assert str(caught.value) == (
        "x.gguf: `tokenizer.ggml.pre`: error[CKE442]: expected one of codeshell, command-r, dbrx, "
        "default, exaone, gpt-2, gpt2, llama-bpe, llama3, olmo, phi-2, qwen2, refact, smaug-bpe, "
        "smollm, stablelm2, starcoder, got `tekken`\n"
        "  help: give token IDs with `--tokens` in place of `--prompt`"
    )


BAD = "\n  help: the file was converted badly: convert or fetch it again"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"eos_token_id": 999},
            "eos_token_id`: error[CKE421]: expected a token of 0 to 283, got 999",
        ),
        ({"bos_token_id": "x"}, "bos_token_id`: error[CKE421]: expected a whole number, got a str"),
        ({"scores": [0.5]}, "scores`: error[CKE421]: expected one for each of 284 tokens, got 1"),
        ({"scores": [1, 2]}, "scores`: error[CKE421]: expected floats, got other items"),
        ({"scores": "x"}, "scores`: error[CKE421]: expected an array, got a str"),
        ({"tokens": [1, 2]}, "tokens`: error[CKE421]: expected strings, got other items"),
        (
            {"token_type": [1]},
            "token_type`: error[CKE421]: expected one for each of 284 tokens, got 1",
        ),
    ],
    ids=["token", "number", "count", "type", "no array", "tokens", "token types"],
)
def test_a_vocabulary_that_contradicts_itself_is_refused(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CkeError) as caught:
        loaded(tmp_path, pieces_metadata(**changed))
    assert str(caught.value) == f"x.gguf: `tokenizer.ggml.{message}{BAD}"


def test_merges_of_unknown_pieces_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CkeError, match=r"x\.gguf: error\[CKE441\]: expected a tokenizer: .*`zz` out of"
    ):
        loaded(tmp_path, {**byte_pair_metadata("smollm"), "merges": ["zz yy"]})
    with pytest.raises(CkeError, match="expected two pieces around a space in every merge"):
        loaded(tmp_path, {**byte_pair_metadata("smollm"), "merges": ["zz"]})


@pytest.mark.parametrize(("kind", "got"), [("bert", "`bert`"), (None, "none")])
def test_a_vocabulary_of_another_kind_is_missing_input(
    kind: str | None, got: str, tmp_path: Path
) -> None:
    metadata = {key: value for key, value in pieces_metadata().items() if key != "model"}
    with pytest.raises(MissingInputError) as caught:
        loaded(tmp_path, metadata | ({"model": kind} if kind else {}))
    assert str(caught.value) == (
        "x.gguf: `tokenizer.ggml.model`: error[CKE440]: expected a `gpt2` or `llama` vocabulary, "
        f"got {got}\n  help: give token IDs with `--tokens` in place of `--prompt`"
    )


WEIGHTS = {"model.safetensors": b"\x02" + bytes(7) + b"{}"}


def write_tokenizer(folder: Path, **settings: Any) -> TextTokenizer:
    tokenizer = trained()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    ids = [("<s>", tokenizer.token_to_id("<s>"))]
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=ids)
    files = {"tokenizer.json": tokenizer.to_str().encode(), **WEIGHTS, **settings}
    return load_tokenizer(open_model(write_folder(folder / "m", files)))


def test_a_folder_states_what_begins_and_ends_a_text(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(
        tmp_path,
        **{
            "tokenizer_config.json": {
                "bos_token": {"content": "<s>"},
                "eos_token": "</s>",
                "add_bos_token": True,
                "model_max_length": 10**30,
                "chat_template": [{"name": "default", "template": "hello"}, 3],
            },
            "generation_config.json": {"eos_token_id": [7, 8]},
            "config.json": {"eos_token_id": 9},
        },
    )
    begin, end = tokenizer.inner.token_to_id("<s>"), tokenizer.inner.token_to_id("</s>")
    assert tokenizer.bos == begin
    assert tokenizer.eos == {end, 7, 8, 9}
    assert tokenizer.encode("the")[0] == begin != tokenizer.encode("the")[1]
    assert tokenizer.chat_template == "hello"
    assert tokenizer.text_of(end) == "</s>"
    assert tokenizer.text_of(99999) == ""


def test_a_template_file_comes_first(tmp_path: Path) -> None:
    files = {"chat_template.jinja": b"file", "tokenizer_config.json": {"chat_template": "settings"}}
    assert write_tokenizer(tmp_path, **files).chat_template == "file"


def test_a_folder_without_a_tokenizer_is_missing_input(tmp_path: Path) -> None:
    model = open_model(write_folder(tmp_path / "m", WEIGHTS))
    with pytest.raises(MissingInputError) as caught:
        load_tokenizer(model)
    assert str(caught.value) == (
        "m: error[CKE440]: expected `tokenizer.json`, got none\n"
        "  help: give token IDs with `--tokens` in place of `--prompt`"
    )


@pytest.mark.parametrize("raw", [b"{}", b"[", b"\xff", b'{"model": {"type": "BPE"}}'])
def test_a_malformed_tokenizer_file_is_refused(raw: bytes, tmp_path: Path) -> None:
    model = open_model(write_folder(tmp_path / "m", {"tokenizer.json": raw, **WEIGHTS}))
    with pytest.raises(
        CkeError, match=r"^tokenizer\.json: error\[CKE441\]: expected a tokenizer: "
    ):
        load_tokenizer(model)


TEMPLATES = {
    "tools": "{% if tools is none %}no{% else %}{{ tools | tojson(indent=2) }}{% endif %} tools\n",
    "loops": "{% for m in messages %}\n  {% if loop.index > 1 %}{% break %}{% endif %}\n"
    "{{ m.content | trim | tojson }}{% endfor %}",
    "generation": "{% set x = 1 %}{% for m in messages %}{% generation %}{{ m.content }}"
    "{% endgeneration %}|{% endfor %}",
    "prompt": "{{ bos_token }}{% if add_generation_prompt %}<bot>{% endif %}",
}


@pytest.mark.oracle_torch
@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_render_as_in_transformers(name: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{"role": "user", "content": " <a & b> é "}, {"role": "assistant", "content": "2"}]
    for tools in (None, [{"type": "function", "function": {"name": "f"}}]):
        (other,), _ = render_jinja_template(
            [messages],
            tools=tools,
            chat_template=TEMPLATES[name],
            add_generation_prompt=True,
            bos_token="<s>",
        )
        ours = render_chat(TEMPLATES[name], messages, tools=tools, tokens={"bos_token": "<s>"})
        assert ours == other


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[5].content }}", "list object has no element 5"),
        ("{% for m in messages %}", "Unexpected end of template"),
        ("{{ 1 // 0 }}", "integer division or modulo by zero"),
    ],
)
def test_a_template_that_fails_says_why(template: str, message: str) -> None:
    with pytest.raises(CkeError) as caught:
        render_chat(template, [], tokens={})
    assert str(caught.value).startswith(f"error[CKE443]: the chat template fails: {message}")
