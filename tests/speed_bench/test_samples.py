"""From measured rows to what is kept and shown: times, shares of the bound, tables, predictions, rests."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest

from ds4ref.archs.deepseek4.costs import Costs
from ds4ref.archs.deepseek4.shape import FLASH
from ds4ref.costs import Peaks
from ds4ref.nano.recipe import NANO
from ds4ref.runs.columns import summaries
from ds4ref.speed_bench import cli, runner
from ds4ref.speed_bench import sweep as module
from ds4ref.speed_bench.model import published
from ds4ref.speed_bench.probes import Probe
from ds4ref.speed_bench.published import MACHINES, ROWS
from ds4ref.speed_bench.samples import sample
from ds4ref.speed_bench.sweep import SweepRow, run_probes, sweep
from ds4ref.speed_bench.table import print_table

from .fake import EVAL_S, PICK_S, PREFILL_S, Clock, FakeSession

COSTS = Costs.of_recipe(NANO, "q2")
PEAKS = Peaks(read_gbs=10, int8_gops=100, f32_gflops=50)
ROW = SweepRow(96, 32, 0.5, (0.25, 0.125, 0.125), 7000, (4, 5, 6), rep=2, at=107.5, rss_bytes=9)


def test_a_sample_keeps_what_was_measured():
    found = sample(ROW, start=100.0)
    assert found["rep"] == 2 and found["at"] == 7.5 and found["steps_s"] == [0.25, 0.125, 0.125]
    assert (found["ctx_tokens"], found["prefill_tokens"], found["gen_tokens"]) == (96, 32, 3)
    assert (found["prefill_tps"], found["gen_tps"], found["gen_steady_tps"]) == (64, 6, 8)
    assert found["gen_first_ms"] == 250 and found["rss_bytes"] == 9 and "decode_share" not in found
    assert sample(SweepRow(1, 1, 1.0, (), 1, ()))["at"] == 0 and sample(SweepRow(1, 1, 1.0, (), 1, ()))["rep"] == 0


def test_shares_are_bounds_over_what_was_measured():
    """Decode is judged in the middle of its tokens, prefill over its own interval."""
    found = sample(ROW, COSTS, PEAKS)
    decode, prefill = COSTS.decode(97), COSTS.prefill(64, 96)
    assert found["decode_bytes"] == round(decode.bytes) and found["decode_gbs"] == decode.bytes * 6 / 1e9
    assert found["decode_share"] == pytest.approx(decode.bound(PEAKS).seconds / (0.5 / 3))
    assert found["prefill_share"] == pytest.approx(prefill.bound(PEAKS).seconds / 0.5)
    binds = found["decode_binds"], found["prefill_binds"]
    assert binds == (decode.bound(PEAKS).binds, prefill.bound(PEAKS).binds)
    assert found["cache_bytes_per_token"] == NANO.kv_bytes(96) / 96
    assert "decode_share" not in sample(ROW, COSTS) and sample(ROW, COSTS)["decode_gbs"] > 0
    alone = sample(SweepRow(96, 32, 0.5, (), 1, ()), COSTS, PEAKS)
    assert "decode_share" not in alone and "decode_bytes" not in alone and alone["prefill_share"] > 0
    assert "prefill_share" not in sample(SweepRow(96, 0, 0.0, (0.5,), 1, ()), COSTS, PEAKS)


def test_rows_know_when_and_in_which_repetition(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module.time, "perf_counter", clock)
    tokens = list(range(2, 42))
    rows = list(sweep(FakeSession(clock, 64), tokens, (10, 20), 2, 1))
    assert [(row.rep, row.at) for row in rows][0] == (0, 0.0) and rows[1].at > rows[0].prefill_s
    assert [row.rep for row in sweep(FakeSession(clock, 64), tokens, (10,), 2, 1, rep=3)] == [3]


def test_probes_measure_their_part_alone(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module.time, "perf_counter", clock)
    probes, told = [Probe(8, 0, 0), Probe(8, 0, 4), Probe(0, 3, 0), Probe(0, 3, 5)], []
    make, tokens = (lambda: FakeSession(clock, 64)), list(range(2, 42))
    rows = list(run_probes(make, tokens, probes, 1, rep=1, progress=lambda *pair: told.append(pair)))
    assert [row.test for row in rows] == ["pp8", "pp8 @ d4", "tg3", "tg3 @ d5"] and {row.rep for row in rows} == {1}
    assert [(row.ctx_tokens, row.prefill_tokens, row.gen_tokens) for row in rows] == [
        (8, 8, 0), (12, 8, 0), (1, 0, 3), (5, 0, 3)
    ]  # fmt: skip
    assert [row.prefill_s for row in rows[:2]] == [8 * PREFILL_S] * 2 and told == [(i, 4) for i in range(4)]
    assert all(row.steps_s == (PICK_S + EVAL_S,) * 3 for row in rows[2:])
    assert [probe.needed for probe in probes] == [8, 12, 1, 5]


# --- shown


def table(entries, **facts) -> str:
    known = {"model": {"name": "M", "file": "m.gguf"}, "machine": {"cpu": "Chip", "cores": 4}, "backend": "cpu",
             "numerics": "qat", "threads": 3}  # fmt: skip
    out = io.StringIO()
    print_table(entries, known | facts, "A", out)
    return out.getvalue()


def test_a_table_for_people():
    other = SweepRow(192, 96, 0.5, (0.5,), 3 << 20, (1,))
    text = table(summaries([sample(ROW, COSTS, PEAKS)] * 2 + [sample(other)]))
    assert "A · M · backend cpu, numerics qat" in text and "3 thread(s) on Chip, 4 cores" in text
    assert "medians of 2 repetitions" in text
    first, second = (line.split() for line in text.splitlines() if line.lstrip("│ ").startswith(("96", "192")))
    assert [x for x in first if x != "│"][:4] == ["96", "64.0", "6.00", "250.0"]
    assert [x for x in second if x != "│"][:4] == ["192", "192.0", "2.00", "500.0"] and "3.00" in second
    assert "share" in text and "fairness" not in text and "p95" not in text, "columns that hold something"


def test_a_table_of_somebody_elses_engine():
    entries = summaries([{"ctx_tokens": 64, "prefill_tps": 10.0, "gen_tps": 0.0, "test": "pp64"}])
    text = table(entries, model={"name": None, "file": "m.gguf"}, numerics=None, threads=None)
    assert "A · m.gguf · backend cpu\n" in text.replace(" \n", "\n").replace("  ", "") and "numerics" not in text
    assert "from Chip" in text and "repetitions" not in text and "decode t/s" not in text and "pp64" in text


# --- predictions


def test_predictions_are_those_of_the_cost_model(capsys):
    argv = ["model", "--gbs", "100", "--int8", "2000", "--f32", "900", "--depths", "1000,6000", "--json"]
    assert cli.main(argv) == 0
    rows, peaks = json.loads(capsys.readouterr().out), Peaks(100, 2000, 900)
    costs = Costs.of_recipe(FLASH, "q2")
    for row, depth, first in zip(rows, (1000, 6000), (0, 3952), strict=True):
        decode, prefill = costs.decode(depth), costs.prefill(first, depth, 2048)
        assert row["depth"] == depth and row["decode_bytes"] == round(decode.bytes)
        assert row["decode_tps"] == pytest.approx(1 / decode.bound(peaks).seconds)
        assert row["prefill_tps"] == pytest.approx((depth - first) / prefill.bound(peaks).seconds)
        assert (row["decode_binds"], row["prefill_binds"]) == (decode.bound(peaks).binds, prefill.bound(peaks).binds)
    assert cli.main([*argv, "--float", "--recipe", "q4"]) == 0
    floats = Costs.of_recipe(FLASH, "q4", act_quant=False).decode(6000).bound(peaks)
    assert json.loads(capsys.readouterr().out)[1]["decode_tps"] == pytest.approx(1 / floats.seconds)


def test_published_rows_in_terms_of_their_bound():
    rows = published()
    for row, said in zip(rows, ROWS, strict=True):
        costs = Costs.of_recipe(FLASH, said.recipe)
        least = costs.decode(said.depth).bytes / (1e9 * MACHINES[said.machine].read_gbs)
        assert row["bound_tps"] == pytest.approx(1 / least) and row["share"] == pytest.approx(said.decode_tps * least)
        if said.prefill_tps is None:
            assert row["prefill_tops"] is None
            continue
        count = min(2048, said.depth)
        work = costs.prefill(said.depth - count, said.depth, 2048)
        assert row["prefill_tops"] == pytest.approx((work.int8_ops + work.f32_ops) / count * said.prefill_tps / 1e12)


def test_a_rest_lasts_as_long_as_asked_unless_stopped(monkeypatch):
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: 5.0 + sum(slept), sleep=slept.append)
    monkeypatch.setattr(runner, "time", clock)
    runner.sleep_between(0.75, lambda: False)
    assert sum(slept) == pytest.approx(0.75) and max(slept) <= 0.1, "in short naps, so that Ctrl-C is heard"
    slept.clear()
    runner.sleep_between(10.0, lambda: sum(slept) > 0.25)
    assert sum(slept) < 0.5
