"""``ds4-server`` as a process: flags, what is found wrong before the model is loaded, signals."""

from __future__ import annotations

import re
import signal
import socket
import stat
from types import SimpleNamespace

import httpx2
import numpy as np
import pytest

from ds4ref.cli import server
from ds4ref.engine import Engine
from ds4ref.errors import UsageError
from ds4ref.nano import embedded_path
from ds4ref.server.plain import Plain
from ds4ref.server.turn import Turn
from ds4ref.text.chat import Message
from ds4ref.weights.source import Metadata

from ..server.process import process

SPEC = {
    # flag: how it is spelled with a value, of the reference (server.md 11)
    "-m": "x", "--model": "x", "-c": "64", "--ctx": "64", "-n": "5", "--tokens": "5", "-t": "1", "--threads": "1",
    "--backend": "cpu", "--host": "127.0.0.1", "--port": "80", "--trace": "x",
}  # fmt: skip


def parsed(*argv):
    return server.build_parser().parse(list(argv))


def test_flags_of_the_reference_are_there_or_explained():
    for flag, value in SPEC.items():
        assert parsed(flag, value)
    assert parsed("--cors").cors and parsed("--cpu").backend == "cpu" and parsed("--warm-weights").warm_weights
    for flag in (
        "--mtp", "--mtp-draft", "--mtp-margin", "--dir-steering-file", "--dir-steering-ffn", "--dir-steering-attn",
        "--metal", "--cuda", "--quality", "--kv-disk-dir", "--kv-disk-space-mb", "--kv-cache-min-tokens",
        "--kv-cache-cold-max-tokens", "--kv-cache-continued-interval-tokens", "--kv-cache-boundary-trim-tokens",
        "--kv-cache-boundary-align-tokens", "--kv-cache-reject-different-quant", "--disable-exact-dsml-tool-replay",
        "--tool-memory-max-ids", "--chdir",
    ):  # fmt: skip
        known = flag in server.build_parser()._option_string_actions
        assert known != (flag in server.UNAVAILABLE), flag


def test_defaults_are_those_of_the_reference():
    args = parsed()
    assert (args.host, args.port, args.tokens) == ("127.0.0.1", 8000, 393216)
    assert args.ctx is None and args.streams == 16, "not the reference's: 32768, and one at a time"
    assert not args.cors and args.trace is None
    assert args.kv_cache_min_tokens == 512 and args.kv_disk_dir is None and args.kv_disk_space_mb == 4096


@pytest.mark.parametrize(
    "argv",
    [
        ["--port", "70000"], ["--port", "x"], ["--ctx", "0"], ["--frobnicate"], ["serve"], ["--streams", "0"],
        ["--log-format", "xml"], ["--mtp-draft", "0"], ["--host"],
        ["--kv-disk-space-mb", "0"], ["--kv-cache-min-tokens", "0"], ["--kv-cache-min-tokens", "30001"],
    ],
)  # fmt: skip
def test_wrong_usage(argv, capsys):
    assert server.main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("ds4-server: ") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--host", "0.0.0.0"], "--insecure"),
        (["--host", "no.such.host.invalid"], "--host"),
        (["--key-env", "DS4_NO_SUCH_VARIABLE"], "empty"),
    ],
)
def test_what_is_unsafe_is_refused(argv, words, capsys):
    assert server.main([*argv, "-m", "/no/such/model"]) == 2
    assert words in capsys.readouterr().err


def test_what_cannot_work_fails_before_the_model_is_loaded(tmp_path, capsys):
    model = ["-m", str(tmp_path / "none.gguf")]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert server.main(["--port", str(taken.getsockname()[1]), *model]) == 1
        assert "cannot listen on http://127.0.0.1:" in capsys.readouterr().err
    assert server.main(["--port", "0", "--trace", str(tmp_path / "no" / "trace"), *model]) == 1
    assert "cannot write" in capsys.readouterr().err
    assert server.main(["--port", "0", *model]) == 1
    assert "cannot open the model" in capsys.readouterr().err


def test_the_key_from_the_environment(monkeypatch):
    monkeypatch.setenv("MY_KEY", " secret\n")
    assert server.key_of(parsed("--key-env", "MY_KEY")) == "secret"
    assert server.key_of(parsed()) == ""
    for key in ("\u00e4", "a\x07b"):
        monkeypatch.setenv("MY_KEY", key)
        with pytest.raises(UsageError, match="printable ASCII"):
            server.key_of(parsed("--key-env", "MY_KEY"))


def test_settings():
    how = server.settings(parsed("--allow-host", "box.lan,Other:80"), "k")
    assert how.access.hosts == {"127.0.0.1", "box.lan", "other"} and how.access.key == "k"


@pytest.mark.parametrize(
    ("name", "shown"),
    [("SmolLM2 135M\n\x1b[31mInstruct", "SmolLM2 135M [31mInstruct"), ("", "llama (small.gguf)"),
     (7, "llama (small.gguf)")],
)  # fmt: skip
def test_the_model_is_called_what_it_is(name, shown):
    """Its id is what clients ask for; people read what was loaded, also of a model without a name."""
    named = ("general.name", "u32" if name == 7 else "string", name)
    source = SimpleNamespace(metadata=Metadata([("general.architecture", "string", "llama"), named]), path="small.gguf")
    how = server.facts(server.settings(parsed(), ""), SimpleNamespace(path=source.path, source=source))
    plain = Plain(SimpleNamespace(settings=how, ctx=64, max_tokens=64))
    model, entry = plain._model(), plain._catalogue()
    assert [model["id"], entry["slug"]] == ["deepseek-v4-flash"] * 2
    assert [model["name"], model["display_name"], entry["display_name"]] == [shown] * 3


def test_reasoning_before_demanded_answers_may_be_kept_short(nano_path):
    turn = Turn("chat", messages=(Message("user", "Hi"),), format='{"type":"string"}')
    with Engine.open(nano_path, backend="reference", threads=1) as engine:
        close = engine.tokenizer.think_close
        for flags, allowed in (((), 1000), (("--form-thinking", "7"), 7)):
            args = parsed("-c", "512", *flags)
            service = server.make_service(engine, args, server.settings(args, ""))
            try:
                guide = service.worker.constrain(turn, engine.tokenizer)
                reasoning = SimpleNamespace(thinking=True, tokens=[5] * 6)
                logits = np.zeros(len(engine.tokenizer), np.float32)
                assert guide(reasoning, logits) is not close
                reasoning.tokens.append(5)
                picked = guide(reasoning, logits)
                assert (isinstance(picked, int) and picked == close) is (allowed == 7)
            finally:
                service.worker.shut_down(5)
                service.close()


def engine_of(kv_bytes_a_token, **ops):
    shape = SimpleNamespace(kv_bytes=lambda tokens: kv_bytes_a_token * tokens)
    return SimpleNamespace(shape=shape, model=SimpleNamespace(ops=SimpleNamespace(**ops)))


@pytest.mark.parametrize(
    ("a_token", "memory", "wanted"),
    [(1024, 1 << 30, 65536), (1025, 1 << 30, 32768), (1024, (1 << 30) - 1, 32768), (10**9, 1 << 30, 32768),
     (1024, None, 32768)],
)  # fmt: skip
def test_the_context_is_what_memory_allows(monkeypatch, a_token, memory, wanted):
    """Qwen Code begins with 40,719 tokens (clients.md 6)."""
    monkeypatch.setattr("ds4ref.environment.memory_bytes", lambda: memory)
    assert server.default_ctx(engine_of(a_token)) == wanted
    if memory is not None:
        monkeypatch.setattr("ds4ref.environment.memory_bytes", lambda: 0)
        device = SimpleNamespace(room=lambda: memory)
        assert server.default_ctx(engine_of(a_token, memory=device)) == wanted, "a device has its own"


# --- a process


def test_the_embedded_model_says_what_it_is_and_ends(tmp_path):
    """Without a limit a request gets 512 tokens at most; one that names more gets more. The context holds an agent."""

    with process(embedded_path()) as one:
        token = httpx2.post(f"{one.url}/tokenize", json={"prompt": "Q"}, trust_env=False).json()["tokens"][0]
        forced = {"logit_bias": {str(token): 100}}
        assert chat(one.url, **forced).json()["usage"]["completion_tokens"] == 512
        assert chat(one.url, **forced, max_tokens=600).json()["usage"]["completion_tokens"] == 600
        models = httpx2.get(f"{one.url}/v1/models", trust_env=False).json()
        assert models["data"][0]["context_length"] == 65536
        assert "at most 512 tokens unless" in "".join(one.lines)


def chat(url, **more):
    body = {"messages": [{"role": "user", "content": "Say something long."}], "thinking": False, **more}
    return httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=60, trust_env=False)


def test_a_server(nano_path, tmp_path):
    trace = tmp_path / "trace.txt"
    with process(nano_path, "--trace", str(trace), "-c", "512", "--model-name", "mine") as one:
        assert httpx2.get(f"{one.url}/health", trust_env=False).json() == {"status": "ok"}
        answer = chat(one.url, max_tokens=5, temperature=0)
        assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 5
        models = httpx2.get(f"{one.url}/v1/models", trust_env=False).json()
        assert models["data"][0]["id"] == "mine" and models["data"][0]["context_length"] == 512
        one.process.send_signal(signal.SIGTERM)
        assert one.ends() == 0
        text = "\n".join(one.lines)
    assert re.search(r"^\d{4} \d\d:\d\d:\d\d ds4-server: listening on http://127\.0\.0\.1:\d+$", text, re.MULTILINE)
    assert re.search(r"serving .+ under the id mine$", text, re.MULTILINE) and models["data"][0]["name"] in text
    assert models["data"][0]["name"] not in ("mine", "DeepSeek V4 Flash")
    assert "tracing to" in text and "finish=length" in text
    assert text.endswith("shutdown requested, draining requests")
    assert stat.S_IMODE(trace.stat().st_mode) == 0o600 and b"Say something long." in trace.read_bytes()
