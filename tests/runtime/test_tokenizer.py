"""Tokenizers from files, against transformers' reading of the same files."""

from pathlib import Path

import pytest

from cke.chat import render_chat
from cke.errors import CkeError
from cke.runtime.tokenizer import StreamDecoder, TextTokenizer, load_tokenizer
from cke.runtime.weights import open_model

TEXTS = (
    "The capital of France is",
    "  a  b\n\n\tc 12345",
    "你好 世界 🎉 café",
    "<|im_start|>user\nhi<|im_end|>\n",
    "I'm it's WE'RE don't",
    "x=1;  //c\r\n",
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
