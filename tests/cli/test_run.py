"""`cke run`: what it prints where, and what it refuses."""

import json

import pytest

from cke.cli import main
from cke.cli.run import parse_tokens, steady_rate
from cke.errors import CkeError


def test_json_output_is_one_object(tiny_model, capsys):
    folder = tiny_model("llama")
    arguments = ["run", "--model", str(folder), "--tokens", "5 6 7", "--generate", "5"]
    code = main([*arguments, "--driver", "per_layer", "--ignore-eos", "--format", "json"])
    out = capsys.readouterr().out
    assert code == 0
    found = json.loads(out)
    assert found["prompt_tokens"] == [5, 6, 7]
    assert len(found["tokens"]) == 5
    assert found["circuit"].startswith("llama@")
    assert found["counts"]["layers"] == 3
    assert found["settings"]["xla_options"] == {"xla_allow_excess_precision": False}


def test_human_output_streams_the_answer_and_paints_the_picture(tiny_model, capsys):
    folder = tiny_model("llama")
    arguments = ["run", "--model", str(folder), "--tokens", "5 6 7", "--generate", "5"]
    main([*arguments, "--driver", "per_layer", "--ignore-eos", "--format", "json"])
    tokens = json.loads(capsys.readouterr().out)["tokens"]
    main([*arguments, "--driver", "per_layer", "--ignore-eos"])
    said = capsys.readouterr()
    assert said.out.split() == [str(token) for token in tokens]
    for word in ("circuit", "checkpoints", "kernels", "per_layer", folder.name):
        assert word in said.err


def test_sampling_follows_its_seed(tiny_model, capsys):
    runs = []
    for seed in ("1", "1", "2"):
        options = ["--temperature", "2", "--seed", seed, "--driver", "per_layer", "--ignore-eos"]
        model = ["--model", str(tiny_model("llama")), "--tokens", "5 6 7", "--generate", "12"]
        main(["run", *model, *options, "--format", "json"])
        runs.append(json.loads(capsys.readouterr().out)["tokens"])
    assert runs[0] == runs[1] != runs[2]


ERRORS = [
    (
        [],
        "error[CKE609]: expected `--prompt` or `--tokens`, got neither\n  help: give one of them\n",
    ),
    (
        ["--prompt", "a", "--tokens", "1"],
        "error[CKE609]: expected `--prompt` or `--tokens`, got both\n  help: give one of them\n",
    ),
    (
        ["--chat", "--tokens", "1"],
        "error[CKE609]: `--chat` expects `--prompt`, got `--tokens`\n  help: give a text\n",
    ),
]


@pytest.mark.parametrize(("arguments", "text"), ERRORS)
def test_the_prompt_is_given_once(arguments, text, capsys):
    assert main(["run", "--model", "model.gguf", *arguments]) == 2
    assert capsys.readouterr().err == text


def test_token_ids_are_integers():
    assert parse_tokens("1, 2 3") == [1, 2, 3]
    with pytest.raises(CkeError) as caught:
        parse_tokens("1 two")
    assert str(caught.value) == (
        "error[CKE609]: `--tokens` expects integers, got `two`\n"
        '  help: write ids such as --tokens "1 2 3"'
    )


def test_a_rate_leaves_out_what_may_have_compiled():
    assert steady_rate([(0.0, 1), (5.0, 5), (6.0, 9), (7.0, 13)]) == 4.0
    assert steady_rate([(0.0, 1), (5.0, 5)]) is None
