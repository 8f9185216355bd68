"""The sweep on endpoints and on ds4-bench binaries."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ds4ref.cancellation import Cancellation
from ds4ref.errors import Cancelled
from ds4ref.runs.compare import compare
from ds4ref.runs.results import COLUMNS, read_rows
from ds4ref.runs.store import Measured, Store
from ds4ref.speed_bench import cli
from ds4ref.speed_bench import endpoint as module
from ds4ref.speed_bench.endpoint import StreamedAnswer
from ds4ref.speed_bench.load import depths
from ds4ref.targets import Completion, Usage
from ds4ref.targets.openai import HttpTarget

from .server import TEMPLATE, Endpoint, scripted, served

ROOT = Path(__file__).resolve().parents[2]
WALK = ["--ctx-start", "64", "--ctx-max", "256", "--step-mul", "2", "-n", "5"]


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_server_that_does_not_count_has_made_what_it_was_asked_for():
    """Tokens without text bring no piece."""
    for finish, tokens in (("length", 16), ("stop", 3)):
        done = Completion("", usage=Usage(), arrivals=(0.5, 0.7, 1.0), finish=finish)
        assert StreamedAnswer(0.0, done, 64, 16).tokens == tokens


def test_an_endpoint_is_swept(capsys, private_store, monkeypatch):
    endpoint = Endpoint(delay=0.002)
    scripted(monkeypatch, fake=endpoint)
    assert cli.main([*WALK, "--target", "http://fake/v1", "-r", "2", "--csv", "s.csv", "--plot", "s.svg"]) == 0
    rows = read_rows("s.csv")
    assert [row["ctx_tokens"] for row in rows] == [64, 128, 256]
    assert {row["kvcache_bytes"] for row in rows} == {None}, "no endpoint tells the size of its cache"
    for row in rows:
        assert row["prompt_tokens"] == pytest.approx(row["ctx_tokens"], abs=2), "depths by the server's own count"
        assert row["gen_tokens"] == 5 and row["reps"] == 2 and row["cached_tokens"] == 0 and row["streams"] == 1
        assert row["fairness"] == 1 and row["gen_tps"] == pytest.approx(500)
    text = capsys.readouterr().out
    assert "backend http" in text and "TTFT ms" in text and "prefill share" not in text
    facts = json.loads(Path("s.json").read_text())
    assert facts["model"]["name"] == "fake" and facts["target"]["kind"] == "http" and len(facts["prompt_sha256"]) == 64
    with Store.open(private_store) as store:
        kept = store.find("latest")
        assert kept.status == "complete" and len(store.rows(kept.id)) == 6
    prompts = [body["prompt"] for _, body in endpoint.bodies]
    nonces = {prompt.partition("\n")[0] for prompt in prompts}
    assert len(nonces) == len(prompts) == 2 + 6 and all(len(nonce) == 16 for nonce in nonces)
    assert {path for path, _ in endpoint.bodies} == {"/v1/completions"}
    assert all(body["temperature"] == 0 for _, body in endpoint.bodies)


def test_a_wish_to_stop_ends_a_stream(monkeypatch):
    endpoint = Endpoint()
    scripted(monkeypatch, fake=endpoint)
    with HttpTarget("http://fake/v1") as target:
        swept = module.Endpoint(target, "One two three four. " * 200)
        swept.calibrate()
        assert [body["max_tokens"] for _, body in endpoint.bodies] == [1, 1], "only the count of the prompt is wanted"
        cancel, events = Cancellation(), endpoint.events

        def stopped(*args):
            for number, event in enumerate(events(*args)):
                if number == 3:
                    cancel.press()
                yield event

        endpoint.events = stopped
        with pytest.raises(Cancelled):
            next(depths(swept, [64], 5, 1, cancel=cancel))


@pytest.mark.thorough
def test_streams_at_once_are_targets(capsys):
    with served(Endpoint(slots=2, delay=0.01)) as base:
        assert cli.main([*WALK, "--target", base, "--concurrency", "1-4*4", "--csv", "c.csv"]) == 0
    one, four = read_rows("c-1-stream.csv"), read_rows("c-4-streams.csv")
    assert {row["streams"] for row in one} == {1} and {row["streams"] for row in four} == {4}
    assert all(row["fairness"] < 0.97 for row in four), "two of four had to wait"
    facts = json.loads(Path("c-4-streams.json").read_text())
    assert facts["arms"]["options"] == "4 streams" and facts["walk"]["streams"] == 4


def test_chat_and_its_options():
    endpoint = Endpoint()
    Path("turn.txt").write_text("One two three. " * 100)
    with served(endpoint) as base:
        argv = [*WALK, "--target", base, "--chat-prompt-file", "turn.txt", "-o", "csv"]
        assert cli.main(argv) == 0
    path, body = endpoint.bodies[-1]
    assert path == "/v1/chat/completions" and body["ignore_eos"] is True
    assert [m["role"] for m in body["messages"]] == ["system", "user"] and "One two three" in body["messages"][1][
        "content"
    ]
    assert sum(len(m["content"]) for m in body["messages"]) // 4 + TEMPLATE == pytest.approx(256, abs=2)


EXACT = {"ignore_eos": True, "min_tokens": 5}
NOTHING: dict[str, object] = {}


@pytest.mark.parametrize("more, unknown, reply, sent, dropped", [
    ([], (), "", EXACT, ""),
    (["--api", "chat"], (), "", EXACT, ""),
    ([], ("ignore_eos", "min_tokens"), "body.{}: Extra inputs are not permitted", NOTHING, "ignore_eos, min_tokens"),
    ([], ("min_tokens",), "Unrecognized request argument supplied: {}", {"ignore_eos": True}, "min_tokens"),
    ([], ("ignore_eos", "min_tokens"), "bad request", NOTHING, "ignore_eos, min_tokens"),
    (["--dialect", "vllm"], ("ignore_eos", "min_tokens"), "unknown field {}", NOTHING, "ignore_eos, min_tokens"),
    (["--dialect", "vllm"], (), "", EXACT, ""),
    (["--dialect", "openai"], (), "", NOTHING, ""),
    (["--dialect", "plain"], (), "", NOTHING, ""),
])  # fmt: skip
def test_answers_of_an_exact_length(more, unknown, reply, sent, dropped, monkeypatch, capsys):
    """Asked for by default; what a server refuses is said once, and costs no request that is timed."""
    endpoint = Endpoint()
    endpoint.unknown, endpoint.reply = unknown, reply
    asked = scripted(monkeypatch, fake=endpoint)
    assert cli.main([*WALK, "--target", "http://fake/v1", *more, "-r", "2", "--no-store", "-o", "csv"]) == 0
    timed = [body for _, body in endpoint.bodies if body["stream"]]
    assert len(timed) == 6 and all({k: v for k, v in body.items() if k in EXACT} == sent for body in timed)
    err = capsys.readouterr().err
    assert err.count("refuses") == (1 if dropped else 0)
    assert f"http://fake/v1 refuses {dropped}: its answers may end early" in err or not dropped
    assert len(asked) - len(endpoint.bodies) <= 2, "refusals come before anything is timed"


@pytest.mark.parametrize("kind, says", [
    ({"cached": 0.9}, "from a cache although every prompt is new"),
    ({"usage": "never"}, "does not report prompt tokens"),
])  # fmt: skip
def test_endpoints_that_cannot_be_measured(kind, says, capsys):
    with served(Endpoint(**kind)) as base:
        argv = ["--ctx-start", "256", "--ctx-max", "256", "-n", "2", "--target", base, "--no-store"]
        assert cli.main(argv) == 1
    err = capsys.readouterr().err
    assert says in err and "Traceback" not in err


def test_two_endpoints_take_turns(private_store, monkeypatch):
    asked = scripted(monkeypatch, fast=Endpoint(delay=0.001), slow=Endpoint(delay=0.004))
    argv = [*WALK, "--target", "http://fast/v1", "--target", "http://slow/v1", "-r", "4", "-o", "csv"]
    assert cli.main(argv) == 0
    turns = "".join(host[0] for host in asked[4:])  # behind two calibrating requests each
    assert turns == 2 * ("fssffs" + "sffssf"), "A B, B A, ... at every depth"
    with Store.open(private_store) as store:
        runs = [Measured(run, store.rows(run.id)) for run in reversed(store.runs(kind="bench"))]
    found = compare(runs[0], runs[1])
    assert found.design == "in turn" and found.findings[1].verdict == "worse"
    ratios = [ratio for _, metric, ratio in found.depths if metric == found.findings[1].metric]
    assert ratios == pytest.approx([1 / 4] * 3, rel=1e-3)


@pytest.mark.parametrize("more, files", [
    ([], ["t-a.csv", "t-b.csv"]),
    (["--concurrency", "1,2"], ["t-a-1-stream.csv", "t-a-2-streams.csv", "t-b-1-stream.csv", "t-b-2-streams.csv"]),
])  # fmt: skip
def test_files_of_two_targets(more, files, monkeypatch, tmp_path):
    scripted(monkeypatch, one=Endpoint(), two=Endpoint())
    argv = [*WALK, "--target", "http://one/v1", "--target", "http://two/v1", "-r", "1", "--csv", "t.csv", "--no-store"]
    assert cli.main([*argv, *more]) == 0
    assert sorted(path.name for path in tmp_path.glob("*.csv")) == files


# --- a ds4-bench binary

HEADER = ",".join(COLUMNS)


def script(tmp_path, text):
    path = tmp_path / "fake-bench"
    path.write_text(f"#!{sys.executable}\nimport sys, time\n{text}")
    path.chmod(0o755)
    return f"command:{path} -m none.gguf --cuda"


ROWS = f"""
print("{HEADER}", flush=True)
at = int(sys.argv[sys.argv.index("--ctx-start") + 1])
open("seen.txt", "w").write("\\n".join(sys.argv[1:]))
prompt = open(sys.argv[sys.argv.index("--prompt-file") + 1]).read()
assert len(prompt) > 1000
for depth in (at, 2 * at, 4 * at):
    print(f"{{depth}},{{at}},100.00,5,20.00,{{23995788 + 13764 * depth}}", flush=True)
"""


def test_a_binary_is_swept(tmp_path, capsys, private_store):
    argv = [*WALK[:-1], "5", "--target", script(tmp_path, ROWS), "-r", "2", "--csv", "b.csv"]
    assert cli.main(argv) == 0
    rows = read_rows("b.csv")
    assert [(row["ctx_tokens"], row["prefill_tps"], row["gen_tps"], row["reps"]) for row in rows] == [
        (depth, 100, 20, 2) for depth in (64, 128, 256)
    ]
    seen = Path("seen.txt").read_text().splitlines()
    assert seen[:3] == ["-m", "none.gguf", "--cuda"] and seen[seen.index("--step-mul") + 1] == "2"
    assert seen[seen.index("--gen-tokens") + 1] == "5" and seen[seen.index("--ctx-alloc") + 1] == "262"
    facts = json.loads(Path("b.json").read_text())
    assert facts["backend"] == "binary" and facts["model"]["file"] == "none.gguf"
    with Store.open(private_store) as store:
        assert len(store.rows(store.find("b").id)) == 6


def test_our_own_command_as_binary(capsys, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = f"command:{sys.executable} -m ds4ref.speed_bench.cli --no-store --backend reference -r 1"
    walk = ["--ctx-start", "4", "--ctx-max", "8", "--step-incr", "4", "-n", "1", "-r", "1"]
    assert cli.main([*walk, "--target", command]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == ["ctx_tokens", "4", "8"]


@pytest.mark.parametrize("text, says", [
    ("print('no model', file=sys.stderr); sys.exit(1)", "exited with 1: no model"),
    (f"print('{HEADER}'); print('64,64,1.00,5,1.00,1')", "wrote 1 of 3 rows"),
    ("print('hello')", "missing CSV column"),
    (ROWS + "print('too late', file=sys.stderr); sys.exit(3)", "exited with 3: too late"),
    (f"print('{HEADER}'); print('64,64,fast,5,1.00,1')", "prefill_tps is 'fast'"),
])  # fmt: skip
def test_binaries_that_fail_are_one_line(text, says, tmp_path, capsys):
    assert cli.main([*WALK, "--target", script(tmp_path, text), "--no-store"]) == 1
    err = capsys.readouterr().err.splitlines()
    assert says in err[-1] and err[-1].startswith("ds4-bench: ")


def test_ctrl_c_keeps_the_rows_of_a_binary(tmp_path, private_store):
    slow = script(tmp_path, ROWS.replace("    print(f", "    time.sleep(0.3 if depth == at else 60); print(f"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "ds4ref.speed_bench.cli", *WALK, "--target", slow, "-r", "1"]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ctx_tokens") and process.stdout.readline().startswith("64,")
    time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130 and "1 of 3 rows were measured and saved" in err
    with Store.open(private_store) as store:
        assert store.find("latest").status == "stopped"
