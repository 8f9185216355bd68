"""The command ds4-vectors trace: files, exit codes, one-line errors for invalid input."""

import json

import numpy as np
import pytest
from safetensors import safe_open

from ds4ref.test_vectors.cli import main

from .tracing import IDS, recorded

pytestmark = pytest.mark.usefixtures("both")


@pytest.fixture
def ids(tmp_path):
    path = tmp_path / "ids.json"
    path.write_text(json.dumps(IDS[:40]))
    return str(path)


def last_line(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_record_then_blame(tmp_path, ids, capsys):
    out = str(tmp_path / "ours.safetensors")
    assert main(["trace", "record", "--token-ids", ids, "-o", out, "--numerics", "qat", "--layers", "1-2"]) == 0
    assert last_line(capsys)["numerics"] == "qat"
    with safe_open(out, "numpy") as file:
        manifest = json.loads(file.metadata()["manifest"])
        assert manifest["ids"] == IDS[:40] and manifest["model"]["digest"].startswith("sha256:")
        entries = {entry["key"]: entry for entry in manifest["tensors"]}
        assert set(entries) == set(file.keys())
        assert entries["Qcur.1"]["shape"] == [40, 8, 256] and entries["Qcur.1"]["axes"] == "THF"
        assert {entry["layer"] for entry in entries.values()} == {1, 2}
    assert main(["trace", "blame", out]) == 0
    result = last_line(capsys)
    assert result["verdict"] == "nothing beyond rounding" and result["rounding"] == "qat" and result["checked"] > 90


def test_an_op_is_blamed(tmp_path, ids, capsys):
    np.savez(tmp_path / "theirs.npz", ids=IDS[:40], **recorded("exact", ["no_sink"], layers=[0], ids=IDS[:40]))
    assert main(["trace", "blame", str(tmp_path / "theirs.npz")]) == 1
    text = capsys.readouterr().out
    result = json.loads(text.splitlines()[-1])
    assert (
        result["first"]["point"] == "attn_sinks" and result["first"]["docs"] == "docs/explanation/model.md#4-attention"
    )
    assert result["causes"][0]["names"] == ["no_sink"]
    assert "attn_sinks of layer 0" in text and "no attention sink" in text
    assert main(["trace", "blame", str(tmp_path / "theirs.npz"), "--json"]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_nothing_is_acquitted_that_was_not_dumped(tmp_path, ids, capsys):
    kept = {name: values for name, values in recorded(layers=[0], ids=IDS[:40]).items() if name.startswith("attn_norm")}
    np.savez(tmp_path / "few.npz", ids=IDS[:40], **kept)
    assert main(["trace", "blame", str(tmp_path / "few.npz")]) == 0
    result = last_line(capsys)
    assert result["checked"] == 1 and "kqv_out" in result["not_covered"]


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["trace"], 2),
        (["trace", "nonsense"], 2),
        (["trace", "blame"], 2),
        (["trace", "blame", "absent.npz"], 1),
        (["trace", "record", "-o", "x.safetensors"], 2),
        (["trace", "record", "--token-ids", "IDS", "-o", "OUT", "--layers", "9"], 2),
        (["trace", "record", "--token-ids", "IDS", "-o", "OUT", "--layers", "5-2"], 2),
        (["trace", "record", "--token-ids", "IDS", "-o", "absent/folder/x"], 1),
        (["trace", "--help"], 0),
        (["trace", "blame", "--help"], 0),
    ],
)
def test_exit_codes(tmp_path, ids, argv, code, capsys):
    argv = [ids if a == "IDS" else str(tmp_path / "out.safetensors") if a == "OUT" else a for a in argv]
    assert main(argv) == code
    err = capsys.readouterr().err
    assert len(err.splitlines()) <= 1
    assert not (tmp_path / "out.safetensors").exists(), "nothing is left behind"


def test_values_that_are_no_numbers_are_blamed(tmp_path, capsys):
    tensors = recorded(layers=[0], ids=IDS[:40])
    tensors["KVnorm.0"] = np.where(np.arange(40)[:, None] == 7, np.nan, tensors["KVnorm.0"]).astype(np.float32)
    np.savez(tmp_path / "nan.npz", ids=IDS[:40], **tensors)
    assert main(["trace", "blame", str(tmp_path / "nan.npz")]) == 1
    first = last_line(capsys)["first"]
    assert first["point"] == "KVnorm" and "position 7 only" in first["where"]
