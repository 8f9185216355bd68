"""Pre-flight stage: does the target answer, which model has it loaded, and are its log probabilities valid."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ds4ref.archs.deepseek4.shape import ModelShape, nearest, unlike_published
from ds4ref.errors import Ds4Error
from ds4ref.nano.diagnostic import PROMPTS
from ds4ref.targets import Ability, Completion, Prompt, Step

from ..diagnosis.files import metadata
from ..observation import DEGENERATE
from .case import KINDS, ExamContext
from .findings import Outcome, ShownToken, Stage, distinct, visible

STEPS = 8
PROBABILITY_SLACK = 1e-3
"""Allowed excess of a sum of probabilities over 1, as APIs round to a few decimals."""
SAME_MODEL, OTHER_MODEL = 0.9, 0.5
"""Share of the target's tokens that are in the model's vocabulary: at least SAME_MODEL means the same model, less than
OTHER_MODEL another one."""
BY_TEXT = "Dump logits instead (docs/reference/doctor.md, llama.cpp): ds4-vectors diagnose --logits FILE"
SAME = 0.05
"""Nats within which two values of a token count as the same: a prompt and its echo are one prefill."""
LENGTHS = ("max_model_len", "context_length", "max_context_length", "n_ctx", "n_ctx_train", "context_window")
"""Names that servers use for their context length in /models."""


def preflight(case: ExamContext, stage: Stage) -> None:
    """Run all checks; they set ``case.kinds``, ``logprobs``, ``echo`` and ``same_model`` for later stages."""
    _file(case, stage)
    answers = _reach(case, stage)
    if not answers:
        if case.can_logits:
            _full(case, stage)
        return
    _model(case, stage, answers)
    _logprobs(stage, case, answers)
    _vocabulary(case, stage, answers)
    _full(case, stage)
    _echo(case, stage)
    _context(case, stage)


def _file(case: ExamContext, stage: Stage) -> None:
    """Compare the model file with the target's, if that is at hand, and what no tensor's shape tells with a published
    model."""
    shape = case.engine.shape
    if case.their_model is not None:
        lines = metadata(str(case.engine.path), case.their_model)
        says = "; ".join(lines) or "the target's file has the metadata of ours"
        stage.add("the target's file", Outcome.WRONG if lines else Outcome.OK, says)
    if not isinstance(shape, ModelShape):
        return
    model = nearest(shape)
    odd = [f"{key} {got}, where {model.name} has {want}" for key, (got, want) in unlike_published(shape).items()]
    if odd and (shape.dim, shape.n_layers, shape.n_experts) == (model.dim, model.n_layers, model.n_experts):
        stage.add("model file", Outcome.WRONG, f"it has the size of {model.name}, but {'; '.join(odd)}",
                  next=["Convert the model again: these values are in the file, not in the engine"])  # fmt: skip
    else:
        stage.add("model file", Outcome.OK, "; ".join(odd) + ": right if it was made so" if odd else
                  f"its constants are those of {model.name}")  # fmt: skip


def _prompts(case: ExamContext) -> Iterator[tuple[str, Prompt]]:
    for kind, ability in KINDS.items():
        if case.target.can(ability):
            if kind == "ids":
                yield kind, Prompt.tokens(PROMPTS["short"]())
            else:
                yield kind, Prompt.chat("Name three rivers.") if kind == "chat" else Prompt.plain("The old mill by the")


def _reach(case: ExamContext, stage: Stage) -> dict[str, Completion]:
    """Send a small request for each kind of prompt, first with log probabilities; return the answers by kind."""
    target = case.target
    answers: dict[str, Completion] = {}
    refused: dict[str, str] = {}
    requested = min(20, target.max_top_logprobs) if target.can(Ability.TOP_LOGPROBS) else 0
    for kind, prompt in _prompts(case):
        case.progress(f"asking with {KINDS[kind].value}")
        answer, why = case.try_ask(prompt, STEPS, requested)
        bare = None
        if answer is None and requested:
            bare, _ = case.try_ask(prompt, STEPS, 0)
            if bare is not None:
                stage.add(f"log probabilities, {kind}", Outcome.IMPOSSIBLE, f"the target answers but gives none: {why}",
                          next=_no_logprobs(case))  # fmt: skip
        usable = answer or bare
        if kind == "text" and usable is not None and target.continues_text() is False:
            why = "the server makes a chat of a text prompt: nothing is compared by such prompts"
            stage.add("text prompts", Outcome.IMPOSSIBLE, why)
            continue
        if usable is not None:
            answers[kind] = usable
            case.kinds.add(kind)
            case.logprobs = case.logprobs or bool(answer and answer.steps and answer.steps[0].top)
        else:
            refused[kind] = why
    if not answers:
        why = next(iter(refused.values()), "it takes no prompts at all")
        if case.can_logits:
            stage.add("prompts", Outcome.IMPOSSIBLE, f"only logits can be asked for: {why}")
            return {}
        stage.add("reached", Outcome.FAILED, f"no request was answered: {why}", next=_unreachable(case))
        return {}
    says = f"answers {', '.join(KINDS[kind].value for kind in answers)}"
    stage.add("reached", Outcome.OK, says, figures={"abilities": sorted(a.value for a in target.abilities)})
    for kind, why in refused.items():
        stage.add(f"{kind} prompts", Outcome.IMPOSSIBLE, why)
    return answers


def _unreachable(case: ExamContext) -> list[str]:
    if case.target.kind == "http":
        return [f"Does the server run, and is the address right? curl {case.target.name}/models shows what it serves",
                "--model-name NAME if it serves several models; its key is in DS4_API_KEY (--key-env)"]  # fmt: skip
    return ["Run the target's command by hand and read its message"]


def _no_logprobs(case: ExamContext) -> list[str]:
    return ["Start the server so that it returns log probabilities, dump logits from the engine "
            "(ds4-vectors diagnose --logits FILE), or, of ds4, examine 'command:./ds4 -m MODEL.gguf'"]  # fmt: skip


def _model(case: ExamContext, stage: Stage, answers: dict[str, Completion]) -> None:
    """Report what the target calls itself; a name is no evidence, so only contradictory names are wrong."""
    names = sorted({answer.model for answer in answers.values() if answer.model})
    figures: dict[str, Any] = {"answers as": ", ".join(names) or "no name", **case.target.identity()}
    if case.target.kind == "http":
        try:
            model = case.ask(_any_prompt(case), 1, 0).model
            figures["model asked for"] = getattr(case.target, "model", model)
        except Ds4Error as error:
            figures["model asked for"] = str(error)
    if len(names) > 1:
        stage.add("model", Outcome.WRONG, f"answers under {len(names)} names: {', '.join(names)}", figures=figures)
        return
    stage.add("model", Outcome.OK, f"calls itself {names[0] if names else 'nothing'}; a name proves nothing",
              figures=figures)  # fmt: skip


def _any_prompt(case: ExamContext) -> Prompt:
    return next(prompt for kind, prompt in _prompts(case) if kind in case.kinds)


def _logprobs(stage: Stage, case: ExamContext, answers: dict[str, Completion]) -> None:
    """Check that alternatives are finite, sorted, complete, sum to at most 1, and that the best token is taken."""
    requested = min(20, case.target.max_top_logprobs)
    places_by_fault: dict[str, list[str]] = {}
    steps = few = silent = shared = 0
    counts: list[int] = []
    where: list[tuple[str, list[ShownToken]]] = []
    for kind, answer in answers.items():
        for at, step in enumerate(answer.steps):
            steps += 1
            if not step.top:
                silent += 1
                continue
            counts.append(len(step.top))
            few += len(step.top) < requested
            shared += any(not distinct(t.raw) for t in step.top)
            for fault in faults(step, requested - len(step.top)):
                if fault not in places_by_fault:
                    where.append((f"{kind}, step {at}: {fault}", alternatives_row(step)))
                places_by_fault.setdefault(fault, []).append(f"{kind} step {at}")
    if not steps or silent == steps:
        if not any(c.name.startswith("log probabilities") for c in stage.checks):
            stage.add("log probabilities", Outcome.IMPOSSIBLE, "the answers have none", next=_no_logprobs(case))
        return
    figures = {"steps": steps, "asked for": requested, "given": f"{min(counts)} to {max(counts)}"}
    for fault, places in places_by_fault.items():
        figures[fault] = f"at {len(places)} of {steps} steps, first {places[0]}"
    if places_by_fault:
        stage.add(
            "log probabilities",
            Outcome.WRONG,
            f"{'; '.join(places_by_fault)}: these are no log probabilities to rely on",
            figures=figures,
            where=where[:4],
            next=["Look at how the server makes them: all that follows is read from them"],
        )
    else:
        stage.add("log probabilities", Outcome.OK, "finite, sorted, not above 1 together, and the best token is taken",
                  figures=figures)  # fmt: skip
    if few and shared:
        says = (f"{few} of {steps} steps list fewer than the {requested} alternatives asked for (fewest "
                f"{min(counts)}): tokens that share a text, such as '' for bytes that are no text, are one entry, and "
                "which of them its value belongs to cannot be told")  # fmt: skip
        stage.add("alternatives", Outcome.UNSURE, says, next=[BY_TEXT])
    elif few:
        says = f"{few} of {steps} steps have fewer than the {requested} alternatives asked for (fewest {min(counts)})"
        stage.add(
            "alternatives",
            Outcome.UNSURE,
            says,
            next=["Raise the server's limit of top_logprobs: with fewer alternatives small mistakes cannot be seen"],
        )
    if silent:
        stage.add("silent steps", Outcome.UNSURE, f"{silent} of {steps} steps have no alternatives at all")


def faults(step: Step, missing: int = 0) -> list[str]:
    """Return a sentence for each defect of a step's alternatives; an API's value for "none" (-9999) is no defect.

    ``missing``: how many alternatives fewer came than were asked for. An API that lists them by their text has one
    entry for tokens of equal text, at the place of the first with the value of the last: that many may be out of order.
    """
    values = [t.logprob for t in step.top]
    known = [v for v in values if v is not None]
    out = []
    if len(known) < len(values) or not all(math.isfinite(v) or v == -math.inf for v in known):
        out.append("not a number, or infinite")
    finite = [v for v in known if math.isfinite(v)]
    real = [v for v in finite if v > DEGENERATE]
    if any(v > PROBABILITY_SLACK for v in finite):
        out.append("a log probability above 0")
    elif sum(math.exp(v) for v in real) > 1 + PROBABILITY_SLACK:
        out.append("probabilities that add up to more than 1")
    if _out_of_order(finite) > max(missing, 0):
        out.append("alternatives not sorted")
    raws = [(t.raw, t.id) for t in step.top if distinct(t.raw)]
    if len(set(raws)) < len(raws):
        out.append("an alternative twice")
    own = step.token.logprob
    if own is not None and finite and math.isfinite(own) and own < max(finite) - PROBABILITY_SLACK:
        out.append("the token taken is not the best, at temperature 0")
    return out


def _out_of_order(values: Sequence[float]) -> int:
    """Return how many of ``values`` must be left out for the others to be sorted, best first."""
    longest: list[int] = []
    for i, value in enumerate(values):
        longest.append(1 + max((longest[j] for j in range(i) if values[j] >= value - 1e-6), default=0))
    return len(values) - max(longest, default=0)


def alternatives_row(step: Step, most: int = 8) -> list[ShownToken]:
    """Return a step's alternatives with their values; the token taken is marked."""

    def text(value: float | None) -> str:
        return "none" if value is None else f"{value:.4g}"

    return [ShownToken(f"{visible(t.raw)} {text(t.logprob)}", t.id, t.raw == step.token.raw) for t in step.top[:most]]


def _vocabulary(case: ExamContext, stage: Stage, answers: dict[str, Completion]) -> None:
    """Check that the target's tokens are in the model's vocabulary: else it cannot be diagnosed with this model."""
    tokenizer = case.tokenizer
    raws = {t.raw for answer in answers.values() for step in answer.steps for t in (step.token, *step.top)}
    raws = {raw for raw in raws if distinct(raw)}
    name = case.engine.shape.name or case.engine.path
    if tokenizer is None or not raws:
        why = "the model's file has no tokenizer" if tokenizer is None else "no tokens with bytes came back"
        stage.add("vocabulary", Outcome.IMPOSSIBLE, f"{why}: whether it is the same model cannot be told")
        return
    vocabulary = {tokenizer.token_bytes(i) for i in range(len(tokenizer))}
    share = len(raws & vocabulary) / len(raws)
    odd = sorted(raws - vocabulary)[:12]
    figures = {"tokens seen": len(raws), "in the vocabulary": f"{100 * share:.0f} %"}
    where = [("not in the vocabulary", [ShownToken(visible(raw)) for raw in odd])] if odd else []
    if share >= SAME_MODEL:
        case.same_model = True
        stage.add("vocabulary", Outcome.OK, f"the tokens are those of {name}", figures=figures, where=where)
        return
    case.same_model = False if share < OTHER_MODEL else None
    says = f"{100 - 100 * share:.0f} % of the tokens are not in the vocabulary of {name}: another model, or tokens " \
           "that the server garbles"  # fmt: skip
    stage.add("vocabulary", Outcome.UNSURE, says, figures=figures, where=where, next=[
        "Give the model that the target has loaded with -m MODEL.gguf, or load the diagnostic model into it: "
        "ds4-vectors model prints its file"])  # fmt: skip


def _echo(case: ExamContext, stage: Stage) -> None:
    """Check whether the target returns a prompt's own log probabilities, which shows all positions at once."""
    if case.local is not None:
        return
    if not (case.target.can(Ability.SCORE) and "text" in case.kinds and case.logprobs):
        stage.add(
            "echo", Outcome.IMPOSSIBLE, "no log probabilities of a prompt: only what is generated can be looked at"
        )
        return
    text = "The old mill by the river."
    try:
        steps = case.target.score_text(text, case.top)
        case.echo = b"".join(s.token.raw for s in steps) == text.encode()
        why = "the echo is not the text that was sent"
        if case.echo and steps[-1].top:
            after = case.ask(Prompt.plain(text)).steps[:1]
            case.echo_early = bool(after) and _same(steps[-1], after[0]) and not _same(steps[-2], steps[-1])
    except Ds4Error as error:
        why = str(error)
    if case.echo_early:
        case.echo = False
        says = ("each token is listed with the distribution after it, which belongs to the next one: what others score "
                "by this echo is off by one; here it is read as it is meant")  # fmt: skip
        where = [("last of the echo", alternatives_row(steps[-1])), ("next token", alternatives_row(after[0]))]
        stage.add("echo", Outcome.WRONG, says, where=where, figures={"tokens": len(steps)})
    elif case.echo:
        stage.add("echo", Outcome.OK, "returns the log probabilities of a prompt", figures={"tokens": len(steps)})
    else:
        stage.add("echo", Outcome.IMPOSSIBLE, f"{why}: only what is generated can be looked at")


def _same(a: Step, b: Step) -> bool:
    """Whether two steps list the same distribution, but for what another order of sums makes."""
    first, second = ({t.raw: t.logprob for t in step.top if distinct(t.raw)} for step in (a, b))
    shared = [(first[raw], second[raw]) for raw in first if raw in second]
    near = [x is not None and y is not None and abs(x - y) < SAME for x, y in shared]
    return 2 * len(shared) > len(first) and sum(near) > 0.8 * len(near)


def _full(case: ExamContext, stage: Stage) -> None:
    """Check logits of the whole vocabulary, if the target gives them: shape, and all finite."""
    if not case.target.can(Ability.FULL_LOGITS):
        return
    ids = PROMPTS["short"]()
    case.progress("full logits")
    logits = case.target.logits(ids)
    vocab = case.engine.shape.vocab
    figures = {"shape": list(logits.shape), "type": str(logits.dtype)}
    if logits.shape != (len(ids), vocab):
        stage.add("full logits", Outcome.WRONG, f"of shape {logits.shape}, not ({len(ids)}, {vocab})", figures=figures)
        return
    bad = np.argwhere(~np.isfinite(logits))
    if len(bad):
        says = f"{len(bad)} of {logits.size} are not finite, first at position {bad[0][0]}, token {bad[0][1]}"
        stage.add("full logits", Outcome.WRONG, says, figures=figures,
                  where=[("prompt", _token_row(case, ids, int(bad[0][0])))])  # fmt: skip
    else:
        stage.add("full logits", Outcome.OK, "all finite", figures=figures)
    case.same_model = True if case.same_model is None else case.same_model


def _token_row(case: ExamContext, ids: Sequence[int], at: int) -> list[ShownToken]:
    from .findings import row

    return row([case.token(i) for i in ids], at)


def _context(case: ExamContext, stage: Stage) -> None:
    """Report the target's context length, if it tells."""
    if case.local is not None:
        stage.add("context", Outcome.OK, f"{case.local.ctx} tokens", figures={"tokens": case.local.ctx})
        return
    lengths = _context_lengths(_model_listing(case), str(getattr(case.target, "model", "")))
    if lengths:
        stage.add("context", Outcome.OK, ", ".join(f"{k} {v}" for k, v in lengths.items()), figures=dict(lengths))
    else:
        stage.add("context", Outcome.IMPOSSIBLE, "the target does not tell its context length")


def _model_listing(case: ExamContext) -> dict[str, Any]:
    """Return the server's answer to /models; empty for other targets and for servers without one."""
    transport = getattr(case.target, "transport", None)
    try:
        listing = None if transport is None else transport.get("/models")
    except Ds4Error:
        listing = None
    return listing if isinstance(listing, dict) else {}


def _context_lengths(answer: dict[str, Any], model: str) -> dict[str, int]:
    """Return the context lengths in an answer to /models, of the requested model if it is listed."""
    listed = answer.get("data")
    entries = [e for e in listed if isinstance(e, dict)] if isinstance(listed, list) else []
    listed_models = [e for e in entries if e.get("id") == model] or entries[:1]
    lengths: dict[str, int] = {}
    for entry in listed_models:
        for part in (entry, entry.get("meta")):
            if isinstance(part, dict):
                lengths |= {k: v for k, v in part.items() if k in LENGTHS and isinstance(v, int)}
    return lengths
