"""Load generators and harnesses of others against ds4-server: do they end well, and do they say what ds4-bench says?

    python -m benchmarks.clients                    every tool that is installed in --tools, on the embedded model
    python -m benchmarks.clients --install          install them first (PyPI, one environment each, 2 GB in all)
    python -m benchmarks.clients -m MODEL.gguf --only guidellm,aiperf

Each load generator asks for ``--requests`` answers of exactly ``--tokens`` tokens to prompts of ``--prompt`` tokens,
one after the other, with its own defaults otherwise. Then ds4-bench measures the same server twice at the prompt length
that the tool reports; a tool runs once, as its prompts would be cached the second time. Prints a table and a line of
JSON: tokens, time to first token, decode rate, and their ratios to the mean of ds4-bench. Exit code 1 if a tool fails.
Each tool has its own arithmetic; agents and harnesses are run by ``ds4-server smoke``. A model that decodes faster than
a tool reads says little about rates.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ds4ref.archs.deepseek4.shape import MERGES_KEY, TOKENS_KEY
from ds4ref.nano import embedded_path
from ds4ref.nano.cache import cache_dir
from ds4ref.nano.checkpoint import tokenizer
from ds4ref.nano.prose import prose
from ds4ref.runs.provenance import stamp
from ds4ref.weights import open_source

BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Setting:
    """What a tool is asked to do.

    url               address of the server, without /v1
    model             name to request
    folder            the tool's working folder; ``tokenizer`` and ``book`` are made in it or beside it
    prompt, tokens    tokens of a prompt and of an answer
    requests          number of requests, one after the other
    """

    url: str
    model: str
    folder: Path
    tokenizer: Path
    book: str
    prompt: int
    tokens: int
    requests: int


@dataclass(frozen=True)
class Figures:
    """What a tool reports, medians or, where it gives none, means; None where it reports nothing.

    prompt, answer   tokens by its count
    first            time to first token, ms
    rate             tokens/s after the first token
    """

    prompt: float | None = None
    answer: float | None = None
    first: float | None = None
    rate: float | None = None


@dataclass(frozen=True)
class Tool:
    """One tool: its requirement on PyPI, its command line in an environment ``bin``, and how its results are read."""

    name: str
    requirement: tuple[str, ...]
    command: Callable[[Path, Setting], list[str]]
    read: Callable[[Setting], Figures] = lambda setting: Figures()
    note: str = ""


# --- load generators


def guidellm(bin_: Path, s: Setting) -> list[str]:
    """Return the command of guidellm, which asks for exact lengths by itself (``ignore_eos``)."""
    return [
        str(bin_ / "guidellm"), "run", "--backend", f"kind=openai_http,target={s.url}", "--profile", "kind=synchronous",
        "--constraint", f"kind=max_requests,count={s.requests}", "--tokenizer", f"kind=hf_auto,model={s.tokenizer}",
        "--data", f"kind=synthetic_text,prompt_tokens={s.prompt},output_tokens={s.tokens}",
        "--output", f"kind=json,path={s.folder / 'guidellm.json'}", "--disable-progress",
    ]  # fmt: skip


def read_guidellm(s: Setting) -> Figures:
    """Read guidellm's report: medians of the requests that succeeded."""
    found = json.loads((s.folder / "guidellm.json").read_text())["benchmarks"][0]["metrics"]
    names = ("prompt_token_count", "output_token_count", "time_to_first_token_ms", "inter_token_latency_ms")
    prompt, answer, first, gap = (found[name]["successful"]["median"] for name in names)
    return Figures(prompt, answer, first, 1e3 / gap if gap else None)


def aiperf(bin_: Path, s: Setting) -> list[str]:
    """Return the command of aiperf, told to ask for exact lengths and to count tokens as the server does."""
    return [
        str(bin_ / "aiperf"), "profile", "--model", s.model, "--url", s.url, "--endpoint-type", "chat", "--streaming",
        "--tokenizer", str(s.tokenizer), "--isl", str(s.prompt), "--osl", str(s.tokens), "--request-count",
        str(s.requests), "--concurrency", "1", "--ui", "none", "--artifact-dir", str(s.folder / "aiperf"),
        "--extra-inputs", "ignore_eos:true", "--extra-inputs", f"min_tokens:{s.tokens}", "--use-server-token-count",
    ]  # fmt: skip


def read_aiperf(s: Setting) -> Figures:
    """Read aiperf's report: medians."""
    found = json.loads((s.folder / "aiperf" / "profile_export_aiperf.json").read_text())
    names = ("input_sequence_length", "output_sequence_length", "time_to_first_token", "inter_token_latency")
    prompt, answer, first, gap = (found[name]["p50"] for name in names)
    return Figures(prompt, answer, first, 1e3 / gap if gap else None)


def llama_benchy(bin_: Path, s: Setting) -> list[str]:
    """Return the command of llama-benchy; its text comes from this process, and its question about Paris is left out,
    which is no question for a model of six million weights."""
    return [
        str(bin_ / "llama-benchy"), "--base-url", f"{s.url}/v1", "--model", s.model, "--tokenizer", str(s.tokenizer),
        "--pp", str(s.prompt), "--tg", str(s.tokens), "--exact-tg", "--runs", str(s.requests), "--book-url", s.book,
        "--skip-coherence", "--no-cache", "--format", "json", "--save-result", str(s.folder / "benchy.json"),
    ]  # fmt: skip


def read_llama_benchy(s: Setting) -> Figures:
    """Read llama-benchy's report: medians of its runs."""
    found = json.loads((s.folder / "benchy.json").read_text())["benchmarks"][0]
    first, rate = (statistics.median(found[name]["values"]) for name in ("e2e_ttft", "tg_throughput"))
    return Figures(found["prompt_size"], found["response_size"], first, rate)


def evalscope(bin_: Path, s: Setting) -> list[str]:
    """Return the command of evalscope's performance test."""
    return [
        str(bin_ / "evalscope"), "perf", "--model", s.model, "--url", f"{s.url}/v1/chat/completions", "--api", "openai",
        "--tokenizer-path", str(s.tokenizer), "--dataset", "random", "--min-prompt-length", str(s.prompt),
        "--max-prompt-length", str(s.prompt), "--prefix-length", "0", "--min-tokens", str(s.tokens), "--max-tokens",
        str(s.tokens), "--number", str(s.requests), "--parallel", "1", "--stream", "--outputs-dir", str(s.folder),
        "--no-timestamp", "--name", "evalscope",
    ]  # fmt: skip


def read_evalscope(s: Setting) -> Figures:
    """Read evalscope's report: the 50th percentiles."""
    path = next(iter((s.folder / "evalscope").rglob("benchmark_percentile.json")))
    found = next(row for row in json.loads(path.read_text()) if row["Percentiles"] == "50%")
    gap = found["TPOT (ms)"]
    return Figures(found["Input tokens"], found["Output tokens"], found["TTFT (ms)"], 1e3 / gap if gap else None)


TOOLS = (
    Tool("guidellm", ("guidellm==0.8.1",), guidellm, read_guidellm),
    Tool("aiperf", ("aiperf==0.13.0",), aiperf, read_aiperf),
    Tool("llama-benchy", ("llama-benchy==0.4.0",), llama_benchy, read_llama_benchy,
         "rate from the first text to the last event"),
    Tool("evalscope", ("evalscope[perf]==1.14.1",), evalscope, read_evalscope),
)  # fmt: skip


def ds4_bench(s: Setting, depth: int) -> Figures:
    """Measure the server with ds4-bench at ``depth`` prompt tokens."""
    command = [
        str(BIN / "ds4-bench"), "--target", f"{s.url}/v1", "--depths", str(depth), "-n", str(s.tokens), "-r",
        str(s.requests), "--api", "chat", "--no-store", "--csv", str(s.folder / "ours.csv"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, text=True)
    if done.returncode:
        raise OSError(f"ds4-bench: {done.stderr.strip()[-200:]}")
    header, row, *_ = (s.folder / "ours.csv").read_text().splitlines()
    found = dict(zip(header.split(","), row.split(","), strict=True))
    return Figures(
        float(found["prompt_tokens"]), float(found["gen_tokens"]), float(found["ttft_ms"]), float(found["gen_tps"])
    )


# --- running


def installed(tool: Tool, root: Path, install: bool) -> Path | None:
    """Return the tool's ``bin`` folder below ``root``, installing it if asked; None if it is not there."""
    place = root / tool.name
    if not (place / "installed").exists():
        if not install:
            return None
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        pip = [str(place / "bin" / "pip"), "install", "--quiet", "torch>=2.9,<3", *tool.requirement]
        subprocess.run(pip, check=True, stdin=subprocess.DEVNULL)
        (place / "installed").touch()
    return place / "bin"


@contextlib.contextmanager
def book(folder: Path) -> Iterator[str]:
    """Context manager of an address that serves a long text to tools that want one."""
    (folder / "book.txt").write_text(prose(200_000, seed=5))
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    handler.log_message = lambda *args: None  # type: ignore[attr-defined]
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/book.txt"
    finally:
        server.shutdown()


def write_tokenizer(model: str, folder: Path) -> None:
    """Write the model's vocabulary as a folder that transformers opens."""
    folder.mkdir()
    with open_source(model) as source:
        tokens, merges = source.metadata[TOKENS_KEY], source.metadata[MERGES_KEY]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(tokens, merges)))
    template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": tokens[0], "eos_token": tokens[1],
                "chat_template": template}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@contextlib.contextmanager
def served(model: str, threads: int | None, ctx: int) -> Iterator[str]:
    """Context manager of the address of a ds4-server that runs ``model``."""
    command = [str(BIN / "ds4-server"), "-m", model, "-c", str(ctx), "--port", "0"]
    command += [] if threads is None else ["-t", str(threads)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "http://" in line)
            threading.Thread(target=lambda: [None for _ in process.stderr or ()], daemon=True).start()
            yield "http://" + line.split("http://")[1].split()[0].strip(".,;/)")
        finally:
            process.terminate()


def compared(tool: Tool, bin_: Path, s: Setting, timeout: float) -> dict[str, Any]:
    """Run a tool between two runs of ds4-bench; return its row."""
    env = {k: v for k, v in os.environ.items() if not k.endswith("_proxy")} | {"NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
    env.pop("HF_HUB_OFFLINE") if tool.name == "aiperf" else None  # offline it takes no local folder (0.13.0)
    row: dict[str, Any] = {"tool": tool.requirement[0], "note": tool.note}
    command = tool.command(bin_, s)
    try:
        done = subprocess.run(command, env=env, cwd=s.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=timeout)  # fmt: skip
        if done.returncode:
            return row | {
                "failed": f"exit code {done.returncode}: {' '.join((done.stderr or done.stdout).split())[-200:]}"
            }
        theirs = [tool.read(s)]
        depth = round(theirs[0].prompt or s.prompt)
        ours = [ds4_bench(s, depth)]
        ours.append(ds4_bench(s, depth))
    except (subprocess.TimeoutExpired, OSError, LookupError, ValueError, StopIteration) as error:
        return row | {"failed": f"{type(error).__name__}: {error}"[:200]}
    for name in ("prompt", "answer", "first", "rate"):
        a, b = ([v for f in side if (v := getattr(f, name)) is not None] for side in (theirs, ours))
        row[name] = statistics.mean(a) if a else None
        row[f"{name}_bench"] = statistics.mean(b)
        row[f"{name}_ratio"] = statistics.mean(a) / statistics.mean(b) if a else None
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    lines = ["| tool | prompt | answer | first token, ms | t/s | first / ds4-bench | rate / ds4-bench | tokens |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['tool']} | failed: {row['failed']} | | | | | | |")
            continue
        figures = [f"{row[name]:.4g}" if row[name] is not None else "-" for name in
                   ("prompt", "answer", "first", "rate", "first_ratio", "rate_ratio")]  # fmt: skip
        same = "same" if abs(row["answer_ratio"] - 1) < 0.001 else f"{row['answer']:g} for {row['answer_bench']:g}"
        lines.append(f"| {row['tool']} | {' | '.join(figures)} | {same} |")
    return "\n".join(lines)


def main() -> int:
    """Run the tools and print the table; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.clients", description=__doc__.split("\n")[0])
    parser.add_argument("-m", "--model", default="", help="GGUF file with DeepSeek's vocabulary (the embedded model)")
    parser.add_argument("--tools", default=str(cache_dir() / "load-tools"), help="folder of their environments")
    parser.add_argument("--install", action="store_true", help="install what is missing")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one tool")
    args = parser.parse_args()
    model = args.model or str(embedded_path())
    chosen = [tool for tool in TOOLS if not args.only or tool.name in args.only.split(",")]
    rows = []
    with tempfile.TemporaryDirectory() as temp, book(Path(temp)) as address:
        write_tokenizer(model, Path(temp) / "tokenizer")
        with served(model, args.threads, 4 * (args.prompt + args.tokens)) as url:
            for tool in chosen:
                bin_ = installed(tool, Path(args.tools), args.install)
                if bin_ is None:
                    print(f"{tool.name}: not installed (--install)", file=sys.stderr)
                    continue
                folder = Path(temp) / tool.name
                folder.mkdir()
                lengths = (args.prompt, args.tokens, args.requests)
                s = Setting(url, "deepseek-v4-flash", folder, Path(temp) / "tokenizer", address, *lengths)
                rows.append(compared(tool, bin_, s, args.timeout))
                print(f"{tool.name}: done", file=sys.stderr)
    print(table(rows))
    print(json.dumps({"model": Path(model).name, "rows": rows, **stamp(sys.argv)}))
    return int(any("failed" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
