"""The step after an unknown: which dump would decide, the code that makes it, and that the command reads it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from ds4ref.archs.deepseek4.shape import FLASH
from ds4ref.nano.diagnostic import DIAGNOSTIC, PROMPTS
from ds4ref.test_vectors import cli, cli_diagnose
from ds4ref.test_vectors.diagnosis.verdict import Diagnosis
from ds4ref.test_vectors.trace.dumps import read
from ds4ref.test_vectors.trace.plan import HALF, HEAD, planned
from ds4ref.test_vectors.trace.record import record
from ds4ref.variants import LIBRARY

from .tracing import as_dump, engine, examined


def layers(shape, first, exactly=True):
    return planned(shape, range(200), first, exactly).layers


@pytest.mark.parametrize("first, expected", [
    (0, (0, 2, 3)), (2, (0, 2, 3)), (3, (2,)), (5, (2,)), (6, (0, 2, 3)), (7, (2,)), (9, (2,)), (10, (0, 2, 3)),
    (126, (0, 2, 3)), (127, (3,)), (255, (3,)), (2050, (0, 2, 3)), (2051, (2,)),
])  # fmt: skip
def test_where_rows_of_one_kind_begin_to_matter_a_layer_of_it_is_enough(first, expected) -> None:
    assert layers(FLASH, first) == expected


def test_below_a_roundings_noise_anything_may_have_begun_earlier() -> None:
    assert layers(FLASH, 3, exactly=False) == layers(FLASH, None) == (0, 2, 3)


def test_layers_that_route_by_a_table_alone_are_not_all() -> None:
    assert planned(replace(FLASH, n_hash_layers=5), range(9), 0).layers == (0, 2, 3, 5)


def test_a_long_prompt_is_cut_behind_the_first_wrong_position(tmp_path) -> None:
    assert planned(DIAGNOSTIC, range(2000), 170).tokens == 2000, "small enough"
    cut = planned(FLASH, range(2000), 170)
    assert (cut.tokens, cut.whole) == (179, 2000)
    ids = list(range(5, 2005))
    (tmp_path / "mine.json").write_text(json.dumps(ids))
    np.savez(tmp_path / "mine.npz", ids=np.array(ids, np.int32))
    for given in ("mine.json", "mine.npz"):
        lines = cut.text("", given, "-m m.gguf").splitlines()
        assert lines[-1] == "ds4-vectors trace blame dump -m m.gguf --token-ids ids.json --layers 0,2,3,head"
        command = next(line for line in lines if line.startswith("token ids")).removeprefix("token ids").strip()
        subprocess.run(command.replace("python", sys.executable, 1), shell=True, cwd=tmp_path, check=True)
        assert json.loads((tmp_path / "ids.json").read_text()) == ids[:179]
        (tmp_path / "ids.json").unlink()


def test_its_size_is_that_of_the_recording() -> None:
    """To the byte, and what it lists are the points of these layers."""
    ids = PROMPTS["mixed"]()
    plan = planned(DIAGNOSTIC, ids, 0)
    taken = {}
    for layer, wide in plan.columns.items():
        tensors, _ = record(engine(), ids, list(wide), [layer])
        taken |= tensors
        assert {key.partition(".")[0] for key in tensors} == set(wide)
        for key, values in tensors.items():
            assert values[0].size == wide[key.partition(".")[0]], key
    assert plan.megabytes == pytest.approx(sum(values.size * 4 for values in taken.values()) / 1e6, abs=1e-9)
    assert plan.to_json()["points"]["3"] == [name for name in HALF if name != "indexer_topk"]
    assert plan.to_json()["points"]["head"] == list(HEAD)


def test_the_dump_finds_a_mistake() -> None:
    """Of all points only those of the plan: the op or the gap, and its name."""
    ids = PROMPTS["mixed"]()[:64]
    plan = planned(DIAGNOSTIC, ids, 0)
    for fault, point in (("no_kv_norm", "KVnorm"), ("rope_half_split", "Qcur"), ("gelu", "ffn_shexp_mid")):
        tensors, _ = record(engine(), ids, faults=[LIBRARY[fault]])
        named = {(name if layer < 0 else f"{name}.{layer}") for layer, wide in plan.columns.items() for name in wide}
        result = examined(as_dump(tensors, lambda name, named=named: name in named), [*plan.layers, -1], ids=ids)
        assert ("hc_ffn_post", 5) not in [wrong.key for wrong in result.wrong]
        assert point in [name for name, _ in result.wrong[0].bridged] and fault in result.causes[0].names


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_its_c_writes_what_is_read(tmp_path) -> None:
    lines = planned(DIAGNOSTIC, range(200), 0).text("", "", "").split("\n\n")[1].splitlines()
    end = lines.index("}") + 1
    call = next(line for line in lines[end:] if line.startswith("if"))
    assert 'dump("attn_norm", layer, x, 200, 256);' in call and "layer == 3" in call and "layer == 1 " not in call
    program = ["#include <stdio.h>", *lines[:end], "int main(void) { float x[200 * 256];",
               "for (int i = 0; i < 200 * 256; i++) x[i] = i;",
               "for (int layer = -1; layer < 6; layer++)", call, "}"]  # fmt: skip
    (tmp_path / "d.c").write_text("\n".join(program))
    (tmp_path / "dump").mkdir()
    subprocess.run(["cc", "-Wall", "-Werror", "-o", "d", "d.c"], cwd=tmp_path, check=True)
    subprocess.run(["./d"], cwd=tmp_path, check=True)
    dump = read(str(tmp_path / "dump"))
    assert sorted(dump.tensors) == ["attn_norm", "attn_norm.0", "attn_norm.2", "attn_norm.3"]
    np.testing.assert_array_equal(dump.tensors["attn_norm.2"][0].load(), np.arange(51200.0).reshape(200, 256))


def test_its_names_of_llama_cpp_are_python() -> None:
    code = planned(FLASH, range(200), 0).text("llama.cpp", "ids.json", "-m a.gguf").split("\n\n")[1]
    compile(code, "llama", "exec")
    assert 'json.load(open("ids.json"))[:9]' in code and 'Llama("a.gguf"' in code and "for layer in (0, 2, 3)" in code
    for name in ("attn_norm", "q ", "hca_state_compress", "l_last-42", "l_last-1", "result_output"):
        assert name in code


def test_ds4s_own_dumps(capsys) -> None:
    text = planned(FLASH, range(200), 0).text("command:./ds4 -m f.gguf", "ids.json", "-m f.gguf")
    assert "for layer in 0 2 3 42; do" in text and "DS4_METAL_GRAPH_DUMP_LAYER=$layer ./ds4 -m f.gguf" in text


def test_an_unknown_ends_with_it(tmp_path, capsys, monkeypatch) -> None:
    """The text behind the table, and the plan in the JSON; no other verdict has one."""
    ids = PROMPTS["short"]()
    np.savez(tmp_path / "x.npz", ids=np.array(ids, np.int32), logits=engine().session(100).extend(ids))
    for verdict in ("unknown", "undecided"):
        found = Diagnosis(verdict, None, 0.9, 3, "exact", "none of these")
        monkeypatch.setattr(cli_diagnose, "run_diagnosis", lambda *args, found=found, **options: found)
        given = ["diagnose", "--logits", str(tmp_path / "x.npz")]
        assert cli.main(given) == 1
        text = capsys.readouterr().out
        assert cli.main([*given, "--json"]) == 1
        whole = json.loads(capsys.readouterr().out)
        if verdict == "unknown":
            assert whole["dump"]["layers"] == [2] and whole["dump"]["positions"] == [0, 23]
            assert "numpy.load(" in text and text.splitlines()[-1].startswith("ds4-vectors trace blame dump ")
        else:
            assert "dump" not in whole and "trace blame" not in text
