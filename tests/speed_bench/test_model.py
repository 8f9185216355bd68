"""The cost model against the figures of docs/explanation/model.md 13, and what is said about published rows."""

import json

import pytest

from ds4ref.archs.deepseek4.costs import Costs
from ds4ref.archs.deepseek4.shape import FLASH
from ds4ref.archs.report import describe
from ds4ref.costs import Peaks, Work
from ds4ref.errors import UsageError
from ds4ref.speed_bench import cli
from ds4ref.weights.gguf import GGUFFile

Q2 = Costs.of_recipe(FLASH, "q2")


def test_weight_bytes_are_those_of_the_specification():
    assert Q2.weight_bytes() == 9_559_118_244
    assert Costs.of_recipe(FLASH, "q4").weight_bytes() == 11_385_213_348
    assert Q2.weight_bytes(2048) == 9_559_118_244 - 363_331_584, "no indexer while nothing is deselected"
    assert Q2.weight_bytes(2052) == 9_559_118_244
    with pytest.raises(UsageError):
        Costs.of_recipe(FLASH, "q3")


def test_a_file_costs_what_the_report_says(nano_path):
    with GGUFFile.open(nano_path) as gguf:
        from ds4ref.archs.deepseek4.shape import ModelShape

        costs = Costs.of_file(gguf, ModelShape.from_metadata(gguf))
    assert costs.weight_bytes() == sum(describe(nano_path)["decode_read"].values())


def test_operations_a_token():
    """docs/explanation/model.md 13, GFLOP a token."""
    for depth, attention, scoring in ((128, 0.81, 0), (2048, 2.17, 0), (8192, 2.30, 0.70), (131072, 4.82, 11.3)):
        assert FLASH.attention_ops(depth) / 1e9 == pytest.approx(attention + scoring, rel=0.01)
    assert FLASH.attention_ops(1 << 20) / 1e9 == pytest.approx(23.6 + 90.2, rel=0.005)
    int8, f32, _ = Q2._matrix_ops(8192, 1.0)
    assert int8 / 1e9 == pytest.approx(9.20 + 12.99 + 2.16 + 1.06, abs=0.02)
    assert f32 / 1e9 == pytest.approx(0.61 + 0.16 + 0.36, abs=0.02)
    exact = Costs.of_recipe(FLASH, "q2", act_quant=False)
    assert exact.decode(2048).mixed_ops == Q2.decode(2048).int8_ops and exact.decode(2048).ops == Q2.decode(2048).ops


def test_prefill_reads_weights_once_a_chunk():
    one, two = Q2.prefill(0, 2048, 2048), Q2.prefill(0, 2048, 1024)
    whole = 43 * 1_811_939_328 + 9_559_118_244 - 1_826_095_104 - 363_331_584
    assert one.bytes == pytest.approx(whole, rel=0.005)
    assert two.bytes > 1.95 * one.bytes
    assert one.int8_ops == pytest.approx(two.int8_ops, rel=1e-9), "cutting differently does not change the work"
    few = Q2.prefill(0, 4, 2048)
    experts = 43 * 1_811_939_328 * (1 - (1 - 6 / 256) ** 4)
    assert few.bytes == pytest.approx(whole - 43 * 1_811_939_328 + experts, rel=0.005)


def test_whichever_takes_longer_binds():
    peaks = Peaks(read_gbs=10, int8_gops=100, f32_gflops=10)
    assert Work(20e9, 100e9, 5e9).bound(peaks) == Work(20e9, 0, 0).bound(peaks)
    found = Work(10e9, 100e9, 5e9).bound(peaks)
    assert (found.seconds, found.binds) == (1.5, "arithmetic")


def call(capsys, *argv):
    code = cli.main(["model", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_predictions(capsys):
    rows = json.loads(call(capsys, "--machine", "gb10", "--depths", "8192", "--json")[1])
    assert rows[0]["decode_tps"] == pytest.approx(28.4, abs=0.2) and rows[0]["decode_binds"] == "bytes"
    argv = "--gbs", "100", "--int8", "2000", "--f32", "900", "--depths", "1000,6000", "--json"
    rows, peaks = json.loads(call(capsys, *argv)[1]), Peaks(100, 2000, 900)
    for row, depth, first in zip(rows, (1000, 6000), (0, 3952), strict=True):
        decode, prefill = Q2.decode(depth), Q2.prefill(first, depth, 2048)
        assert row["depth"] == depth and row["decode_bytes"] == round(decode.bytes)
        assert row["decode_tps"] == pytest.approx(1 / decode.bound(peaks).seconds)
        assert row["prefill_tps"] == pytest.approx((depth - first) / prefill.bound(peaks).seconds)
        assert (row["decode_binds"], row["prefill_binds"]) == (decode.bound(peaks).binds, prefill.bound(peaks).binds)
    floats = Costs.of_recipe(FLASH, "q4", act_quant=False).decode(6000).bound(peaks)
    rows = json.loads(call(capsys, *argv, "--float", "--recipe", "q4")[1])
    assert rows[1]["decode_tps"] == pytest.approx(1 / floats.seconds)
    assert [row["depth"] for row in json.loads(call(capsys, "--gbs", "1", "--json")[1])] == [
        2048, 8192, 32768, 65536, 131072, 1048576
    ]  # fmt: skip


def test_this_machine_and_a_file(capsys, nano_path, private_store):
    code, out, _ = call(capsys, "--machine", "here", "-m", nano_path, "--depths", "64,512")
    assert code == 0 and len(out.splitlines()) == 3 and private_store.exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--machine", "abacus"], "choose from m2-ultra"),
        (["--machine", "h200", "--gbs", "3"], "choose one of --machine and --gbs"),
        (["--int8", "3"], "a machine is needed"),
        ([], "a machine is needed"),
        (["--gbs", "1", "--depths", "1,x"], "invalid value for --depths: 1,x"),
        (["--gbs", "0"], "invalid value for --gbs"),
    ],
)
def test_mistakes(capsys, argv, message):
    code, out, err = call(capsys, *argv)
    assert code == 2 and out == "" and message in err and err.count("\n") == 1


def test_measured_peaks_are_plausible():
    """Really measured: at least one thousandth of a desktop's, and two threads at least as fast as one."""
    from ds4ref.kernels.cpu.peaks import measure

    one, two = measure(1, megabytes=64, rounds=2), measure(2, megabytes=64, rounds=2)
    for name, least in (("read_gbs", 0.5), ("int8_gops", 1.0), ("f32_gflops", 0.5)):
        assert least < one[name] < 1e5 and two[name] > 0.9 * one[name]
