"""What ds4 and its users' patches write: logprob dumps with and without a prompt, logits as JSON, raw float32."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ds4ref.cli import ds4
from ds4ref.errors import DataError, Ds4Error, UsageError
from ds4ref.targets.local import LocalTarget
from ds4ref.test_vectors import cli
from ds4ref.test_vectors.observation import OtherModel, log_softmax
from ds4ref.test_vectors.reading import read, read_ids

pytestmark = pytest.mark.usefixtures("both")

V = 16
LOGITS = np.random.default_rng(5).normal(0, 2, (4, V)).astype(np.float32)
IDS = [3, 1, 4, 1]


def token(number: int) -> dict:
    return {"id": number, "text": "?", "bytes": [65 + number]}


def step(index: int, *top: tuple[int, float | None]) -> dict:
    best = [{"token": token(i), "logit": 1.0, "logprob": p} for i, p in top]
    return {"step": index, "selected": token(top[0][0]), "top_logprobs": best}


STEPS = [step(0, (7, -0.5), (2, -1.5)), step(1, (9, -0.25), (3, -2.0)), step(2, (5, -0.125))]
DUMP = {"source": "ds4", "prompt_tokens": 3, "ctx": 4096, "top_k": 2, "steps": STEPS}


def saved(path: Path, found) -> str:
    path.write_text(json.dumps(found))
    return str(path)


def test_a_dump_of_ds4_with_the_ids_of_its_prompt(tmp_path) -> None:
    """Three steps after three tokens: the third was chosen and never fed."""
    path = saved(tmp_path / "d.json", DUMP)
    for given in ([1, 2, 3], [1, 2, 3, 7, 9], [1, 2, 3, 7, 9, 5]):
        seen = read(path, given, vocab=V)
        assert seen.ids.tolist() == [1, 2, 3, 7, 9] and seen.rows.tolist() == [2, 3, 4]
        assert seen.support.tolist() == [[7, 2], [9, 3], [5, -1]]
        assert seen.logprobs[:, 0].tolist() == [-0.5, -0.25, -0.125]


@pytest.mark.parametrize("given, why", [
    (None, "contains no prompt: pass --token-ids, or --prompt-file"),
    ([1, 2], "the prompt had 3 tokens, the ids given are 2"),
    ([1, 2, 3, 7, 8], "the prompt had 3 tokens, the ids given are 5"),
])  # fmt: skip
def test_ids_that_are_not_those_of_the_prompt(tmp_path, given, why) -> None:
    with pytest.raises(Ds4Error, match=why):
        read(saved(tmp_path / "d.json", DUMP), given)


def test_a_dump_of_ours_needs_nothing(tmp_path) -> None:
    path = saved(tmp_path / "d.json", DUMP | {"prompt_ids": [1, 2, 3]})
    assert read(path, None).ids.tolist() == [1, 2, 3, 7, 9] and read(path, [1, 2, 3]).rows.tolist() == [2, 3, 4]
    with pytest.raises(DataError, match="different token ids"):
        read(path, [1, 2, 4])
    with pytest.raises(DataError, match="prompt_ids must be"):
        read(saved(tmp_path / "e.json", DUMP | {"prompt_ids": [1, "2"]}), None)
    with pytest.raises(OtherModel, match="token id 9 is outside the vocabulary of 8"):
        read(path, None, vocab=8)


@pytest.mark.parametrize("steps, why", [
    ([], "the dump has no step"), ([{}], "malformed logprob dump"), ([step(0, (7, None))], "no position has usable"),
    ([{"selected": token(1), "top_logprobs": [{"token": {"id": 1, "bytes": [999]}}]}], "malformed logprob dump"),
    ([{"selected": {**token(1), "id": float("inf")}, "top_logprobs": []}], "malformed logprob dump"),
], ids=range(5))  # fmt: skip
def test_malformed_dumps(tmp_path, steps, why) -> None:
    with pytest.raises(DataError, match=why) as caught:
        read(saved(tmp_path / "d.json", DUMP | {"steps": steps}), [1, 2, 3])
    assert "\n" not in str(caught.value)


def test_a_null_in_a_dump_is_a_finding(tmp_path) -> None:
    """What ``number_json`` and C's %.9g leave of a NaN."""
    steps = [step(0, (7, -0.5), (2, None)), *STEPS[1:]]
    seen = read(saved(tmp_path / "d.json", DUMP | {"steps": steps}), [1, 2, 3])
    assert [(f.name, f.positions) for f in seen.findings] == [("nan", (2,))]


# ----------------------------------------------------------------------------------------------- text instead of ids


@pytest.fixture(scope="module")
def tokenizer(nano_path):
    with LocalTarget.open(nano_path, backend="reference") as target:
        yield target.tokenizer


def test_the_prompts_text_through_the_tokenizer(tmp_path, tokenizer) -> None:
    from ds4ref.text.chat import encode_chat_prompt

    for system in ("", "Be brief."):
        ids = encode_chat_prompt(tokenizer, system, "The mill?", "none")
        path = saved(tmp_path / "d.json", DUMP | {"prompt_tokens": len(ids)})
        assert read(path, None, tokenizer=tokenizer, prompt=(system, "The mill?")).ids.tolist() == [*ids, 7, 9]
        own = saved(tmp_path / "own.json", DUMP | {"prompt": "The mill?", "system": system})
        with pytest.raises(DataError, match=f"the prompt had 3 tokens, its text makes {len(ids)}"):
            read(own, None, tokenizer=tokenizer)
    with pytest.raises(UsageError, match="needs a model with a tokenizer"):
        read(path, None, prompt=("", "The mill?"))
    row = saved(tmp_path / "row.json", {"prompt_tokens": len(ids), "logits": LOGITS[0].tolist()})
    assert read(row, None, tokenizer=tokenizer, prompt=("Be brief.", "The mill?")).ids.tolist() == ids


def test_ids_as_ds4_prints_them(tmp_path) -> None:
    path = tmp_path / "ids.txt"
    path.write_text("[5, 12, 300]\n     5  A\n    12  \n    13  a piece with a break\n   300  B\n")
    with pytest.raises(DataError):
        read_ids(str(path))
    path.write_text("[5, 12, 300]\n     5  A\n    12  Ċ\n   300  B\n")
    assert read_ids(str(path)) == [5, 12, 300]


# -------------------------------------------------------------------------------------------------------- full logits


def test_rows_of_logits_as_json(tmp_path) -> None:
    found = {"ids": IDS, "logits": LOGITS.tolist()}
    seen = read(saved(tmp_path / "x.json", found), None, vocab=V)
    assert seen.full and np.allclose(seen.logprobs, log_softmax(LOGITS)) and seen.ids.tolist() == IDS
    last = read(saved(tmp_path / "y.json", {"prompt_tokens": 4, "logits": LOGITS[3].tolist()}), IDS, vocab=V)
    assert last.rows.tolist() == [3] and np.allclose(last.logprobs, log_softmax(LOGITS[3:]))
    part = read(saved(tmp_path / "z.json", found | {"logits": LOGITS[1:3].tolist(), "rows": [1, 2]}), None)
    assert part.rows.tolist() == [1, 2]
    null = read(saved(tmp_path / "n.json", found | {"logits": [[None, *row[1:]] for row in LOGITS.tolist()]}), None)
    assert np.isnan(null.logprobs).all()
    for change in ({"logits": [[1, 2], [3]]}, {"logits": ["a"]}, {"logits": []}, {"rows": "a"}, {"rows": [[1], [2, 3]]},
                   {"logits": [[10**400]]}, {"ids": 3}):  # fmt: skip
        with pytest.raises(Ds4Error) as caught:
            read(saved(tmp_path / "bad.json", found | change), None, vocab=V)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", ["bin", "raw", "f32", "F32"])
def test_raw_floats(tmp_path, suffix) -> None:
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(LOGITS.astype("<f4").tobytes())
    wanted = log_softmax(LOGITS)
    assert np.array_equal(read(str(path), IDS, vocab=V).logprobs, wanted)
    assert np.array_equal(read(str(path), IDS).logprobs, wanted), "the ids tell how many rows there are"
    with pytest.raises(UsageError, match="pass --token-ids"):
        read(str(path), None, vocab=V)
    path.write_bytes(LOGITS[3:].astype("<f4").tobytes())
    last = read(str(path), IDS, vocab=V)
    assert last.rows.tolist() == [3] and np.array_equal(last.logprobs, wanted[3:])


@pytest.mark.parametrize("data, vocab, why", [
    (LOGITS.tobytes()[:-1], V, "255 bytes do not divide into rows of 16 float32"),
    (b"", V, "0 bytes do not divide into rows"), (b"", None, "0 bytes do not divide into 4"),
    (bytes(10), None, "into 4 float32 rows"),
    (LOGITS.tobytes(), 12, "4 rows of 16 fit: another vocabulary, or padding"),
    (LOGITS.astype(np.float16).tobytes(), 24, "4 rows of 8 fit"),
    (np.zeros((4, 15), np.float16).tobytes(), 15, "4 rows of 16-bit numbers fit: write float32"),
    (np.zeros((4, V)).tobytes(), V, "4 rows of 64-bit numbers fit: write float32"),
    (LOGITS[:3].tobytes(), V, "one row is missing"),
], ids=range(9))  # fmt: skip
def test_raw_files_of_another_size(tmp_path, data, vocab, why) -> None:
    (tmp_path / "x.f32").write_bytes(data)
    with pytest.raises(DataError, match=why):
        read(str(tmp_path / "x.f32"), IDS, vocab=vocab)
    with pytest.raises(DataError, match="cannot read"):
        read(str(tmp_path / "absent.f32"), IDS, vocab=V)


# ----------------------------------------------------------------------------------------------------------- commands


def run(capsys, *argv: str) -> tuple[int, dict, str]:
    code = cli.main([*argv])
    out, err = capsys.readouterr()
    return code, json.loads(out.strip().splitlines()[-1]) if out.strip() else {}, err


@pytest.mark.thorough
def test_dumps_of_our_ds4_are_diagnosed(tmp_path, capsys, nano_path, without_families) -> None:
    """The way of a ds4 user: dump greedy steps, then diagnose the file; the prompt is known three ways."""
    text, dump = tmp_path / "prompt.txt", tmp_path / "dump.json"
    text.write_text("The old mill stood at the river.")
    engine = ["-m", nano_path, "--numerics", "exact", "--backend", "cpu"]
    prompt = ["--nothink", "-sys", "", "--prompt-file", str(text)]
    assert ds4.main([*engine, *prompt, "--dump-logprobs", str(dump), "-n", "12"]) == 0
    asked = ["diagnose", "-m", nano_path, "--logits", str(dump), "--json"]
    code, found, _ = run(capsys, *asked)
    assert code == 0 and (found["verdict"], found["fault"]) == ("exact", None)
    whole = json.loads(dump.read_text())
    ids = whole.pop("prompt_ids")
    dump.write_text(json.dumps(whole))  # as ds4 itself writes it
    code, _, err = run(capsys, *asked)
    assert code == 2 and "--prompt-file" in err
    (tmp_path / "ids.json").write_text(json.dumps(ids))
    for more in (["--prompt-file", str(text)], ["--token-ids", str(tmp_path / "ids.json")]):
        code, again, _ = run(capsys, *asked, *more)
        assert code == 0 and again == found
    code, _, err = run(capsys, *asked, "--prompt-file", str(text), "-sys", "Be brief.")
    assert code == 1 and "its text makes" in err


@pytest.mark.thorough
def test_raw_logits_are_diagnosed(tmp_path, capsys, nano_path, without_families) -> None:
    ids = list(range(100, 140))
    (tmp_path / "ids.json").write_text(json.dumps(ids))
    with LocalTarget.open(nano_path, backend="cpu", numerics="exact") as target:
        logits = target.logits(ids)
    logits.astype("<f4").tofile(tmp_path / "x.f32")
    argv = ["-m", nano_path, "--token-ids", str(tmp_path / "ids.json"), "--logits", str(tmp_path / "x.f32")]
    code, found, _ = run(capsys, "diagnose", *argv, "--json")
    assert code == 0 and found["verdict"] == "exact"
    code, _, err = run(capsys, "diff", str(tmp_path / "x.f32"), str(tmp_path / "x.f32"))
    assert code == 2 and "is a raw array: pass --token-ids" in err
    code, same, _ = run(capsys, "diff", str(tmp_path / "x.f32"), str(tmp_path / "x.f32"), *argv[2:4], "--fail")
    assert code == 0 and same["max"] == 0.0 and same["positions"] == 40
