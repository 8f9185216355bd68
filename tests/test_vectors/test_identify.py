"""What a server is identified as, by counts, streams and refusals; nothing is claimed that they do not show."""

from __future__ import annotations

import copy
import itertools
import json
import random
from dataclasses import dataclass

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.nano import embedded_path
from ds4ref.nano.diagnostic import diagnostic_path
from ds4ref.nano.diagnostic41 import diagnostic41_path
from ds4ref.targets import Completion, Delta, Finish, Message, Step, Token, Usage, open_target
from ds4ref.test_vectors import cli
from ds4ref.test_vectors.doctor.identify import context, drafts
from ds4ref.test_vectors.doctor.identify.context import Reply
from ds4ref.test_vectors.doctor.identify.posterior import Posterior
from ds4ref.test_vectors.doctor.identify.shapes import BASE, SYSTEM, TEMPLATES, TURNS, Shape, lengths_of
from ds4ref.test_vectors.doctor.identify.stage import Identification
from ds4ref.test_vectors.doctor.identify.turns import mistakes
from ds4ref.test_vectors.doctor.identify.weights import Comparison
from ds4ref.test_vectors.doctor.limits import Limit
from ds4ref.test_vectors.doctor.served import Property, Served
from ds4ref.test_vectors.observation import log_softmax
from ds4ref.text.official import PROFILES
from ds4ref.text.protocol import SYSTEM as SYSTEM_TOKEN

from .paper import Paper

PROFILE = {"may": None, **PROFILES}


@pytest.fixture(scope="module")
def tokenizer(engine):
    known = copy.copy(engine.tokenizer)
    known._special_ids = {**known._special_ids, SYSTEM_TOKEN: 2}
    return known


def identified(paper: Paper, known: bool = True, quick: bool = True) -> tuple[Served, Identification]:
    with paper as url, open_target(url, attempts=1) as target:
        work = Identification(target, Limit(60), None, {"ours": paper.tokenizer} if known else {}, quick=quick)
        return work.run(), work


# ------------------------------------------------------------------------------------------------------ templates


@pytest.mark.parametrize("known", [True, False], ids=["tokenizer", "no tokenizer"])
@pytest.mark.parametrize("fault", ["", "one more", "refuses", "ignores", "control"])
@pytest.mark.parametrize("name", PROFILE)
def test_the_template_and_its_defaults(tokenizer, name: str, fault: str, known: bool) -> None:
    """Whatever the fault, no claim is wrong; without one, all is told that counts can tell."""
    thinks, effort = {"may": (False, "max"), "0731": (True, "low"), "v4.1": (True, "max")}[name]
    paper = Paper(tokenizer, PROFILE[name], thinks, effort)
    if fault == "one more":
        paper.counted = lambda count: count + 1
    elif fault == "refuses":
        paper.refuses = ("chat_template_kwargs", "thinking")
    elif fault == "ignores":
        paper.ignores = ("thinking", "reasoning_effort", "chat_template_kwargs")
    elif fault == "control":
        paper.tokenizer = copy.copy(tokenizer)
        paper.tokenizer.encode = tokenizer.encode_rendered
    served, work = identified(paper, known)
    want = {"profile": name, "effort": effort, "thinking": "on" if thinks else "off", "bos": "1",
            "escaping": "control" if fault == "control" else "text", "drafts": None, "context": None}  # fmt: skip
    claims = {key: served.value(key) for key in want}
    wrong = {key: value for key, value in claims.items() if value not in (None, want[key])}
    assert not wrong, served[next(iter(wrong))].to_json()
    # without settings that have an effect, May's "max" or 0731's "low" may be anything
    if fault not in ("refuses", "ignores"):
        assert claims["profile"] == name, served["profile"].to_json()
        assert claims["effort"] == effort and claims["thinking"] == want["thinking"] and claims["escaping"]
    assert bool(known) == (served.value("tokenizer") == "ours") and work.asker.requests < 50


def test_another_template_is_unknown_and_never_the_nearest(tokenizer) -> None:
    def chatml(messages, mode):
        text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
        return tokenizer.encode(text + "<|im_start|>assistant\n")

    def effort(messages, mode):
        """May's form with an effort text of its own."""
        ids = Paper(tokenizer).ids({"messages": messages, "thinking": {"type": "disabled"}})
        return ids[:1] + tokenizer.encode("Think hard. " * {"none": 0, "low": 1, "high": 5, "max": 9}[mode]) + ids[1:]

    for render, known in itertools.product((chatml, effort), (True, False)):
        served, _ = identified(Paper(tokenizer, render=render), known)
        assert served.value("profile") == "unknown", (render.__name__, known, served["profile"].to_json())
        assert {served.value(name) for name in ("bos", "effort")} == {None}


def test_a_template_of_plain_text_does_not_hide_the_tokenizer(tokenizer) -> None:
    """Its text is one token with the beginning or the end of a message, which adds less than it has alone."""

    def plain(messages, mode):
        return tokenizer.encode("".join(f"{m['role']}: {m['content'].strip()} \n" for m in messages) + "assistant:")

    alone = [len(tokenizer.encode(text)) for text in ("the mill", "user: the mill \n", "user: a \n")]
    assert alone[0] != alone[1] - alone[2] + 1, "this template does what the test is about"
    served, _ = identified(Paper(tokenizer, render=plain))
    assert served.value("tokenizer") == "ours", served["tokenizer"].to_json()
    other = copy.copy(tokenizer)
    other.encode = lambda text: [token for char in text for token in tokenizer.encode(char)]
    with Paper(tokenizer, render=plain) as url, open_target(url, attempts=1) as target:
        wrong = Identification(target, Limit(60), None, {"by character": other}, quick=True).run()
    assert wrong.value("tokenizer") == "unknown", wrong["tokenizer"].to_json()


@pytest.mark.parametrize("name", PROFILE)
def test_a_server_that_adds_a_system_text(tokenizer, name: str) -> None:
    def render(messages, mode):
        own = (
            []
            if any(m["role"] == "system" for m in messages)
            else [{"role": "system", "content": "Be brief and kind."}]
        )
        settings = {"reasoning_effort": mode, "thinking": {"type": "disabled" if mode == "none" else "enabled"}}
        return Paper(tokenizer, PROFILE[name]).ids({"messages": own + messages, **settings})

    for known in (True, False):
        served, _ = identified(Paper(tokenizer, render=render), known)
        assert served.value("profile") == name and served.value("bos") in ("1", None), served["profile"].to_json()


@dataclass
class Greedy(Paper):
    """Answers as a model does at temperature 0, without counts and log probabilities."""

    engine: Engine | None = None

    def reply(self, path, body):
        status, answer = super().reply(path, body)
        if status == 200 and "choices" in answer:
            session, tokens = self.engine.session(1024), []
            session.sync(self.ids(body))
            while len(tokens) < body["max_tokens"] and self.tokenizer.eos not in tokens:
                tokens.append(int(session.logits.argmax()))
                session.eval(tokens[-1])
            ended = self.tokenizer.eos in tokens
            text = self.tokenizer.decode(tokens[:-1] if ended else tokens).decode("utf-8", "replace")
            reasoning, close, rest = text.partition("</think>") if self.mode(body) != "none" else ("", "", text)
            message = {"role": "assistant", "reasoning_content": reasoning, "content": rest}
            answer["choices"][0] |= {"message": message, "finish_reason": "stop" if ended else "length"}
        return status, answer


@pytest.mark.thorough
def test_greedy_answers_tell_a_template_where_nothing_is_counted(_model_cache) -> None:
    """Nor is a template claimed that the answers do not follow, or by answers of other weights."""
    with Engine.open(embedded_path(), threads=1) as engine, Engine.open(diagnostic_path(), threads=1) as other:
        known = engine.tokenizer

        def render(messages, mode):
            return known.encode("".join(f"{m['role']}: {m['content']}\n" for m in messages) + f"{mode}: ")

        for weights, form, value in ((engine, None, "may"), (engine, render, None), (other, None, None)):
            paper = Greedy(
                weights.tokenizer, None, False, "low", render=form, counted=lambda count: None, engine=weights
            )
            with paper as url, open_target(url, attempts=1) as target:
                work = Identification(target, Limit(120), engine, {"ours": known}, quick=True)
                served = work.run()
            assert served.value("profile") == value, served["profile"].to_json()
            assert {served.value(name) for name in ("checkpoint", "quantization")} == {None}


class Alone:
    """Answers with the log probabilities of an engine, after prompts that ``change`` has changed; none of reasoning."""

    settings = ("default", "off")

    def __init__(self, engine: Engine, change):
        self.engine, self.change = engine, change

    def answer(self, shape: Shape, setting: str, tokens: int, top: int = 0) -> Completion:
        ids, steps = list(self.change(TEMPLATES[0].ids(shape, "none", self.engine.tokenizer))), []
        if setting != "off":
            return Completion("", (), Finish.LENGTH, Usage(len(ids), tokens, reasoning=tokens))
        for _ in range(tokens):
            row = log_softmax(self.engine.logits(ids)[-1:].astype(np.float64))[0]
            listed = [Token(self.engine.tokenizer.token_bytes(int(i)), float(row[i]), int(i))
                      for i in np.argsort(-row)[:top]]  # fmt: skip
            steps.append(Step(listed[0], tuple(listed)))
            ids.append(int(listed[0].id))
        return Completion("", tuple(steps), Finish.LENGTH, Usage(len(ids), tokens))


def compared(engine: Engine, change) -> Comparison:
    comparison = Comparison(engine)
    comparison.run(Alone(engine, change), Posterior([TEMPLATES[0]], lengths_of(engine.tokenizer)), 20)
    return comparison


def turned(engine: Engine, change) -> tuple[str, float, float] | None:
    return compared(engine, change).turns()


def test_weights_are_known_by_the_tokens_that_are_listed() -> None:
    """Of V4.1, too, which has fewer rounding sets."""
    with Engine.open(diagnostic41_path(), threads=1, numerics="qat") as engine:
        name, gap = compared(engine, list).rounded()
    assert name == "qat" and gap < 1e-5


def test_mistakes_in_earlier_turns_are_named(_model_cache) -> None:
    with Engine.open(embedded_path(), threads=1) as engine:
        known = engine.tokenizer
        assert turned(engine, list) is None
        for name in ("earlier answers follow the user's marker", "earlier answers are not ended by EOS"):
            says, gap, first = turned(engine, lambda ids, name=name: dict(mistakes(ids, known)).get(name, ids))
            assert says == name and gap > 0.1 and first < 1e-5
        # no mistake that has a name: nothing is wrong for sure
        says, *_ = turned(engine, lambda ids: [*ids[:2], *ids[2:4][::-1], *ids[4:]] if len(ids) > 8 else ids)
        assert says == ""
        # first turns that are off, too, show another model
        assert turned(engine, lambda ids: ids[1:]) is None


def test_nothing_is_claimed_where_counts_vary_or_are_missing(tokenizer) -> None:
    rng = random.Random(1)
    for counted in (lambda count: None, lambda count: count + rng.randrange(40)):
        served, _ = identified(Paper(tokenizer, PROFILES["0731"], counted=counted))
        claims = {name: served.value(name) for name in ("profile", "bos", "effort", "checkpoint")}
        assert set(claims.values()) == {None}, claims


def test_one_count_that_is_wrong_once_misleads_nobody(tokenizer) -> None:
    want = {"profile": "0731", "bos": "1", "effort": "high", "thinking": "on", "escaping": "text", "tokenizer": "ours"}
    told = 0
    for place in range(24):
        counts = iter([0] * place + [7] + [0] * 99)
        served, _ = identified(
            Paper(tokenizer, PROFILES["0731"], counted=lambda count, counts=counts: count + next(counts))
        )
        claims = {name: value for name in want if (value := served.value(name))}
        assert claims.items() <= want.items(), (place, claims, served["profile"].evidence)
        told += len(claims)
    assert told > 24 * 3


def test_a_double_bos_is_told_from_a_count_that_is_off_by_one(tokenizer) -> None:
    known = lengths_of(tokenizer)
    for plain, value in ((3, "1"), (2, None), (1, None), (None, None)):
        posterior = Posterior(TEMPLATES, known)
        for shape, setting, count in ((BASE, "off", 6), (SYSTEM, "off", 7), (TURNS, "off", 12), (BASE, "max", 6)):
            posterior.observe(shape, setting, count)
        if plain is not None:
            posterior.plain(plain, 1)
        told = Property("bos", posterior.odds(lambda t, m, bos, offset: str(bos)))
        assert told.value == value, (plain, told.to_json())


def test_one_wrong_count_of_a_certain_shape_refutes_every_known_template(tokenizer) -> None:
    posterior = Posterior(TEMPLATES, lengths_of(tokenizer))
    posterior.observe(BASE, "off", 5)
    posterior.observe(Shape("more", (Message("user", "ab"),)), "off", 5 + len(tokenizer.encode("ab")) + 1)
    assert Property("profile", posterior.profile).value == "unknown"


def test_a_name_that_the_counts_contradict_is_reported_and_not_used(tokenizer) -> None:
    names = ("deepseek-v4-flash-0731", "deepseek-v4.1", "served")
    for name in names:
        served, work = identified(Paper(tokenizer, model=name), quick=False)
        assert served.value("profile") == "may" and served.value("context") == "3000"
        assert len(work.contradictions) == (name != "served"), work.contradictions
        assert work.claims["context_length"] == 3000


# ------------------------------------------------------------------------------------------------------ streams


def told(rise: float | None, *sizes: list[int], word: str = "one ", drafted: int | None = None) -> str | None:
    """What is told from streams with so many words in each piece."""
    streams = [drafts.Stream(tuple(word * size for size in each), sum(each), drafted) for each in sizes]
    return Property("drafts", drafts.drafts(streams, rise)[0]).value


def test_drafts_are_pieces_of_several_tokens_that_come_again() -> None:
    rng = random.Random(2)
    for sizes, value in (
        ([rng.choice((1, 1, 2, 3, 4)) for _ in range(40)], "on"), ([rng.choice((1, 2)) for _ in range(60)], "on"),
        ([4] * 40, None), ([1] * 90, None), ([2, 3] * 5, None), ([30, 20] * 20, None),
    ):  # fmt: skip
        assert told(None, sizes, sizes) == value, sizes
        assert told(None, sizes, sizes, word="unfathomable") is None, "sent by whole words"
        assert told(None, sizes) is None and told(None, sizes, sizes[1:]) is None, "pieces that do not come again"


def test_drafts_are_on_where_the_server_counts_them(tokenizer) -> None:
    once = [1] * 90
    assert told(7.0, once, once) == "on" == told(None, once, once, drafted=3)
    assert told(0.0, once, once) == "off" and told(None, once, once, drafted=0) is None
    assert told(0.0, [1], [1]) is None, "nothing to look up"
    for text, value in (("ds4_drafted_tokens 12\nds4_turns 3\n", 12), ("ds4_turns 3\n", None), (
        '# TYPE a counter\nvllm:spec_decode_num_draft_tokens_total{engine="0",model="m"} 1.2e+1\n'
        "vllm:spec_decode_num_drafts_total 4\n", 12,
    )):  # fmt: skip
        paper = Paper(tokenizer, metrics=text)
        with paper as url, open_target(url, attempts=1) as target:
            assert drafts.counter(target, Limit(9)) == value, text


def test_a_stream_keeps_what_is_shown() -> None:
    deltas = [Delta("a", time=0.1), Delta(reasoning="b", time=0.2), Delta(time=0.3),
              Delta("", (), 0.4, "length", Usage(3, 7, drafted=2))]  # fmt: skip
    assert drafts.Stream.of(deltas) == drafts.Stream(("a", "b"), 7, 2)


# ------------------------------------------------------------------------------------------------------ context


@pytest.mark.parametrize("says, limit", [
    ("Prompt has {n} tokens, but the configured context size is 8192 tokens", 8192),
    ("This model's maximum context length is 8,192 tokens. However, you requested {n} (1 in the completion)", 8192),
    ('{{"code":400,"message":"request ({n} tokens) exceeds the available context size (8192 tokens)"}}', 8192),
    ("too long", None),
    ("between 8000 and 8192: {n}", None),
])  # fmt: skip
def test_the_limit_is_the_number_that_refusals_share(says: str, limit: int | None) -> None:
    replies = context.probe(
        lambda n: Reply(n, n) if n < 8192 else Reply(n, refusal=says.format(n=n)), 10**6, lambda: False
    )
    assert [reply.size for reply in replies] == [4000, 20000, 25000]
    assert context.limit_of(replies)[0] == limit


def test_prompts_that_are_cut_show_the_limit_as_well() -> None:
    replies = context.probe(lambda n: Reply(n, min(n, 4096)), 100_000, lambda: False)
    assert context.limit_of(replies)[0] == 4096
    assert context.limit_of([Reply(4000, 4000), Reply(20000)]) == (None, "at least 4000")


# ------------------------------------------------------------------------------------------------------ the command


def test_the_command(tokenizer, capsys) -> None:
    with Paper(tokenizer, PROFILES["0731"]) as url:
        for expect, code in (("profile=0731", 0), ("profile=may", 1), ("quantization=Q4_K", 0)):
            assert cli.main(["identify", url, "--quick", "--json", "--expect", expect]) == code
            result = json.loads(capsys.readouterr().out)
            assert result["properties"]["profile"]["value"] == "0731" and bool(result["unexpected"]) == bool(code)
        assert cli.main(["identify", url, "--quick"]) == 0
        assert "cannot tell: no hypothesis has the needed probability of 0.95" in capsys.readouterr().out
    assert cli.main(["identify", url, "--attempts", "1"]) == 1 and "no request was answered" in capsys.readouterr().err
    assert cli.main(["identify", url, "--expect", "size=1"]) == 2 and "the names are profile" in capsys.readouterr().err
