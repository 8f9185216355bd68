"""The embedded model: files made of its weights at first use, kept, made again if damaged; its command."""

from pathlib import Path

import numpy as np
import pytest

from ds4ref.archs.deepseek4.tensors import mtp_slots
from ds4ref.cli import quantize
from ds4ref.cli.ds4 import main
from ds4ref.engine import Engine
from ds4ref.errors import DataError, ModelFileError
from ds4ref.nano import dspark_path, embedded_path, mtp_path, trained
from ds4ref.nano.train.shape import SHAPE
from ds4ref.nano.trained import FOLDER_KEY, RECIPES, weights_folder
from ds4ref.weights import open_source

ROOT = Path(__file__).resolve().parents[2]
EXPERTS = {"f16": ("F16", "F16"), "q4": ("Q4_K", "Q4_K"), "q2": ("IQ2_XXS", "Q2_K"), "q2-plain": ("IQ2_XXS", "Q2_K"),
           "fp8": ("MXFP4", "MXFP4")}  # fmt: skip


@pytest.fixture
def made(own_cache, monkeypatch):
    """An empty cache, and every file that is made, by name."""
    names = []
    for making in ("_make_file", "_make_mtp", "_make_published"):
        real = getattr(trained, making)
        monkeypatch.setattr(
            trained, making, lambda path, *rest, real=real: (names.append(path.name), real(path, *rest))
        )
    return names


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_is_made_once_and_runs(made, recipe):
    path = embedded_path(recipe)
    assert embedded_path(recipe) == path and made == [Path(path).name]
    with open_source(path) as source:
        formats = [source.tensors[f"blk.1.ffn_{kind}_exps.weight"].fmt.name for kind in ("gate", "down")]
        assert formats == list(EXPERTS[recipe])
        assert ("quantize.imatrix.entries_count" in source.metadata) == (recipe == "q2")
    with Engine.open(path, threads=1) as engine:
        assert engine.shape == SHAPE
        assert np.isfinite(engine.logits("A word.")).all()


def test_a_damaged_folder_is_made_again(own_cache):
    config = Path(embedded_path("fp8")) / "config.json"
    whole = config.read_bytes()
    config.write_bytes(b"{}")
    assert embedded_path("fp8") == str(config.parent) and config.read_bytes() == whole


@pytest.mark.parametrize("damage", ["flip", "delete", "digest"])
def test_damage_is_repaired(made, damage):
    path = Path(embedded_path("f16"))
    whole = path.read_bytes()
    if damage == "flip":
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif damage == "delete":
        path.unlink()
    else:
        path.with_name(path.name + ".digest").write_bytes(b"\xff")
    assert embedded_path("f16") == str(path)
    assert path.read_bytes() == whole and len(made) == 2


@pytest.mark.parametrize("recipe", ["f16", "fp8"])
def test_what_fails_leaves_nothing(own_cache, monkeypatch, recipe):
    from ds4ref.weights import safetensors_writer
    from ds4ref.weights.quantize.part import PartFile

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(PartFile, "_write_at", fail)
        patch.setattr(safetensors_writer, "atomic_write", fail)
        with pytest.raises((DataError, ModelFileError), match="cannot write.*No space left") as error:
            embedded_path(recipe)
        assert "\n" not in str(error.value)
    assert {path.suffix for path in own_cache.iterdir() if path.name != "kernels"} == {".lock"}
    embedded_path(recipe)


def test_missing_weights_are_one_clear_line(own_cache, monkeypatch, tmp_path):
    monkeypatch.setenv(FOLDER_KEY, str(tmp_path / "none"))
    with pytest.raises(DataError, match="weights are missing: no config.json in .*none$"):
        embedded_path()
    monkeypatch.delenv(FOLDER_KEY)
    monkeypatch.setattr(trained, "FOLDER", tmp_path / "gone")
    with pytest.raises(DataError, match="in .*gone; DS4_NANO_WEIGHTS can name another folder$"):
        embedded_path()


@pytest.mark.parametrize("recipe", ["f16", "q2"])
def test_multi_token_prediction_is_a_file_beside(own_cache, recipe):
    with open_source(mtp_path(recipe)) as source:
        slots = mtp_slots(SHAPE)
        assert len(slots) == 32
        assert {name: info.dims for name, info in source.tensors.items()} == {slot.name: slot.dims for slot in slots}
        assert all(source.tensors[slot.name].fmt.name in slot.fmts for slot in slots)
        formats = {name.removeprefix("mtp.0."): info.fmt.name for name, info in source.tensors.items()}
        assert formats["enorm.weight"] == formats["exp_probs_b.bias"] == formats["hc_head_base.weight"] == "F32"
        assert formats["e_proj.weight"] == formats["attn_q_a.weight"] == ("F16" if recipe == "f16" else "Q8_0")
        assert (formats["ffn_gate_exps.weight"], formats["ffn_down_exps.weight"]) == EXPERTS[recipe]
        assert not any(key.startswith("tokenizer.") for key in source.metadata)


def test_the_command_prints_paths(trained_path, nano_path, capsys):
    for arguments, expected in ((["path"], trained_path), (["path", "--recipe", "f16"], embedded_path("f16")),
                                (["path", "--mtp-block"], mtp_path()), (["dspark"], dspark_path()),
                                (["random"], nano_path)):  # fmt: skip
        assert main(["nano", *arguments]) == 0
        assert capsys.readouterr().out == f"{expected}\n"


def test_its_drafter_is_a_small_file_that_commands_find(capsys):
    assert Path(dspark_path()).stat().st_size < 2_000_000
    texts = []
    for kind in ("off", "dspark"):
        assert (
            main(["-p", "Tell a story about Ian.", "--draft", kind, "--mtp-draft", "5", "--temp", "0", "-n", "40"]) == 0
        )
        texts.append(capsys.readouterr())
    assert texts[0].out == texts[1].out and "guessed" in texts[1].err and "guessed" not in texts[0].err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["path", "--recipe", "q3"], "unknown recipe 'q3': choose from f16, q4, q2, q2-plain, fp8"),
        (["path", "--recipe", "fp8", "--mtp-block"], "no recipe fp8"),
        (["random", "x"], "unexpected argument: x"),
        (["slice", "--mtp-block"], "--mtp-block works only with ds4 nano path"),
        (["slice", "--layers", "99"], "layers must be 1 to 43"),
        (["slice", "--recipe", "q3"], "choose from q2, q4"),
        (["checkpoint"], "needs an output folder"),
        (["fetch"], "choose from"),
    ],
)
def test_the_command_refuses_in_one_line(capsys, arguments, message):
    assert main(["nano", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_quantize_writes_the_same_block(tmp_path, capsys):
    """``ds4-quantize FOLDER --mtp-block``, for any published folder."""
    out = tmp_path / "mtp.gguf"
    assert quantize.main([str(weights_folder()), "--mtp-block", "-o", str(out), "--recipe", "q4"]) == 0
    assert out.read_bytes() == Path(mtp_path("q4")).read_bytes()
    assert quantize.main([mtp_path("q4"), "--mtp-block", "-o", str(tmp_path / "b.gguf")]) == 2
    assert "--mtp-block reads a published folder" in capsys.readouterr().err
    assert quantize.main([embedded_path("fp8"), "--mtp-block", "-o", str(tmp_path / "b.gguf")]) == 1
    assert "has no drafter" in capsys.readouterr().err
