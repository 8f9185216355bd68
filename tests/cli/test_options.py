"""Reading the command line (docs/reference/ds4.md). No model is involved."""

import argparse
import importlib

import pytest

import ds4ref
from ds4ref.cli.ds4 import build_parser, main, pick_mode
from ds4ref.console.model import drafting
from ds4ref.console.options import integer, number, size
from ds4ref.engine_options import Drafting
from ds4ref.errors import ModelFileError, UsageError


def parse(*argv: str) -> argparse.Namespace:
    return build_parser().parse(argv)


def test_defaults_are_those_of_ds4():
    args = parse()
    assert (args.ctx, args.tokens, args.temp, args.top_p, args.min_p, args.top_k) == (32768, 50000, 1, 1, 0.05, 0)
    assert (args.think, args.seed, args.logprobs_top_k) == ("high", None, 20)
    assert args.system == "You are a helpful assistant"


def test_a_value_is_a_value_whatever_it_looks_like():
    assert parse("-p", "--nothink").prompt == "--nothink"
    assert parse("-p", "-5").prompt == "-5"
    assert parse("-p", "").prompt == ""
    assert parse("-p", "a=b").prompt == "a=b"
    assert parse("--prompt=--think").prompt == "--think"
    assert parse("--prompt=", "--nothink").prompt == ""
    assert parse("-sys", "").system == ""


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "1e3", "", " 1", "1_0", "0x10", "\u0661", "2147483648", "9" * 30])
def test_integers_are_plain_and_at_least_one(text):
    with pytest.raises(UsageError, match="invalid value for --ctx: "):
        parse("--ctx", text)
    with pytest.raises(argparse.ArgumentTypeError):
        integer()(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("32GB", 32 * 10**9), ("512MiB", 512 << 20), ("1.5 kb", 1500), ("0.5GiB", 1 << 29), ("auto", "auto")],
)
def test_sizes(text, value):
    assert parse("--expert-cache", text).expert_cache == value == size("auto")(text)


@pytest.mark.parametrize("text", ["", "0", "0.0GB", "-1GB", "GB", "1 TB", "1e9", "Auto", "1GB ", "9" * 16, "\u0661GB"])
def test_what_is_no_size(text):
    with pytest.raises(UsageError, match="invalid value for --expert-cache: .*expected a size such as 32GB or 512MiB"):
        parse("--expert-cache", text)


@pytest.mark.parametrize("text", ["nan", "inf", "-0.1", "100.5", "1e999", "1,5", "", "1_0", "--think"])
def test_numbers_are_finite_and_in_range(text):
    with pytest.raises(UsageError, match="invalid value for --temp: .*expected a number from 0 to 100"):
        parse("--temp", text)
    with pytest.raises(argparse.ArgumentTypeError):
        number(0, 100)(text)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--ctx"], "missing value for --ctx"),
        (["--foo"], "unknown option: --foo"),
        (["--tmep", "1"], "unknown option: --tmep (did you mean --temp?)"),
        (["-c5"], "unknown option: -c5"),
        (["--max-tokens", "1"], "unknown option: --max-tokens (did you mean --tokens?)"),
        (["nanp", "path"], "unknown command 'nanp' (did you mean nano?)"),
        (["Why is it?"], "unexpected argument: Why is it? (a prompt goes after -p)"),
        (
            ["--backend", "cup"],
            "invalid value for --backend: cup: choose from cpu, reference, cuda (did you mean cpu?)",
        ),
        (
            ["--expert-cache", "atuo"],
            "invalid value for --expert-cache: atuo: expected a size such as 32GB or 512MiB, "
            "or auto, or off (did you mean auto?)",
        ),
        (["--prom", "x"], "unknown option: --prom"),
        (["--numerics", "fast"], "invalid value for --numerics: fast: choose from exact, qat, ds4"),
        (["--mtp-draft", "17"], "invalid value for --mtp-draft: 17"),
        (["--metal"], "--metal is not available here"),
        (["-p", "a", "-x\x1b[31m"], "unknown option: -x\\x1b[31m"),
    ],
)
def test_errors_name_the_flag(argv, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        parse(*argv)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-p", "a", "--prompt-file", "f"], "choose one prompt source"),
        (["-p", "a", "--token-ids", "f"], "choose one prompt source"),
        (["--dump-tokens"], "needs a prompt"),
        (["--dump-logits", "o"], "needs a prompt"),
        (["--dump-logprobs", "o"], "needs a prompt"),
        (["--dump-tokens", "--token-ids", "f"], "--dump-tokens needs text"),
        (["--perplexity-file", "f", "-p", "a"], "cannot be combined"),
        (["--inspect", "-p", "a"], "cannot be combined"),
        (["--dump-logits", "o", "--dump-logprobs", "o", "-p", "a"], "choose one of"),
        (["-p", "a", "--one-by-one"], "--one-by-one needs"),
        (["--dump-logits", "o", "-p", "a", "--one-by-one", "--prefill-chunk", "3"], "cannot be combined"),
    ],
)
def test_contradictions(argv, message):
    with pytest.raises(UsageError, match=message):
        pick_mode(parse(*argv))


def test_help_counts_where_it_stands(capsys):
    assert main(["--help", "--foo"]) == 0
    assert "--dump-logits FILE" in capsys.readouterr().out
    assert main(["--foo", "--help"]) == 2
    assert capsys.readouterr().err == "ds4: unknown option: --foo; see ds4 --help\n"
    assert main(["-n", "x", "--version"]) == 2
    capsys.readouterr()
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("ds4 ")


def test_dspark_is_a_drafter_by_its_own_flag():
    args = build_parser().parse_args(["--dspark", "--mtp", "d.gguf", "--dspark-confidence", "0.5", "-p", "x"])
    assert drafting(args) == Drafting("dspark", "d.gguf", confidence=0.5)


def test_every_flag_of_ds4_is_known():
    """Whatever ds4 has is either here or says that it is not."""
    flags = """-m --model --mtp --mtp-draft --mtp-margin -c --ctx --metal --cuda --cpu --backend -t --threads --quality
        --warm-weights --dir-steering-file --dir-steering-ffn --dir-steering-attn -p --prompt --prompt-file -sys
        --system -n --tokens --temp --top-p --min-p --seed --think --think-max --nothink --inspect --dump-tokens
        --dump-logprobs --logprobs-top-k --perplexity-file --imatrix-dataset --imatrix-out --imatrix-max-prompts
        --imatrix-max-tokens --head-test --first-token-test --metal-graph-test --metal-graph-full-test
        --metal-graph-prompt-test --metal-graph-generate --server -h --help""".split()
    parser = build_parser()
    assert [f for f in flags if f not in parser._option_string_actions and f not in parser.unavailable] == []
    assert not set(parser.unavailable) & set(parser._option_string_actions)


@pytest.mark.parametrize(
    ("command", "argv", "near"),
    [
        ("ds4ref.speed_bench.cli", ["--taget", "local"], "--target"),
        ("ds4ref.eval.cli", ["comprae"], "compare"),
        ("ds4ref.test_vectors.cli", ["docter"], "doctor"),
        ("ds4ref.test_vectors.cli", ["ppl", "--taget", "x"], "--target"),
        ("ds4ref.reports.cli", ["shwo"], "show"),
        ("ds4ref.cli.server", ["smok"], "smoke"),
        ("ds4ref.cli.kv", ["lst"], "list"),
        ("ds4ref.cli.ds4", ["nano", "pth"], "path"),
    ],
)
def test_every_command_guesses_what_was_meant(command, argv, near, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert importlib.import_module(command).main(argv) == 2
    told = capsys.readouterr()
    assert f"(did you mean {near}?)" in told.err and told.err.count("\n") == 1 and not told.out


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("ds4flsh.gguf", "No such file or directory (did you mean ds4flash.gguf?)"),
        ("other.gguf", "No such file or directory; models there: ds4flash.gguf, hf"),
        ("HF", "No such file or directory (did you mean hf?)"),
        ("nowhere/ds4flash.gguf", "No such file or directory\n"),
        ("sub", "a folder without config.json; models there: a.bin, b.bin, c.bin and 1 more"),
        ("empty", "a folder without config.json\n"),
        ("notes.txt", "not a GGUF file"),
    ],
)
def test_a_mistyped_model(model, told, tmp_path, monkeypatch, capsys):
    """On the command line and in Python; files that are no models are not suggested."""
    monkeypatch.chdir(tmp_path)
    for folder in ("hf", "sub", "empty"):
        (tmp_path / folder).mkdir()
    for name in ("ds4flash.gguf", "hf/config.json", *(f"sub/{x}.bin" for x in "abcd"), "notes.txt", "others.log"):
        (tmp_path / name).write_text("no model " * 9)
    assert main(["-m", model, "-p", "x"]) == main(["--inspect", model, "--json"]) == 1
    said = capsys.readouterr()
    assert said.err.count(told) == 2 and said.err.count("\n") == 2 and not said.out
    if "No such file" in told:
        with pytest.raises(ModelFileError) as error:
            ds4ref.open(model)
        assert told.strip() in str(error.value)
