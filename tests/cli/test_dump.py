"""The modes that print or write numbers, on the fake engine (docs/reference/ds4.md)."""

from __future__ import annotations

import json
import math
import os

import numpy as np
import pytest
from scipy.special import log_softmax

from ds4ref.cli import dump
from ds4ref.cli.ds4 import main
from ds4ref.cli.dump import escape
from ds4ref.weights.gguf import GGUFFile
from tests.cli.fake import VOCAB, FakeSession, byte_tokenizer, row_logits

TOK = byte_tokenizer()


def ids_file(tmp_path, ids) -> str:
    (tmp_path / "ids.json").write_text(json.dumps(list(ids)))
    return str(tmp_path / "ids.json")


# --- --dump-tokens


def test_tokens_are_listed_without_reading_weights(capsys, monkeypatch, nano_path):
    def raw(*arguments):
        raise AssertionError("weights were read")

    monkeypatch.setattr(GGUFFile, "raw", raw)
    assert main(["-m", str(nano_path), "--dump-tokens", "-p", "a<think>b"]) == 0
    ids, *pieces = capsys.readouterr().out.splitlines()
    assert json.loads(ids) == [int(line.split()[0]) for line in pieces]
    assert [line.split()[1] for line in pieces] == ["a", "<think>", "b"]


# --- --dump-logits


@pytest.mark.parametrize(("flags", "chunk"), [([], None), (["--prefill-chunk", "400"], 400), (["--one-by-one"], 1)])
def test_logits_of_every_position_in_bounded_pieces(ds4, tmp_path, flags, chunk):
    ids = [i * 7 % VOCAB for i in range(1030)]
    out = tmp_path / "out.npz"
    done = ds4("--dump-logits", str(out), "--token-ids", ids_file(tmp_path, ids), *flags)
    assert (done.code, done.out, done.err) == (0, "", "")
    with np.load(out) as arrays:
        assert sorted(arrays) == ["ids", "logits"]
        assert arrays["ids"].dtype == np.int32
        assert arrays["ids"].tolist() == ids
        assert (arrays["logits"].dtype, arrays["logits"].shape) == (np.float32, (1030, VOCAB))
        np.testing.assert_array_equal(arrays["logits"], np.stack([row_logits(i, t) for i, t in enumerate(ids)]))
    assert ds4.engine.sessions[-1].calls == [(1030, chunk, 512)]


def test_no_room_in_the_context_or_on_the_disk(ds4, tmp_path, monkeypatch):
    ids = ids_file(tmp_path, range(100))
    out = str(tmp_path / "o.npz")
    done = ds4("--dump-logits", out, "--token-ids", ids, "--ctx", "100")
    assert (done.code, done.err) == (1, "ds4: the prompt has 100 tokens, a context of 100 takes at most 99\n")
    monkeypatch.setattr(dump.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    done = ds4("--dump-logits", out, "--token-ids", ids)
    assert (done.code, done.err) == (1, f"ds4: cannot write {out}: needs 0.0 GB, only 0.0 GB free\n")
    assert sorted(os.listdir(tmp_path)) == ["fake.gguf", "ids.json"]


# --- --dump-logprobs


def logprobs(ds4, tmp_path, *flags, prompt=("-p", "Hi")):
    done = ds4("--dump-logprobs", str(tmp_path / "o.json"), *prompt, "--nothink", "-sys", "", *flags)
    assert (done.code, done.out, done.err) == (0, "", "")
    return (tmp_path / "o.json").read_text("utf-8")


def test_logprobs_layout_line_by_line(ds4, tmp_path):
    ds4.answer = b"A"
    lines = logprobs(ds4, tmp_path, "--logprobs-top-k", "2", "--ctx", "1000").split("\n")
    assert lines[:7] == [
        "{",
        '  "source":"ds4",',
        '  "prompt_tokens":6,',
        '  "ctx":1000,',
        '  "top_k":2,',
        '  "steps":[',
        '    {"step":0,"selected":{"id":65,"text":"A","bytes":[65]},"top_logprobs":['
        '{"token":{"id":65,"text":"A","bytes":[65]},"logit":50,"logprob":0},'
        '{"token":{"id":299,"text":"","bytes":[]},"logit":1,"logprob":-49}]},',
    ]
    assert lines[7].startswith('    {"step":1,"selected":{"id":257,"text":"<｜end▁of▁sentence｜>","bytes":[60,239,')
    assert lines[8] == "  ],"
    assert lines[9].startswith('  "engine":"ds4ref ')
    assert lines[-2:] == ["}", ""]


def test_logprobs_are_greedy_end_with_eos_and_say_where_they_come_from(ds4, tmp_path):
    ds4.answer = b"Hello"
    data = json.loads(logprobs(ds4, tmp_path, "--temp", "5", "--numerics", "exact"))
    assert [step["selected"]["id"] for step in data["steps"]] == [*b"Hello", TOK.eos]
    assert [step["step"] for step in data["steps"]] == list(range(6))
    assert all(len(step["top_logprobs"]) == 20 for step in data["steps"])
    assert data["finish"] == "stop" and len(data["prompt_ids"]) == data["prompt_tokens"] == 6
    assert data["prompt_ids"] == TOK.encode_rendered("<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>")
    assert (data["numerics"], data["backend"], data["model"]["file"]) == ("exact", "cpu", "fake.gguf")
    assert list(data)[:5] == ["source", "prompt_tokens", "ctx", "top_k", "steps"]


def test_broken_logits_leave_no_file(ds4, tmp_path, monkeypatch):
    monkeypatch.setattr(FakeSession, "logits", np.full(VOCAB, np.nan, np.float32))
    done = ds4("--dump-logprobs", str(tmp_path / "o.json"), "-p", "Hi")
    assert done.code == 1
    assert done.err.endswith("are not finite: damaged weights or a broken backend\n")
    assert not (tmp_path / "o.json").exists()


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b'a"\\\n\r\t\x01\x7f', '"a\\"\\\\\\n\\r\\t\\u0001\x7f"'),
        ("é€😀".encode(), '"é€😀"'),
        (b"\xe2\x82", '"\\u00e2\\u0082"'),
        (b'"\xff', '"\\"\\u00ff"'),
    ],
)
def test_text_of_a_token(raw, text):
    assert f'"{escape(raw)}"' == text
    json.loads(text)


# --- --perplexity-file


@pytest.mark.parametrize(("flags", "scored"), [("", 168), ("-n 50", 50), ("--ctx 100", 68), ("--one-by-one", 168)])
def test_perplexity(ds4, tmp_path, flags, scored):
    text = bytes(np.random.default_rng(2).integers(32, 127, 200, dtype=np.uint8))
    (tmp_path / "text").write_bytes(text)
    done = ds4("--perplexity-file", str(tmp_path / "text"), *flags.split())
    logprobs = log_softmax(np.stack([row_logits(i, t) for i, t in enumerate(text)]).astype(np.float64), axis=1)
    nll = -sum(logprobs[i - 1, text[i]] for i in range(32, 32 + scored))
    fields = dict(item.split("=") for item in done.out.split())
    assert list(fields) == ["tokens", "scored", "nll", "avg_nll", "ppl"]
    cut = "ds4: warning: the text has 200 tokens; truncated to --ctx 100\n" if "--ctx" in flags else ""
    assert (done.code, done.err, done.out.count("\n")) == (0, cut, 1)
    assert (int(fields["tokens"]), int(fields["scored"])) == (200, scored)
    assert float(fields["nll"]) == pytest.approx(nll, rel=1e-6)
    assert float(fields["ppl"]) == pytest.approx(math.exp(nll / scored), rel=1e-6)
    assert all(len(fields[name].split(".")[1]) == 9 for name in ("nll", "avg_nll", "ppl"))


def test_perplexity_of_too_little(ds4, tmp_path):
    (tmp_path / "text").write_bytes(b"x" * 32)
    done = ds4("--perplexity-file", str(tmp_path / "text"))
    assert done.code == 1
    assert done.err == f"ds4: {tmp_path}/text has 32 tokens; scoring needs more than 32\n"
    done = ds4("--perplexity-file", str(tmp_path / "text"), "--ctx", "32")
    assert (done.code, done.err) == (1, "ds4: perplexity needs a context of more than 32 tokens, --ctx is 32\n")
