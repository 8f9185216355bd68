"""Check the prompt before the model evaluates it: tokenizer and chat template.

Tokens are compared in the best of four ways that the target supports: by token ids, by the bytes of echoed tokens, by
the number of tokens of a plain prompt, or by that of a chat. A wrong count shows a mistake; a right one proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ds4ref.errors import Ds4Error
from ds4ref.targets import Ability, Prompt
from ds4ref.text.prompts import encode_chat_prompt
from ds4ref.text.tokenizer import Tokenizer

from ..diagnosis.prompts import MISTAKES
from ..finding import Outcome, ShownToken, row, visible
from .case import ExamContext
from .examination import OTHER, Stage
from .identify.posterior import Posterior
from .identify.shapes import TEMPLATES, TEXTS, Shape, lengths_of
from .numbers import chat
from .served import Property

QUICK = ("prose", "digits", "CJK and kana", "leading space")
CHATS = {
    "user": ("", "Name three rivers.", "none"),
    "system and user": ("Answer in one word.", "Name three rivers.", "none"),
    "several lines": ("", "First line.\n\nThird line.\n", "none"),
    "thinking": ("", "Name three rivers.", "high"),
    "system, thinking": ("Answer in one word.", "Name three rivers.", "high"),
}
CONTROL = "control strings"
NAMES = {"may": "May", "0731": "0731", "v4.1": "V4.1"}
"""Versions of DeepSeek's prompt format, by the name in the code: what the report calls them."""
LIKELY = 0.5
"""Probability above which a template counts as the one rendered: equal counts of all chats are the prompts' own."""
Tokens = Sequence[tuple[bytes, int | None]]
Counts = dict[str, tuple[int, list[int]]]
"""By name of a prompt: (number of tokens that the target counted, the ids that are right)."""


def tokenizer(case: ExamContext, stage: Stage) -> None:
    """Compare how the target and the model split many kinds of text, in the best way that the target supports."""
    ours = _ours(case, stage, "tokenizer")
    if ours is None:
        return
    texts = {name: TEXTS[name] for name in QUICK} if case.quick else TEXTS
    control = f"say {ours.token_bytes(ours.eos).decode()} and {ours.token_bytes(ours.user).decode()} aloud"
    if case.target.can(Ability.TOKENIZE) or case.echo or case.echo_early:
        _by_tokens(case, stage, ours, texts, control)
    elif "text" in case.kinds and _asked(case, Prompt.plain(TEXTS["prose"]))[0] is not None:
        _by_count(case, stage, texts, control, "plain", Prompt.plain, ours.encode)
    elif "chat" in case.kinds and _asked(case, Prompt.chat(TEXTS["prose"]))[0] is not None:
        _by_count(case, stage, texts, control, "chat", Prompt.chat, lambda t: encode_chat_prompt(ours, "", t, "none"))
    else:
        stage.add("tokenizer", Outcome.IMPOSSIBLE, "the target exposes no token ids, echoed tokens or token counts")
    case.tokenizer_wrong = stage.outcome is Outcome.WRONG


def _ours(case: ExamContext, stage: Stage, name: str) -> Tokenizer | None:
    """Return the model's tokenizer; None, with a finding of this ``name``, if the target cannot be compared with it."""
    if case.tokenizer is None:
        stage.add(name, Outcome.IMPOSSIBLE, "the model's file has no tokenizer to compare with")
    elif case.same_model is False:
        stage.add(name, Outcome.IMPOSSIBLE, OTHER, next=["Give the target's model with -m MODEL.gguf"])
        return None
    return case.tokenizer


def _by_tokens(case: ExamContext, stage: Stage, ours: Tokenizer, texts: Mapping[str, str], control: str) -> None:
    """Compare the target's token ids, or the bytes of its echoed tokens, with ours.

    ours     the model's tokenizer
    texts    texts by name
    control  a text with the strings of control tokens, which should stay text in a prompt
    """
    dumped = case.target.kind == "command"  # an external binary's token dump recognises control strings
    ids = case.target.can(Ability.TOKENIZE)
    for name, text in [*texts.items(), (CONTROL, control)]:
        case.progress(f"tokens of {name}")
        try:
            if ids:
                got = case.target.tokenize(text, dumped)
                theirs: Tokens = [case.token(i) if 0 <= i < len(ours) else (b"?", i) for i in got]
            else:
                theirs = [(s.token.raw, s.token.id) for s in case.target.score_text(text, 1) if s.token.raw]
        except Ds4Error as error:
            outcome, says = (Outcome.IMPOSSIBLE, "") if ids else (Outcome.UNSURE, "the echo cannot be read: ")
            stage.add(name, outcome, f"{says}{error}")
            continue
        plain, parsed = ours.encode(text), ours.encode_rendered(text)
        if not dumped and plain != parsed and [raw for raw, _ in theirs] == [ours.token_bytes(i) for i in parsed]:
            _forgeable(stage, "plain")
        else:
            want = [case.token(i) for i in (parsed if dumped else plain)]
            _compare(stage, name, want, theirs, "ids" if ids else "the echoed tokens")


def _forgeable(stage: Stage, kind: str) -> None:
    stage.add(CONTROL, Outcome.UNSURE, f"control strings in a {kind} prompt become control tokens", cause="template",
              notes=["prompt injection: user text can end a turn or begin another; ds4's own server allows this too"],
              next=["Tokenize user and tool text without parsing special tokens"])  # fmt: skip


def _compare(stage: Stage, name: str, ours: Tokens, theirs: Tokens, how: str) -> None:
    """Add a finding about the tokens of one text: whether ``theirs`` equal ``ours``, by ids if known, else by bytes.

    name  of the text
    how   by what they were compared, for the report
    """
    equal = [a[1] == b[1] if b[1] is not None else a[0] == b[0] for a, b in zip(ours, theirs, strict=False)]
    at = equal.index(False) if False in equal else min(len(ours), len(theirs))
    if at == len(ours) == len(theirs):
        stage.add(name, Outcome.OK, f"{len(ours)} tokens, identical by {how}")
        return
    got, want = (visible(side[at][0]) if at < len(side) else "the end" for side in (theirs, ours))
    stage.add(name, Outcome.WRONG, f"token {at} is {got}, not {want} ({len(theirs)} tokens, not {len(ours)})",
              where=[("theirs", row(theirs, at)), ("right", row(ours, at))],
              next=["Check the pre-tokenizer regex and the merges against docs/explanation/text.md"])  # fmt: skip


# ------------------------------------------------------------------------------------------------------ counts


def _asked(case: ExamContext, prompt: Prompt) -> tuple[int | None, str]:
    """Return (the number of tokens that the target counts in a prompt, ""), or (None, why there is no number)."""
    answer, why = case.try_ask(prompt, 1, 0)
    count = None if answer is None else answer.usage.prompt
    return count, why or ("" if count is not None else "the response has no prompt token count")


def _counted(case: ExamContext, stage: Stage, prompts: Mapping[str, tuple[Prompt, list[int]]]) -> Counts:
    """Return the target's token counts of several prompts; ``prompts``: by name, (prompt, its right ids)."""
    counts: Counts = {}
    for name, (prompt, ids) in prompts.items():
        if case.out_of_time:
            stage.add(name, Outcome.SKIPPED, "out of time")
            continue
        case.progress(f"tokens of {name}")
        count, why = _asked(case, prompt)
        if count is None:
            stage.add(name, Outcome.IMPOSSIBLE, why)
        else:
            counts[name] = count, ids
    return counts


def _by_count(
    case: ExamContext, stage: Stage, texts: Mapping[str, str], control: str, kind: str,
    make: Callable[[str], Prompt], encode: Callable[[str], list[int]],
) -> None:  # fmt: skip
    """Compare the target's token counts of ``texts`` with ours.

    control  a text with the strings of control tokens, which should stay text in a prompt
    kind     "plain" or "chat" prompts
    make     function that makes a prompt of a text
    encode   function that returns that prompt's right ids

    A difference that is the same for every text comes from the chat template around it, which the template stage
    judges; here only differences that vary with the text are wrong.
    """
    counts = _counted(case, stage, {name: (make(text), encode(text)) for name, text in texts.items()})
    if not counts:
        return
    deltas = [got - len(want) for got, want in counts.values()]
    shift = max(set(deltas), key=lambda d: (deltas.count(d), -abs(d)))
    offset = f", always {shift:+d}" if shift else ""
    case.offset = shift if kind == "plain" else 0
    wrong = {name: (got, want) for name, (got, want) in counts.items() if got - len(want) != shift}
    limit = "counts cannot detect a token replaced by another"
    _judged(case, stage, counts, wrong, "texts", f" ({kind} prompts{offset})", limit, shift)
    if abs(case.offset) > 1:
        stage.add("extra tokens in a plain prompt", Outcome.UNSURE, f"{shift:+d} tokens in every plain prompt")
    count, ours = _asked(case, make(control))[0], case.tokenizer
    if count is not None and ours is not None:
        saved = len(ours.encode(control)) - len(ours.encode_rendered(control))
        got, want = count - shift, len(encode(control))
        if saved and got == want - saved:
            _forgeable(stage, kind)
        else:
            outcome = Outcome.OK if got == want else Outcome.UNSURE
            stage.add(CONTROL, outcome, f"stay text ({kind} prompts)" if got == want else f"{got} tokens, ours {want}")


def _judged(case: ExamContext, stage: Stage, counts: Counts, wrong: Counts, what: str, about: str, limit: str,
            shift: int = 0, notes: Sequence[str] = ()) -> None:  # fmt: skip
    """Add a finding about token counts, of which those in ``wrong`` differ from ours.

    what, about, limit, notes  texts for the report: what was counted, a remark, the detection limit, notes
    shift                      tokens by which all counts are larger than ours, which is not wrong
    """
    figures = {name: f"{got} tokens, ours {len(want)}" for name, (got, want) in counts.items()}
    if not wrong:
        stage.add("counts", Outcome.OK, f"{len(counts)} {what} have the right token counts{about}", figures=figures,
                  limit=limit)  # fmt: skip
        return
    name, (got, want) = next(iter(wrong.items()))
    assert case.tokenizer is not None
    pieces = [ShownToken(visible(case.tokenizer.token_bytes(i)), i) for i in want]
    says = f"{name}: {got} prompt tokens, not {len(want) + shift} ({len(wrong)} of {len(counts)} {what} differ){about}"
    stage.add("counts", Outcome.UNSURE if case.tokenizer_wrong else Outcome.WRONG, says, figures=figures,
              where=[(f"right, {name}", pieces)], notes=list(notes), limit=limit,
              next=["Print the prompt and the token ids of your engine and compare them with these "
                    "(docs/explanation/text.md)"])  # fmt: skip


# ------------------------------------------------------------------------------------------------------ template


def template(case: ExamContext, stage: Stage) -> None:
    """Compare chat prompts of several shapes, then diagnose the answer to one of them (``numbers.chat``)."""
    ours = _ours(case, stage, "template")
    if ours is None:
        return
    if "chat" not in case.kinds:
        stage.add("template", Outcome.IMPOSSIBLE, "the target does not support chat")
        return
    prompts = {name: (Prompt.chat(user, system, thinking), encode_chat_prompt(ours, system, user, thinking))
               for name, (system, user, thinking) in CHATS.items()}  # fmt: skip
    if counts := _counted(case, stage, prompts):
        wrong = {name: pair for name, pair in counts.items() if pair[0] != len(pair[1])}
        own = "may" if ours.profile is None else ours.profile.name
        form = rendered_form(case, ours, counts)
        known = wrong and form in NAMES and form != own
        about = f": it renders {NAMES[str(form)]}'s template on a {NAMES[own]} checkpoint" if known else ""
        limit = "counts cannot tell <think> from </think> or one marker from another; the logits after a chat can"
        _judged(case, stage, counts, wrong, "chats", about, limit, notes=_causes(case, ours, counts))
        stage.checks[-1].figures["template"] = form or "cannot tell"
    chat(case, stage)


def _causes(case: ExamContext, ours: Tokenizer, counts: Counts) -> list[str]:
    """Return sentences on what may have caused wrong token counts."""
    notes = ["the tokenizer is wrong too: fix that first"] if case.tokenizer_wrong else []
    deltas = {name: got - len(want) for name, (got, want) in counts.items()}
    if case.offset and set(deltas.values()) == {case.offset}:
        notes.append(f"plain prompts count {case.offset:+d} too: an extra leading token, or the count itself is wrong")
    with_system, without = (
        {d for name, d in deltas.items() if bool(CHATS[name][0]) is given} for given in (True, False)
    )
    if with_system == {0} and len(without) == 1 and min(without) > 0:
        notes.append(f"only chats without a system prompt differ: the server adds its own of {min(without)} tokens")
    if "tokenizer.chat_template" not in case.engine.source.metadata:
        notes.append("the model file has no chat template: a server that reads it from the file falls back to its own")
    return notes + [f"this bug would give the same counts: {mistake}" for mistake in fitting_mistakes(ours, counts)]


def rendered_form(case: ExamContext, ours: Tokenizer, counts: Counts) -> str | None:
    """Return the template that the target was identified as, else the likeliest one that gives the counts of ``CHATS``.

    "unknown": none of the known ones; None: cannot tell, or the model has a template of its own.
    """
    if ours.template is not None or case.served.value("profile"):
        return case.served.value("profile")
    posterior = Posterior(TEMPLATES, lengths_of(ours))
    for name, (got, _) in counts.items():
        system, user, thinking = CHATS[name]
        shape = Shape(name, Prompt.chat(user, system).messages)
        posterior.observe(shape, "off" if thinking == "none" else thinking, got)
    rendered = Property("profile", posterior.profile)
    return rendered.likeliest if rendered.probability > LIKELY else None


def fitting_mistakes(ours: Tokenizer, counts: Counts) -> list[str]:
    """Return the template mistakes, in words, that would give all the observed token counts."""
    known: dict[str, Callable[[list[int]], list[int]]] = {
        "missing BOS token": lambda ids: ids[1:],
        "doubled BOS token": lambda ids: [ids[0], *ids],
        **{mistake.says: (lambda ids, m=mistake: m.make(ours, ids)) for mistake in MISTAKES},  # type: ignore[misc]
    }
    return [text for text, make in known.items()
            if all(len(make(list(want))) == got for got, want in counts.values())]  # fmt: skip
