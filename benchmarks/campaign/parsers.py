"""Parsers under attack: for each its smallest valid inputs, and a function that reads one input.

A reader returns, or raises one of our own exceptions with a one-line message. Any other exception is a failure, also an
AssertionError: readers assert what a successful read promises (tensors inside their file, a session that is right).
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

Read = Callable[[bytes], object]
Built = tuple[list[bytes], Read]


def files(paths: Sequence[Path], read: Callable[[], object], limits: Sequence[int] | None = None) -> Built:
    """Return seeds and reader of several files of which an input replaces one: that with the number of its first byte.

    limits: how many bytes at the start of each file are replaced; by default all.
    """
    clean = [path.read_bytes() for path in paths]
    ends = [len(data) for data in clean] if limits is None else limits
    changed = [0]

    def reader(data: bytes) -> None:
        which = data[0] % len(paths) if data else 0
        paths[changed[0]].write_bytes(clean[changed[0]])
        changed[0] = which
        paths[which].write_bytes(data[1:] + clean[which][ends[which] :])
        read()

    return [bytes([i]) + data[:end] for i, (data, end) in enumerate(zip(clean, ends, strict=True))], reader


def _heads(paths: Sequence[Path]) -> list[int]:
    """Return the sizes of what precedes the tensors of GGUF files."""
    from ds4ref.weights.gguf import GGUFFile

    sizes = []
    for path in paths:
        with GGUFFile.open(path) as file:
            sizes.append(min((info.offset for info in file.tensors.values()), default=file.size))
    return sizes


def _load(path: Path) -> None:
    """Do what an engine does before it computes."""
    from ds4ref.archs import arch_of
    from ds4ref.text.vocabulary import open_tokenizer
    from ds4ref.weights import open_source

    with open_source(path) as source:
        size = sum(file.stat().st_size for file in path.parent.rglob("*"))
        assert all(info.nbytes <= size for info in source.tensors.values())
        arch = arch_of(source)
        arch.bind(source, arch.read_shape(source))
        tokenizer = open_tokenizer(source)
        assert all(0 <= token < len(tokenizer) for token in (*tokenizer.encode("the stone é€"), *tokenizer.ends))


# --- models


def gguf(folder: Path) -> Built:
    """A model file of every layer kind, with its vocabulary."""
    from tests.text.vocab import MERGES, make
    from tests.weights.modelfile import SMALL, write_model

    words = make()
    tokens = [("tokenizer.ggml.tokens", "string[]", [words.token_string(i) for i in range(len(words))]),
              ("tokenizer.ggml.merges", "string[]", list(MERGES))]  # fmt: skip
    shape = replace(SMALL, vocab=len(words))
    path = write_model(folder / "m.gguf", shape, metadata=shape.metadata() + tokens)
    return files([path], lambda: _load(path), _heads([path]))


def gguf_split(folder: Path) -> Built:
    """A model in three files."""
    from ds4ref.archs import arch_of
    from ds4ref.weights import open_source
    from tests.weights.test_split import equal_parts, write_split

    paths = write_split(folder / "s", equal_parts(3))

    def read() -> None:
        with open_source(paths[0]) as source:
            arch_of(source).bind(source, arch_of(source).read_shape(source))

    return files(paths, read, _heads(paths))


def published(folder: Path) -> Built:
    """A published folder: configuration, index, settings of the tokenizer, a shard's header."""
    from ds4ref.weights.safetensors import INDEX
    from tests.archs import dense
    from tests.text.test_library import trained_definition
    from tests.text.test_template import CHATML

    shape = replace(dense.draw_shape(3, dense.FAMILIES["qwen3"]), vocab=420)
    model = dense.published(folder / "m", shape, dense.draw_tensors(shape, 3, tied=False), 1 << 12)
    settings = {"chat_template": CHATML, "eos_token": {"content": "<|im_end|>"}, "bos_token": None}
    for name, value in (("tokenizer.json", trained_definition()), ("tokenizer_config.json", settings),
                        ("generation_config.json", {"eos_token_id": [300, 3], "bos_token_id": 2})):  # fmt: skip
        (model / name).write_text(json.dumps(value))
    shard = min(model.glob("*.safetensors"))
    paths = [model / name for name in ("config.json", INDEX, "tokenizer_config.json", "generation_config.json")]
    limits = [path.stat().st_size for path in paths] + [8 + int.from_bytes(shard.read_bytes()[:8], "little")]
    _share_process()
    return files([*paths, shard], lambda: _load(model), limits)


def _share_process() -> None:
    """Let all tokenizers and templates use one limited process; starting one for each input would take a second."""
    from ds4ref.text import library, limited, template

    process = limited.LimitedProcess("the library", {"do": "nothing"}, size=1)

    class Shared(limited.LimitedProcess):
        def open(self) -> dict[str, Any]:
            process.name = self.name
            return process.ask(self._opening, self._size)

        def ask(self, request: Any, size: int) -> dict[str, Any]:
            self.open()
            return process.ask(request, size)

    library.LimitedProcess = template.LimitedProcess = Shared  # type: ignore[misc]


def tokenizer_json(folder: Path) -> Built:
    """A tokenizer for the library, read in a process of its own."""
    from ds4ref.text.library import of_checkpoint
    from tests.text.test_library import folder_of, trained_definition

    _share_process()
    checkpoint = folder_of(folder / "m", trained_definition(), config__json={})

    def read() -> None:
        tokenizer = of_checkpoint(checkpoint)
        assert all(0 <= token < len(tokenizer) for token in tokenizer.encode("the stone <|im_end|> é€"))

    return files([folder / "m" / "tokenizer.json"], read)


def chat_template(folder: Path) -> Built:
    """A Jinja template, rendered in a process of its own."""
    from ds4ref.text.template import ChatTemplate
    from tests.text.test_template import CHATML, TALK

    _share_process()
    return [CHATML.encode()], lambda data: ChatTemplate(data.decode("utf-8", "replace"), seconds=1.0).render(TALK)


def llama2c(folder: Path) -> Built:
    """A checkpoint of version 2 and its tokenizer.bin."""
    from tests.weights import llama2c as stories

    c = stories.Config()
    path = stories.write(folder, stories.version_2(c, stories.draw(c))[0], stories.vocabulary(c))
    tokens = path.parent / "tokenizer.bin"
    return files([path, tokens], lambda: _load(path), [64, tokens.stat().st_size])


def importance(folder: Path) -> Built:
    """Importance of weights in both of its formats."""
    from ds4ref.weights.quantize.imatrix import Imatrix, TensorImportance, read_imatrix, write_imatrix

    measured = TensorImportance(np.full((3, 8), 0.5, np.float32), np.array([4.0, 0, 9]))
    paths = [folder / "i.dat", folder / "i.gguf"]
    for path in paths:
        write_imatrix(path, Imatrix({"blk.0.ffn_up.weight": measured}, ["t"], 5))

    def read() -> None:
        for path in paths:
            for entry in read_imatrix(path).entries.values():
                assert np.isfinite(entry.usable()).all()

    return files(paths, read)


def drafter(folder: Path) -> Built:
    """A DSpark drafter in both layouts, beside its model."""
    from ds4ref.archs.deepseek4.dspark import Drafter
    from tests.archs import test_dspark as golden

    model = golden.model.__wrapped__()
    paths = [golden.write(folder / "d.gguf"), golden.write(folder / "l.gguf", dflash=True)]

    def read() -> None:
        for path in paths:
            Drafter.open(path, model).close()

    return files(paths, read, _heads(paths))


def steering(folder: Path) -> Built:
    """Directions and their description."""
    from types import SimpleNamespace

    from ds4ref.archs.steering import read_directions, write_directions
    from ds4ref.steering import sidecar

    path, rows = folder / "d.f32", np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
    write_directions(path, rows)
    sidecar.write(path, {"format": sidecar.FORMAT, "component": "ffn_out", "used": ["ab"]})
    shape = SimpleNamespace(n_layers=3, dim=8)

    def read() -> None:
        found = read_directions(path, shape)
        assert np.isfinite(found).all() and isinstance(sidecar.read(path, found), dict)

    return files([path, sidecar.beside(path)], read)


# --- sessions


def kvc(folder: Path) -> Built:
    """A checkpoint of a session in the disk cache: what loads is right, and what is damaged is put aside."""
    from ds4ref.session import kvc as format_
    from tests.session.fake_kv import store
    from tests.session.storing import TALK, loaded, saved

    kept = store(folder / "kv")
    name = saved(kept, TALK[:12], texts=(TALK[:12], b"another key"))
    good = (folder / "kv" / name).read_bytes()

    def read(data: bytes) -> None:
        path = folder / "kv" / name
        path.write_bytes(data)
        os.utime(path, (1_700_000_000, 1_700_000_000))
        try:
            with format_.open_file(path) as file:
                format_.read_through(file, name)
        except format_.PayloadError:
            pass
        assert loaded(kept, TALK) in (None, TALK[:12])
        for left in (folder / "kv").iterdir():
            left.unlink()

    return [good], read


def payload(folder: Path) -> Built:
    """A saved session of the random model; its first bytes, and its rows as they are."""
    from ds4ref.engine import Engine
    from ds4ref.errors import PayloadError
    from ds4ref.nano import random_path

    engine = Engine.open(random_path(), threads=1)
    session, file = engine.session(64), io.BytesIO()
    session.sync(list(range(5, 25)))
    session.save(file)
    data = file.getvalue()

    def read(head: bytes) -> None:
        before, logits = session.tokens, session.logits.copy() if session.valid else None
        try:
            session.load(io.BytesIO(head + data[512:]))
        except PayloadError:
            same = session.valid and session.tokens == before and (session.logits == logits).all()
            assert same or not session.valid, "half loaded"
            raise
        assert session.valid and len(session.tokens) < 64 and (session.logits < np.inf).all()

    return [data[:512]], read


# --- text


def _cut(data: bytes) -> tuple[int, str, list[str]]:
    """Return the first byte, the rest as text, and the text in pieces whose lengths follow from it."""
    text, pieces, at = data[1:].decode("utf-8", "replace"), [], 0
    while at < len(text):
        size = 1 + ord(text[at]) % 7
        pieces.append(text[at : at + size])
        at += size
    return data[0] if data else 0, text, pieces


def _same_in_pieces(make: Callable[[int], Any]) -> Read:
    def read(data: bytes) -> None:
        flags, text, pieces = _cut(data)
        whole, cut = make(flags), make(flags)
        whole.feed(text)
        for piece in pieces:
            cut.feed(piece)
        whole.finish()
        cut.finish()
        assert repr(whole.result) == repr(cut.result), "depends on where the text is cut"

    return read


def dsml(folder: Path) -> Built:
    """Answers in the format of May 2026, whole and in pieces."""
    from ds4ref.text.dsml_parser import DsmlParser
    from tests.text.test_dsml_parser import CORPUS

    texts = [b"\x03" + text.encode() for text in CORPUS]
    return texts, _same_in_pieces(lambda flags: DsmlParser(bool(flags & 1), bool(flags & 2)))


def later_formats(folder: Path) -> Built:
    """Answers in the formats 0731 and V4.1, whole and in pieces."""
    from ds4ref.text.official_parser import OfficialParser
    from tests.text.test_dsml_parser import CORPUS

    def make(flags: int) -> OfficialParser:
        return OfficialParser(bool(flags & 1), bool(flags & 2), bool(flags & 4), bool(flags & 8))

    return [b"\x03" + text.encode() for text in CORPUS], _same_in_pieces(make)


def requests(folder: Path) -> Built:
    """Requests of the four APIs, and the prompts that they make."""
    from ds4ref.server.api import Refused
    from ds4ref.server.apis.requests import REQUESTS
    from tests.server.answers import read as read_request
    from tests.server.constrained import TOK
    from tests.server.test_requests import ASKS, PATHS, VALUES, tool

    names = list(PATHS)

    def read(data: bytes) -> None:
        turn, _ = read_request(PATHS[names[(data[0] if data else 0) % 4]], data[1:])
        if turn.messages:
            assert all(0 <= token < len(TOK) for token in TOK.encode_rendered(turn.rendered().text[:1000]))

    every = [(i, {**ASKS[api], "tools": [tool(api, "f")]}) for i, api in enumerate(names) if api != "completions"]
    every += [(i, {**ASKS[api], name: VALUES[name]}) for i, api in enumerate(names) for name in VALUES
              if name in REQUESTS[api].__struct_fields__]  # fmt: skip
    seeds = []
    for i, body in every:
        seeds.append(bytes([i]) + json.dumps(body).encode())
        try:
            read(seeds[-1])
        except Refused:  # a field that needs another one
            seeds.pop()
    return seeds, read


def schemas(folder: Path) -> Built:
    """JSON schemas and grammars of requests, compiled, and twenty tokens of an answer."""
    from ds4ref.server.constrain import guide_of
    from tests.server.constrained import STRICT, TOK, custom, function, json_turn, tool_turn

    def read(data: bytes) -> None:
        kind, text = (data[0] if data else 0) % 3, data[1:].decode("utf-8", "replace")
        if kind == 2:
            turn = tool_turn(custom(text))
        else:
            try:
                schema = json.loads(text)
            except (ValueError, RecursionError):
                return  # no request has such a part
            turn = json_turn(schema) if kind else tool_turn(function(type="object", properties={"a": schema}))
        guide = guide_of(turn, TOK)
        for token in range(20) if guide is not None else ():
            allowed = np.flatnonzero(guide._allowed())
            if not len(allowed):
                break
            guide._take(int(allowed[(token * 31 + len(text)) % len(allowed)]))

    some = [STRICT, {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/a"}}], "$defs": {"a": {"enum": [1, "b"]}}},
            {"type": "string", "pattern": "^a{2}", "maxLength": 5}, {"type": "number", "maximum": 1.5}]  # fmt: skip
    made = [bytes([kind]) + json.dumps(schema).encode() for schema in some for kind in (0, 1)]
    return [*made, b"\x02" + b'start: "a" | /[0-9]+/ other\nother: "b" {1,3}\n'], read


# --- results


def official_vec(folder: Path) -> Built:
    """ds4's official.vec, which comes back as it was written."""
    from ds4ref.test_vectors.official import read_vec, write_vec
    from tests.test_vectors.test_official import VEC

    path = folder / "official.vec"
    path.write_text(VEC)

    def read() -> None:
        cases = read_vec(str(path))
        path.write_bytes(write_vec(cases))
        assert read_vec(str(path)) == cases

    return files([path], read)


def vectors(folder: Path) -> Built:
    """A folder of recorded vectors: its manifest, and a case whose digest the manifest is told."""
    from ds4ref.test_vectors.schema import Vectors, encode, sha256
    from tests.test_vectors.test_capture_and_check import captured

    made = captured(folder / "v")
    manifest, entry = folder / "v" / "manifest.json", made.manifest.cases[0]
    path = folder / "v" / str(entry.case_file)
    recorded = path.read_bytes()

    def read() -> None:
        if path.read_bytes() != recorded and entry.sha256 != sha256(path.read_bytes()):
            entry.sha256 = sha256(path.read_bytes())
            manifest.write_bytes(encode(made.manifest))
        found = Vectors.open(folder / "v")
        for case in found.manifest.cases:
            assert found.case(case).repetitions and isinstance(found.prompt(case), str)

    return files([manifest, path], read)


def results_csv(folder: Path) -> Built:
    """A CSV of ds4-bench with the JSON beside it, as a report reads it."""
    from ds4ref.reports.sources import read_file

    source = Path(__file__).parents[2] / "speed_bench" / "results" / "embedded_model.csv"
    path = folder / "r.csv"
    path.write_text("\n".join(source.read_text().splitlines()[:4]) + "\n")
    facts = json.loads(source.with_suffix(".json").read_text())
    facts["samples"] = facts.get("samples", [])[:2]
    path.with_suffix(".json").write_text(json.dumps(facts))

    def read() -> None:
        measured = read_file(path)
        numbers = [row["ctx_tokens"] for row in measured.rows]
        assert all(np.isfinite(number) and number >= 0 for number in numbers) and measured.run.name

    return files([path, path.with_suffix(".json")], read)


def eval_log(folder: Path) -> Built:
    """A log of ds4-eval, read by both commands, and resumed."""
    from ds4ref.eval import log as logs
    from ds4ref.reports.sources import read_file
    from tests.eval.test_log import header, sample

    path = folder / "run.jsonl"
    with logs.Writer.create(path, header()) as log:
        for entry in (sample(0), sample(1, "failed", error="no"), sample(2)):
            log.add(entry)

    def read() -> None:
        done = logs.read(path).samples
        assert len(read_file(path).rows) >= len({(s.id, s.epoch) for s in done})
        with logs.Writer.resume(path, header()) as log:
            log.add(sample(3))
        assert sample(3) in logs.read(path).samples and len(logs.read(path).samples) >= len(done)

    return files([path], read)


def question_pack(folder: Path) -> Built:
    """A pack of questions."""
    from ds4ref.eval import packs
    from tests.eval.test_log import PACK

    path = folder / "p.jsonl"
    packs.write(PACK, path)

    def read() -> None:
        pack = packs.read(path)
        packs.write(pack, path)
        assert packs.read(path) == pack

    return files([path], read)


def run_store(folder: Path) -> Built:
    """A database of runs: what ``check`` calls sound can be listed and read."""
    from ds4ref.errors import DataError
    from ds4ref.runs.store import Store

    path = folder / "runs.sqlite"
    with Store.open(path) as store:
        for kind in ("bench", "eval", "vectors"):
            store.add(kind, {"model": {"name": "m"}}, [{"ctx_tokens": 1, "id": "a"}] * 3, label="l", tags=["t"])

    def read() -> None:
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        with Store.open(path) as store:
            try:
                store.check()
                sound = True
            except DataError:
                sound = False
            try:
                for run in store.runs():
                    store.rows(run.id)
                    store.show(run.id)
                    store.find(run.name)
            except DataError as error:
                assert not sound, f"check finds nothing wrong: {error}"

    return files([path], read)


def check_result(folder: Path) -> Built:
    """The output of ds4-vectors check, as a report reads it."""
    from ds4ref.reports.sources import read_file

    path = folder / "c.json"
    case = {"id": "a", "verdict": "flip", "reason": "why",
            "steps": [{"verdict": "match", "delta": -0.5, "kl": 0.25, "logprob": -1.0}]}  # fmt: skip
    path.write_text(json.dumps({"results": [case], "failed": ["a"], "machine": {}, "created": "2026-01-01T00:00:00Z"}))
    return files([path], lambda: read_file(path))


PARSERS: dict[str, Callable[[Path], Built]] = {
    build.__name__: build
    for build in (
        gguf, gguf_split, published, tokenizer_json, chat_template, llama2c, importance, drafter, steering, kvc,
        payload, dsml, later_formats, requests, schemas, official_vec, vectors, results_csv, check_result, eval_log,
        question_pack, run_store,
    )
}  # fmt: skip
"""All of them by name."""
