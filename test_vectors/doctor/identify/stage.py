"""Identify a server: ask, compute probabilities, and state the result; the stage ``identify`` of doctor."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ds4ref.archs.deepseek4.checkpoint import checkpoint_of
from ds4ref.cancellation import Cancellation
from ds4ref.engine import Engine
from ds4ref.errors import Ds4Error, TextError
from ds4ref.targets import Ability, Message, Prompt, Request, Target
from ds4ref.targets.transport import Refused
from ds4ref.text.tokenizer import Tokenizer

from ...elicit import tokenizer_of
from ...finding import Outcome
from ..case import TOP, ExamContext
from ..examination import Stage
from ..limits import Limit
from ..served import NEEDED, UNKNOWN, Served
from . import claims, context, drafts
from .asking import Asker
from .posterior import Manner, Posterior
from .shapes import (
    BASE,
    CONTROLS,
    CORNERS,
    SYSTEM,
    TEMPLATES,
    TEXTS,
    TURNS,
    Length,
    Measured,
    OwnTemplate,
    Shape,
    Template,
    lengths_of,
    with_system,
)  # fmt: skip
from .weights import SAME, WEIGHTS, Comparison

WITHIN = "a\n{}\na"
"""Form of messages with texts to count. They begin and end as the message of ``BASE`` does: where a template has no
control tokens around a message, its ends may be one token with the template's text."""
TOLD = 0.02
"""A count is asked for if it tells at least this many bits."""
FEWEST_TEXTS, MOST_TEXTS = 3, 6
DETAILS = 2
"""Number of shapes asked for in any case in which servers of one template differ: they show templates not known."""
QUESTION = Shape("a question", (Message("user", "Name three rivers."),))
REPEATED = "Write this line ten times: one two three one two three one two three one two three"
ANSWER = 24
STREAMED = 128
"""Tokens of the answers by which the thinking default and drafts are told."""
RELEASES = {"may": {"may": 0.7, "0731": 0.2}, "0731": {"0731": 0.5, "0813": 0.25, "may": 0.1}, "v4.1": {"v4.1": 0.9}}
"""Template -> probability of each checkpoint, if nothing else is known: servers also render the wrong one."""


@dataclass
class Identification:
    """Identifies a target; the results are in ``served``, what the target claims in ``claims``.

    target      the target
    limit       time limit, which also cancels requests
    engine      our engine with the model file that the target may have loaded; None: without
    tokenizers  candidates by name
    progress    called with a line of text while it works
    quick       leave out the context limit
    contradictions  sentences on claims that the measurements contradict
    turns       what is wrong with earlier turns of a conversation (``Comparison.turns``)
    """

    target: Target
    limit: Limit
    engine: Engine | None = None
    tokenizers: Mapping[str, Tokenizer] = field(default_factory=dict)
    progress: Callable[[str], None] = lambda line: None
    quick: bool = False
    served: Served = field(default_factory=Served)
    claims: dict[str, Any] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)
    turns: tuple[str, float, float] | None = None

    def run(self) -> Served:
        """Ask everything and return the properties."""
        self.asker = Asker(self.target, self.limit)
        self.setting = "off"
        self.asker.greet()
        self.progress("tokenizer")
        tokenizer, length = self._tokenizer()
        templates = list(_templates(tokenizer))
        system = None if self.base is None else self.asker.count(SYSTEM, self.setting)
        if self.base is not None and system is not None:
            templates += with_system(templates, self.base, system)
        posterior = Posterior(templates, length)
        self.counted = ""
        if self.base is not None:
            self._counts(posterior, system)
        self.progress("log probabilities")
        comparison = self._weights(posterior)
        self.progress("thinking by default")
        behaviour = self._thinking(posterior)
        self._report(posterior, comparison, behaviour)
        self.turns = None if comparison is None else comparison.turns()
        self.progress("control strings")
        self._escaping()
        self.progress("drafts")
        self._drafts()
        self.progress("context limit")
        self._context(length)
        if self.asker.http:
            self.claims = claims.read(self.target)
            self.limit.check()
            self.contradictions = claims.contradictions(self.claims, self.served)
        return self.served

    # --- counts

    def _count(self, text: str) -> int | None:
        return self.asker.count(Shape(text[:20], (Message("user", text),)), self.setting)

    def _tokenizer(self) -> tuple[Tokenizer | None, Length]:
        """Tell the tokenizer from the counts of several texts; return it, and the lengths of texts by it."""
        self.base = self._steady()
        if self.base is None:
            self.setting = self.asker.settings[0]
            self.base = self._steady()
        if self.base is None:
            self.served.add("tokenizer", {}, "the server reports no prompt token counts, or varying ones")
            name, known = next(iter(self.tokenizers.items()), ("", None))
            return known, lengths_of(known) if known else Measured(lambda text: None)
        left = {name: lengths_of(each) for name, each in self.tokenizers.items()}
        texts = {name: WITHIN.format(text) for name, text in TEXTS.items()}
        seen = list[str]()
        while left and texts and len(seen) < (MOST_TEXTS if len(left) > 1 else FEWEST_TEXTS):
            name = max(texts, key=lambda name: len({each(texts[name]) for each in left.values()}))
            if len(seen) >= FEWEST_TEXTS and len({each(texts[name]) for each in left.values()}) < 2:
                break
            text = texts.pop(name)
            if (count := self._count(text)) is None:
                continue
            right = {each: length for each, length in left.items() if length(text) == count - self.base + 1}
            if right or self._count(text) == count:  # a count that does not repeat refutes nothing
                seen.append(name)
                left = right
        share, other = 0.8 * len(left) / max(1, len(self.tokenizers)), 0.2 * 0.1 ** len(seen)
        odds = {" or ".join(left): share, UNKNOWN: other} if left else {UNKNOWN: 1.0}  # equal on all texts
        says = f"token counts of {len(seen)} texts ({', '.join(seen)})" if seen else "no candidates"
        self.served.add("tokenizer", {name: p / sum(odds.values()) for name, p in odds.items()} if seen else {},
                        says + ("; no candidate gives them" if seen and not left else ""))  # fmt: skip
        if left:
            name = next(iter(left))
            return self.tokenizers[name], left[name]
        return None, Measured(self._measured)

    def _steady(self) -> int | None:
        """Return the count of the shortest conversation, which two of up to three requests agree on; None if none
        do."""
        counts: list[int | None] = []
        while len(counts) < 3:
            counts.append(self.asker.count(BASE, self.setting))
            if counts[-1] is None or counts[-1] in counts[:-1]:
                return counts[-1]
        return None

    def _measured(self, piece: str) -> int | None:
        """Return the length of an effort text or of line feeds by the server's tokenizer."""
        feeds = not piece.strip("\n")
        count = self._count(f"a{piece}b" if feeds else f"{piece}a")
        return None if count is None or self.base is None else count - self.base - feeds

    def _counts(self, posterior: Posterior, system: int | None) -> None:
        """Ask for the counts of conversations, those first that tell most, and update ``posterior``."""
        assert self.base is not None
        posterior.observe(BASE, self.setting, self.base)
        if system is not None:
            posterior.observe(SYSTEM, self.setting, system)
        if (count := self.asker.count(TURNS, self.setting)) is not None:
            posterior.observe(TURNS, self.setting, count)
        pool = [(BASE, setting) for setting in self.asker.settings if setting != self.setting]
        pool += [(shape, self.setting) for shape in CORNERS]
        wanted = DETAILS
        while pool:
            bits, shape, setting = posterior.best(pool)
            if bits < TOLD:
                details = [each for each in pool if not each[0].core]
                if wanted <= 0 or not details:
                    break
                shape, setting = details[0]
            self.progress(f"tokens of {shape.name}, {setting}")
            pool.remove((shape, setting))
            wanted -= not shape.core
            if (count := self.asker.count(shape, setting)) is not None:
                posterior.observe(shape, setting, count)
        known = dict(posterior.counts)
        repeated = known if posterior.profile[UNKNOWN] > 0.5 else {(BASE, self.setting): self.base}
        for (shape, setting), count in repeated.items():  # before no template fits, or all is relied on
            again = self.asker.count(shape, setting)
            if again is not None and again != count:
                self.counted = f"equal requests ({shape.name}) have {count} and {again} prompt tokens"
                break
        if self.counted:
            posterior.forget()
        elif self.target.can(Ability.TEXT) and (plain := self.asker.text("a")) is not None and plain < 4:
            posterior.plain(plain, 1)

    # --- log probabilities and answers

    def _weights(self, posterior: Posterior) -> Comparison | None:
        """Compare log probabilities with our engine's, if both have some and the tokenizer fits."""
        top = min(TOP, self.target.max_top_logprobs)
        if self.engine is None or tokenizer_of(self.engine) is None:
            return None
        if self.base is not None and self.served.value("tokenizer") in (None, UNKNOWN):
            return None
        comparison = Comparison(self.engine)
        comparison.run(self.asker, posterior, top)
        return comparison if comparison.answers or comparison.distance is not None else None

    def _thinking(self, posterior: Posterior) -> str:
        """Compare answers with thinking by default, on and off, and update ``posterior``; return the evidence."""
        odds = posterior.odds(lambda template, manner, *_: "on" if manner.thinks else "off")
        if not self.asker.http or max(odds.values(), default=1.0) > 0.99:
            return ""
        answers = {}
        for setting in ("default", "on", "off"):
            if (answer := self.asker.answer(QUESTION, setting, ANSWER)) is not None:
                answers[setting] = (answer.reasoning, answer.text)
        again = self.asker.answer(QUESTION, "default", ANSWER)
        if "default" not in answers or again is None:
            return ""
        default, log, says = answers["default"], 0.0, list[str]()
        steady = (again.reasoning, again.text) == default
        alike = {name for name in ("on", "off") if answers.get(name) == default} if steady else set()
        if alike in ({"on"}, {"off"}) and len(answers) > 2:
            log += math.log(30) if alike == {"on"} else -math.log(30)
            says.append(f"the answer equals that with thinking {next(iter(alike))}, not the other")
        reasons = {name: bool(reasoning) or "</think>" in text for name, (reasoning, text) in answers.items()}
        if reasons["default"] and not reasons.get("off"):
            log += math.log(20)
            says.append("the answer has reasoning")
        elif not reasons["default"] and reasons.get("on"):
            log -= math.log(20)
            says.append("the answer has no reasoning, with thinking on it has")
        switched = (
            math.log(20) if steady and {"on", "off"} <= answers.keys() and answers["on"] != answers["off"] else 0.0
        )
        posterior.weigh(lambda t, m, bos: (log if m.thinks else 0.0) + (switched if m.switch else 0.0), 0.0)
        return "; ".join(says)

    def _escaping(self) -> None:
        """Tell what becomes of control strings in a message from two counts, which differ by one string and a
        letter."""
        counts = [self.asker.count(shape, self.setting) for shape in CONTROLS] if self.base is not None else [None]
        if None in counts:
            self.served.add("escaping", {}, "no token counts of messages with control strings")
            return
        more = int(counts[1] or 0) - int(counts[0] or 0)
        kind = "control" if more == 2 else "text" if more >= 4 else "removed" if more in (0, 1) else ""
        plain = self.served.value("profile") in ("own", UNKNOWN)  # whose control strings are others
        odds = {kind: 0.98} if kind and not self.counted and not plain else {}
        self.served.add("escaping", odds, f"one more {CONTROLS[0].messages[0].content[1:-1]} and a letter in a message "
                        f"make {more} tokens")  # fmt: skip

    def _report(self, posterior: Posterior, comparison: Comparison | None, behaviour: str) -> None:
        """Add the properties that ``posterior`` tells."""
        add, measured = self.served.add, posterior.counts or comparison is not None and comparison.answers
        shown = ", ".join(f"{shape.name} ({setting}) {n}" for (shape, setting), n in posterior.counts.items())
        says = self.counted or (f"prompt tokens: {shown}" if shown else "no token counts")
        if comparison is not None:
            says += f"; {comparison.answers} answers like our engine's"
        refused = [f"{name}: {why[-120:]}" for name, why in self.asker.refused.items()]
        says += f"; refused: {'; '.join(refused)}" if refused else ""
        add("profile", posterior.profile if measured else {}, says)
        add("bos", posterior.odds(lambda t, m, bos, offset: str(max(0, bos - 1 + t.bos))) if measured else {}, says)
        add("effort", posterior.odds(_effort) if measured else {}, says)
        thinks = posterior.odds(lambda template, manner, *_: "on" if manner.thinks else "off")
        add("thinking", thinks if measured or behaviour else {}, behaviour or says)
        self._checkpoint(posterior, comparison)

    def _checkpoint(self, posterior: Posterior, comparison: Comparison | None) -> None:
        """Tell the weights from the distance of log probabilities, else what the template makes likely."""
        odds: dict[str, float] = {}
        for profile, p in posterior.profile.items():
            for name, share in RELEASES.get(profile, {}).items():
                odds[name] = odds.get(name, 0.0) + p * share
        says, formats = "the template; weights cannot be told by it", dict[str, float]()
        formatted = "no log probabilities to compare, or no model"
        if comparison is not None and comparison.distance is not None and self.engine is not None:
            says = f"log probabilities are {comparison.distance:.2g} nats rms from our engine's on {self.engine.path}"
            if comparison.answers and comparison.distance < WEIGHTS:
                known = checkpoint_of(self.engine.source)
                name = {"preview": "may", "dspark": "may"}.get(known.release, known.release)
                odds = {name: 0.98} if name and known.sure else {}
                says += ": its weights" + ("" if odds else ", of an unknown checkpoint")
                rounding, gap = comparison.rounded()
                formatted = f"{gap:.2g} nats rms from our engine's, rounded as {rounding}"
                if gap < SAME:
                    types = sorted({info.fmt.name for info in self.engine.source.tensors.values()})
                    formats = {f"as the file ({', '.join(types)})": 0.97}
        self.served.add("checkpoint", odds if posterior.counts or comparison else {}, says)
        self.served.add("quantization", formats, formatted)

    # --- streams, context, claims

    def _drafts(self) -> None:
        streams, before = list[drafts.Stream](), drafts.counter(self.target, self.limit)
        with suppress(Ds4Error):
            for _ in range(2):
                streams.append(drafts.Stream.of(self.asker.stream([Message("user", REPEATED)], STREAMED)))
        self.limit.check()
        after = None if before is None else drafts.counter(self.target, self.limit)
        self.served.add("drafts", *drafts.drafts(streams, None if before is None or after is None else after - before))

    def _context(self, length: Length) -> None:
        """Send prompts that may be too long."""
        if self.quick or not self.asker.http:
            self.served.add("context", {}, "not asked")
            return
        unit = (length(" a" * 101) or 0) - (length(" a") or 0)
        if not unit and self.base is not None and (count := self._count("a" + " a" * 100)):
            unit = count - self.base
        per = max(unit, 1) / 100 if unit else 1.0

        def send(size: int) -> context.Reply:
            self.progress(f"a prompt of {size} tokens")
            cancel = Cancellation()
            timer = threading.Timer(5 + size / 20_000, cancel.press)
            timer.start()
            prompt = Prompt((Message("user", " a" * int(size / per)),))
            try:
                with self.limit.does(cancel.press):
                    count = self.target.complete(Request(prompt, 1, cancel=cancel)).usage.prompt
                self.limit.check()
                return context.Reply(size, count)
            except Refused as error:
                return context.Reply(size, refusal=error.reply if error.status < 500 else None)
            except Ds4Error:
                self.limit.check()
                return context.Reply(size)
            finally:
                timer.cancel()

        start = time.monotonic()
        replies = context.probe(send, 300_000, lambda: time.monotonic() - start > 60)
        limit, says = context.limit_of(replies)
        self.served.add("context", {} if limit is None else {str(limit): 0.97}, says)


def _effort(template: Template, manner: Manner, *_: int) -> str:
    """Return the effort of a request that names none; May's template has no text for "low", which is "high" there."""
    capped = manner.effort == "max" and manner.caps
    return "high" if capped or manner.effort == "low" and template.name == "may" else manner.effort


def _templates(tokenizer: Tokenizer | None) -> tuple[Any, ...]:
    """Return the templates to choose from: DeepSeek's, and that of the model's file if it has one of its own."""
    if tokenizer is None or tokenizer.template is None:
        return TEMPLATES
    own = OwnTemplate("own", 1.0, TEMPLATES[0].render, tokenizer=tokenizer)
    with suppress(TextError):
        own = replace(own, bos=own.ids(BASE, "none", tokenizer)[:2].count(tokenizer.bos))
    return (own, *TEMPLATES)


def candidates(engine: Engine | None) -> dict[str, Tokenizer]:
    """Return the tokenizer of an engine's model, and the same with ds4's pre-tokenizer, by name."""
    known = None if engine is None else tokenizer_of(engine)
    if known is None or engine is None:
        return {}
    name = engine.shape.name or "the model's"
    if type(known) is not Tokenizer:
        return {name: known}
    import copy

    other = copy.copy(known)
    other.split, other._pieces = "ds4" if known.split == "unicode" else "unicode", {}
    return {name: known, f"{name} with {other.split} splits": other}


def identify(case: ExamContext, stage: Stage) -> None:
    """Identify the target; the properties become ``case.served`` and findings of the stage."""
    if "chat" not in case.kinds:
        stage.add("identify", Outcome.IMPOSSIBLE, "the target does not support chat")
        return
    known = case.same_model is not False
    work = Identification(case.target, case.limit, case.engine if known else None,
                          candidates(case.engine) if known else {}, case.progress, case.quick, case.served)  # fmt: skip
    work.run()
    for name, found in case.served.properties.items():
        value = found.value
        says = f"{value} (probability {found.probability:.3f})" if value else f"cannot tell ({_close(found.odds)})"
        stage.add(name, Outcome.OK if value else Outcome.IMPOSSIBLE, says, figures={"odds": dict(found.odds)},
                  notes=[found.evidence])  # fmt: skip
    if work.turns is not None:
        name, gap, first = work.turns
        stage.add("earlier turns", Outcome.WRONG if name else Outcome.UNSURE,
                  f"{name or 'rendered as by no known template'}: answers to three turns are {gap:.2g} nats "
                  f"from our engine's, answers to first turns {first:.2g}", cause="template")  # fmt: skip
    for line in work.contradictions:
        stage.add("claims", Outcome.UNSURE, line)


def _close(odds: Mapping[str, float]) -> str:
    """Return the likeliest hypotheses with their probabilities, and the probability that is needed."""
    likely = sorted(odds.items(), key=lambda item: -item[1])[:3]
    return ", ".join([*(f"{name} {p:.2f}" for name, p in likely), f"{NEEDED} needed"])
