"""Files of logits, in every form: npz, npy, CSV, top-k JSON, ds4's dumps, raw float32; and damaged ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4ref.cli import ds4
from ds4ref.errors import DataError, Ds4Error, UsageError
from ds4ref.targets.local import LocalTarget
from ds4ref.test_vectors import cli
from ds4ref.test_vectors.observation import OtherModel, log_softmax
from ds4ref.test_vectors.reading import read, read_ids
from ds4ref.text.prompts import encode_chat_prompt

pytestmark = pytest.mark.usefixtures("both")

V = 16
LOGITS = np.random.default_rng(5).normal(0, 2, (4, V)).astype(np.float32)
IDS = [3, 1, 4, 1]
WANTED = log_softmax(LOGITS)


def token(number: int) -> dict:
    return {"id": number, "text": "?", "bytes": [65 + number]}


def step(index: int, *top: tuple[int, float | None]) -> dict:
    best = [{"token": token(i), "logit": 1.0, "logprob": p} for i, p in top]
    return {"step": index, "selected": token(top[0][0]), "top_logprobs": best}


STEPS = [step(0, (7, -0.5), (2, -1.5)), step(1, (9, -0.25), (3, -2.0)), step(2, (5, -0.125))]
DUMP = {"source": "ds4", "prompt_tokens": 3, "ctx": 4096, "top_k": 2, "steps": STEPS}
ROWS = {"ids": IDS, "logits": LOGITS.tolist()}
TOP = {"ids": [1, 2], "rows": [{"position": 1, "top": [[3, -0.5], [4, -1.5]]}]}


def saved(path: Path, result: object) -> str:
    """Write ``result``: several arrays as .npz, one as .npy or a table, bytes unchanged, anything else as JSON."""
    if path.suffix == ".npz":
        np.savez(path, **result)  # type: ignore[arg-type]
    elif path.suffix == ".npy":
        np.save(path, result)  # type: ignore[arg-type]
    elif path.suffix in (".csv", ".tsv"):
        np.savetxt(path, result, delimiter="," if path.suffix == ".csv" else "\t")  # type: ignore[arg-type]
    elif isinstance(result, bytes):
        path.write_bytes(result)
    else:
        path.write_text(json.dumps(result))
    return str(path)


@pytest.mark.parametrize(("name", "result", "ids", "rows"), [
    ("x.npz", {"ids": IDS, "logits": LOGITS}, None, None),
    ("x.npz", {"ids": IDS, "logits": LOGITS[1:3], "rows": np.array([1, 2], np.uint8)}, None, [1, 2]),
    ("x.npy", LOGITS, IDS, None), ("x.csv", LOGITS, IDS, None), ("x.tsv", LOGITS, IDS, None),
    ("x.f32", LOGITS.tobytes(), IDS, None), ("x.F32", LOGITS[3:].tobytes(), IDS, [3]),
    ("x.json", ROWS, None, None), ("x.json", ROWS | {"logits": LOGITS[1:3].tolist(), "rows": [1, 2]}, None, [1, 2]),
    ("x.json", {"prompt_tokens": 4, "logits": LOGITS[3].tolist()}, IDS, [3]),
    ("x.json", [{"position": t, "top": [[i, float(p)] for i, p in enumerate(row)]} for t, row in enumerate(WANTED)],
     IDS, None),
], ids=range(11))  # fmt: skip
def test_forms_agree(tmp_path, name, result, ids, rows) -> None:
    seen = read(saved(tmp_path / name, result), ids, vocab=V)
    rows = rows or [0, 1, 2, 3]
    assert seen.ids.tolist() == IDS and seen.rows.tolist() == rows and seen.rows.dtype == np.int64
    assert np.allclose(seen.logprobs, WANTED[rows], atol=1e-6)


NUMPY_IDS, NUMPY = np.arange(3, dtype=np.int32), LOGITS[:3]
BAD = {
    "no array": ("x.npz", {"ids": NUMPY_IDS}, "no array 'logits'"),
    "no ids": ("x.npz", {"logits": NUMPY}, "contains no token ids"),
    "one dimension": ("x.npz", {"ids": NUMPY_IDS, "logits": NUMPY[0]}, "do not match"),
    "rows too few": ("x.npz", {"ids": NUMPY_IDS, "logits": NUMPY[:2]}, "do not match"),
    "empty": ("x.npz", {"ids": NUMPY_IDS, "logits": NUMPY[:, :0]}, "empty logits"),
    "no tokens": ("x.npz", {"ids": NUMPY_IDS[:0], "logits": NUMPY[:0]}, "ids must be a list of integers"),
    "complex": ("x.npz", {"ids": NUMPY_IDS, "logits": NUMPY.astype(complex)}, "not numbers"),
    "text": ("x.npz", {"ids": NUMPY_IDS, "logits": NUMPY.astype("U9")}, "not numbers"),
    "float ids": ("x.npz", {"ids": NUMPY_IDS.astype(float), "logits": NUMPY}, "ids must be a list of integers"),
    "ids of two axes": ("x.npz", {"ids": NUMPY_IDS[None], "logits": NUMPY}, "ids must be a list of integers"),
    "negative ids": ("x.npz", {"ids": NUMPY_IDS - 1, "logits": NUMPY}, "token ids must be 0 to"),
    "large ids": ("x.npz", {"ids": NUMPY_IDS + np.int64(2**40), "logits": NUMPY}, "token ids must be 0 to"),
    "float rows": ("x.npz", {"ids": NUMPY_IDS, "logits": NUMPY, "rows": np.array([0.0, 1.0, 2.0])}, "must be a list"),
    "rows unsorted": ("x.npz", {"ids": NUMPY_IDS, "logits": NUMPY, "rows": np.array([0, 2, 1])}, "must ascend"),
    "rows outside": ("x.npz", {"ids": NUMPY_IDS, "logits": NUMPY, "rows": np.array([0, 1, 3])}, "lie inside"),
    "objects": ("x.npz", {"ids": NUMPY_IDS, "logits": np.array([None, 1], object)}, "is not a usable .npz"),
    "no zip": ("x.raw", b"", "pass --token-ids"),
    "another suffix": ("x.txt", {}, "unsupported file type"),
    "a dump without steps": ("x.json", DUMP | {"steps": []}, "the dump has no step"),
    "an empty step": ("x.json", DUMP | {"steps": [{}]}, "malformed logprob dump"),
    "a dump without ids": ("x.json", DUMP, "contains no prompt: pass --token-ids, or --prompt-file"),
    "bad prompt ids": ("x.json", DUMP | {"prompt_ids": [1, "2"]}, "prompt_ids"),
    "ragged rows": ("x.json", ROWS | {"logits": [[1, 2], [3]]}, "rows of one length"),
    "rows of text": ("x.json", ROWS | {"logits": ["a"]}, ""),
    "no rows": ("x.json", ROWS | {"logits": []}, ""),
    "rows that are no list": ("x.json", ROWS | {"rows": "a"}, ""),
    "a huge number": ("x.json", ROWS | {"logits": [[10**400]]}, ""),
    **{f"top {i}": ("x.json", TOP | change, "") for i, change in enumerate((
        {"rows": 3}, {"rows": [3]}, {"rows": [{}]}, {"rows": [{"top": [[1]]}]}, {"rows": [{"top": [["a", 1]]}]},
        {"rows": [{"position": 0.5, "top": [[1, -1]]}]}, {"rows": [{"position": 2, "top": [[1, -1]]}]},
        {"rows": [{"position": 0, "top": [[-1, -1]]}]}, {"rows": [{"position": 0, "top": [[1 << 70, -1]]}]},
        {"rows": [{"position": 0, "top": [[3, -9999.0]]}]}, {"ids": 3}, {"ids": []}, {"ids": [[1], [2, 3]]},
        {"ids": [1 << 70]}, {"ids": [1.5]}))},
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_files_that_are_no_logits(tmp_path, name) -> None:
    file, result, why = BAD[name]
    with pytest.raises(Ds4Error, match=why or "^.") as caught:
        read(saved(tmp_path / file, result), None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data, vocab, why", [
    (LOGITS.tobytes()[:-1], V, "255 bytes do not divide into rows of 16 float32"),
    (b"", V, "0 bytes do not divide into rows"), (bytes(10), None, "into 4 float32 rows"),
    (LOGITS.tobytes(), 12, "4 rows of 16 fit: another vocabulary, or padding"),
    (np.zeros((4, 15), np.float16).tobytes(), 15, "4 rows of 16-bit numbers fit: write float32"),
    (np.zeros((4, V)).tobytes(), V, "4 rows of 64-bit numbers fit: write float32"),
    (LOGITS[:3].tobytes(), V, "one row is missing"),
], ids=range(7))  # fmt: skip
def test_raw_files_of_another_size(tmp_path, data, vocab, why) -> None:
    with pytest.raises(DataError, match=why):
        read(saved(tmp_path / "x.f32", data), IDS, vocab=vocab)


@settings(max_examples=150, deadline=None)
@given(at=st.integers(0, 10**6), value=st.integers(0, 255), cut=st.booleans(), name=st.sampled_from(["x.npz", "x.npy"]))
def test_damaged_bytes_are_one_line(tmp_path_factory, at, value, cut, name) -> None:
    path = tmp_path_factory.mktemp("d") / name
    saved(path, {"ids": IDS, "logits": LOGITS} if name == "x.npz" else LOGITS)
    data = bytearray(path.read_bytes())
    if cut:
        del data[at % len(data) :]
    else:
        data[at % len(data)] = value
    path.write_bytes(data)
    try:
        seen = read(str(path), IDS)
    except Ds4Error as error:
        assert "\n" not in str(error)
    else:
        assert seen.logprobs.shape == LOGITS.shape


@pytest.mark.parametrize("text", ["", "3", "{}", "[]", "[1.0]", "[true]", "[-1]", "[2147483648]", '["1"]', "[1,",
                                  "[[1]]", '{"ids": 3}', "[" * 5000, "\udcff",
                                  "[5, 12]\n     5  A\n    13  a piece with a break\n"], ids=range(15))  # fmt: skip
def test_files_that_are_no_token_ids(tmp_path, text) -> None:
    (tmp_path / "ids.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError) as caught:
        read_ids(str(tmp_path / "ids.json"))
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------------------- ds4's dumps


def test_a_dump_of_ds4(tmp_path) -> None:
    """Three steps after three tokens; the third chosen token was never fed to the engine. JSON has null for a NaN."""
    path = saved(tmp_path / "d.json", DUMP)
    own = saved(tmp_path / "own.json", DUMP | {"prompt_ids": [1, 2, 3]})
    for file, ids in ((path, [1, 2, 3]), (path, [1, 2, 3, 7, 9]), (path, [1, 2, 3, 7, 9, 5]), (own, None)):
        seen = read(file, ids, vocab=V)
        assert seen.ids.tolist() == [1, 2, 3, 7, 9] and seen.rows.tolist() == [2, 3, 4]
        assert seen.support.tolist() == [[7, 2], [9, 3], [5, -1]]
        assert seen.logprobs[:, 0].tolist() == [-0.5, -0.25, -0.125]
    for file, ids, why in ((path, [1, 2], "3 tokens, the ids given are 2"), (own, [1, 2, 4], "different token ids"),
                           (path, [1, 2, 3, 7, 8], "3 tokens, the ids given are 5")):  # fmt: skip
        with pytest.raises(DataError, match=why):
            read(file, ids)
    with pytest.raises(OtherModel, match="token id 9 is outside the vocabulary of 8"):
        read(own, None, vocab=8)
    holes = saved(tmp_path / "h.json", DUMP | {"steps": [step(0, (7, -0.5), (2, None)), *STEPS[1:]]})
    assert [(f.name, f.positions) for f in read(holes, [1, 2, 3]).findings] == [("nan", (2,))]
    (tmp_path / "ids.txt").write_text("[5, 12, 300]\n     5  A\n    12  \u010a\n   300  B\n")
    assert read_ids(str(tmp_path / "ids.txt")) == [5, 12, 300], "as --dump-tokens prints them"


def test_the_prompts_text_through_the_tokenizer(tmp_path, nano_path) -> None:
    with LocalTarget.open(nano_path, backend="reference") as target:
        tokenizer = target.tokenizer
    for system in ("", "Be brief."):
        ids = encode_chat_prompt(tokenizer, system, "The mill?", "none")
        path = saved(tmp_path / "d.json", DUMP | {"prompt_tokens": len(ids)})
        assert read(path, None, tokenizer=tokenizer, prompt=(system, "The mill?")).ids.tolist() == [*ids, 7, 9]
        own = saved(tmp_path / "own.json", DUMP | {"prompt": "The mill?", "system": system})
        with pytest.raises(DataError, match=f"the prompt had 3 tokens, its text makes {len(ids)}"):
            read(own, None, tokenizer=tokenizer)
    with pytest.raises(UsageError, match="needs a model with a tokenizer"):
        read(path, None, prompt=("", "The mill?"))


@pytest.mark.thorough
def test_dumps_of_our_ds4_are_diagnosed(tmp_path, capsys, nano_path, without_families) -> None:
    """As a ds4 user would: dump greedy steps, then diagnose the file; the prompt is given in three ways."""
    text, dump = tmp_path / "prompt.txt", tmp_path / "dump.json"
    text.write_text("The old mill stood at the river.")
    engine = ["-m", nano_path, "--numerics", "exact", "--backend", "cpu"]
    prompt = ["--nothink", "-sys", "", "--prompt-file", str(text)]
    assert ds4.main([*engine, *prompt, "--dump-logprobs", str(dump), "-n", "12"]) == 0
    capsys.readouterr()

    def diagnosed(*more: str) -> dict:
        assert cli.main(["diagnose", "-m", nano_path, "--logits", str(dump), "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)

    result = diagnosed()
    assert (result["verdict"], result["fault"]) == ("exact", None)
    whole = json.loads(dump.read_text())
    (tmp_path / "ids.json").write_text(json.dumps(whole.pop("prompt_ids")))
    dump.write_text(json.dumps(whole))  # as ds4 itself writes it
    for more in (["--prompt-file", str(text)], ["--token-ids", str(tmp_path / "ids.json")]):
        assert diagnosed(*more) == result
