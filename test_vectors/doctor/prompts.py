"""Check the prompt before the model evaluates it: tokenizer and chat template.

A target offers one of four ways, the most telling first: token ids, the bytes of echoed tokens, the number of tokens of
a plain prompt, the number of tokens of a chat. A count can show that something is wrong, but never that nothing is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ds4ref.errors import Ds4Error
from ds4ref.targets import Ability, Prompt
from ds4ref.text.chat import encode_chat_prompt
from ds4ref.text.tokenizer import Tokenizer

from ..diagnosis.prompts import MISTAKES
from .case import ExamContext
from .findings import OTHER, Outcome, ShownToken, Stage, row, visible

TEXTS = {
    "prose": "The miller's daughter said that it hadn't rained since Tuesday, and closed the door.",
    "digits": "In 1998 the 1200 sacks weighed 123456789 grams, 3.14159 or 0x7F, 10,000 times.",
    "CJK and kana": "\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002\u6771\u4eac\u306f\u3068\u3066\u3082\u5927\u304d\u3044"
                    "\u3067\u3059\u3001\u30ab\u30bf\u30ab\u30ca\u3002",
    "code": "def f(x):\n    return {k: v**2 for k, v in x.items()}  # TODO\n\tif (a != b && c >= 1) { y[i]++; }",
    "emoji": "ok \U0001f44d\U0001f3fd family \U0001f468\u200d\U0001f469\u200d\U0001f467 flag \U0001f1eb\U0001f1ee",
    "other scripts": "\u041f\u0440\u0438\u0432\u0435\u0442, \u0645\u0631\u062d\u0628\u0627 "
                     "\u0939\u093f\u0928\u094d\u0926\u0940 e\u0301 \u03b3\u03b5\u03b9\u03ac na\u00efve \u00e9t\u00e9",
    "leading space": "  two spaces first",
    "line feeds": "one\n\ntwo\n\n\n three\r\nfour\n",
}  # fmt: skip
QUICK = ("prose", "digits", "CJK and kana", "leading space")
Tokens = Sequence[tuple[bytes, int | None]]


def tokenizer(case: ExamContext, stage: Stage) -> None:
    """Compare how target and model split many kinds of text, in the most telling way that the target offers."""
    ours = case.tokenizer
    if ours is None:
        stage.add("tokenizer", Outcome.IMPOSSIBLE, "the model's file has no tokenizer to compare with")
        return
    if case.same_model is False:
        stage.add("tokenizer", Outcome.IMPOSSIBLE, OTHER,
                  next=["Give the target's model with -m MODEL.gguf"])  # fmt: skip
        return
    texts = {name: TEXTS[name] for name in QUICK} if case.quick else TEXTS
    control = f"say {ours.token_bytes(ours.eos).decode()} and {ours.token_bytes(ours.user).decode()} aloud"
    if case.target.can(Ability.TOKENIZE):
        _by_ids(case, stage, ours, texts, control)
    elif case.echo or case.echo_early:
        _by_echo(case, stage, ours, texts, control)
    elif "text" in case.kinds and _counts(case, Prompt.plain(TEXTS["prose"])):
        _by_count(case, stage, texts, control, "plain prompts", Prompt.plain, lambda text: len(ours.encode(text)))
    elif "chat" in case.kinds and _counts(case, Prompt.chat(TEXTS["prose"])):
        _by_count(case, stage, texts, control, "chat prompts", Prompt.chat, lambda t: len(_chat_ids(ours, t)))
    else:
        stage.add("tokenizer", Outcome.IMPOSSIBLE, "the target exposes no token ids, echoed tokens or token counts")
    case.tokenizer_wrong = stage.outcome is Outcome.WRONG


def _chat_ids(ours: Tokenizer, text: str, system: str = "", thinking: str = "none") -> list[int]:
    return encode_chat_prompt(ours, system, text, thinking)


def _by_ids(case: ExamContext, stage: Stage, ours: Tokenizer, texts: dict[str, str], control: str) -> None:
    local = case.local is not None

    def look(name: str, text: str, with_control: bool) -> None:
        want = (ours.encode_rendered if with_control else ours.encode)(text)
        try:
            got = case.target.tokenize(text, with_control)
        except Ds4Error as error:
            stage.add(name, Outcome.IMPOSSIBLE, str(error))
            return
        theirs = [case.token(i) if 0 <= i < len(ours) else (b"?", i) for i in got]
        _compare(case, stage, name, [case.token(i) for i in want], theirs, "ids")

    for name, text in texts.items():
        # an external binary's token dump recognises control strings; these texts have none
        look(name, text, not local)
    look("control strings", control, not local)


def _by_echo(case: ExamContext, stage: Stage, ours: Tokenizer, texts: dict[str, str], control: str) -> None:
    for name, text in texts.items():
        if case.out_of_time:
            stage.add(name, Outcome.SKIPPED, "out of time")
            continue
        case.progress(f"echo of {name}")
        theirs = _echo(case, stage, name, text)
        if theirs is not None:
            _compare(case, stage, name, [case.token(i) for i in ours.encode(text)], theirs, "the echoed tokens")
    theirs = _echo(case, stage, "control strings", control)
    if theirs is not None:
        plain, parsed = ours.encode(control), ours.encode_rendered(control)
        if [raw for raw, _ in theirs] == [ours.token_bytes(i) for i in parsed] != [ours.token_bytes(i) for i in plain]:
            _add_forgeable(stage, "a plain prompt")
        else:
            _compare(case, stage, "control strings", [case.token(i) for i in plain], theirs, "the echoed tokens")


def _echo(case: ExamContext, stage: Stage, name: str, text: str) -> Tokens | None:
    try:
        return [(s.token.raw, s.token.id) for s in case.target.score_text(text, 1) if s.token.raw]
    except Ds4Error as error:
        stage.add(name, Outcome.UNSURE, f"the echo cannot be read: {error}",
                  notes=["tokens returned as text are lost if they end inside a UTF-8 character"])  # fmt: skip
        return None


def _add_forgeable(stage: Stage, place: str) -> None:
    stage.add("control strings", Outcome.UNSURE, f"control strings in {place} become control tokens",
              notes=["prompt injection: user text can end a turn or begin another; ds4's own server allows this too"],
              next=["Tokenize user and tool text without parsing special tokens"])  # fmt: skip


def _compare(case: ExamContext, stage: Stage, name: str, ours: Tokens, theirs: Tokens, how: str) -> None:
    """Add a check of two token sequences, compared by ids where both have them, else by bytes."""
    equal = [a[1] == b[1] if b[1] is not None else a[0] == b[0] for a, b in zip(ours, theirs, strict=False)]
    at = equal.index(False) if False in equal else min(len(ours), len(theirs))
    if at == len(ours) == len(theirs):
        stage.add(name, Outcome.OK, f"{len(ours)} tokens, identical by {how}")
        return
    got, want = (visible(side[at][0]) if at < len(side) else "the end" for side in (theirs, ours))
    stage.add(name, Outcome.WRONG, f"token {at} is {got}, not {want} ({len(theirs)} tokens, not {len(ours)})",
              where=[("theirs", row(theirs, at)), ("right", row(ours, at))],
              next=["Check the pre-tokenizer regex and the merges against docs/explanation/text.md"])  # fmt: skip


def _counts(case: ExamContext, prompt: Prompt) -> bool:
    answer, _ = case.try_ask(prompt, 1, 0)
    return answer is not None and answer.usage.prompt is not None


def _by_count(
    case: ExamContext, stage: Stage, texts: dict[str, str], control: str, subject: str,
    make: Callable[[str], Prompt], expected: Callable[[str], int],
) -> None:  # fmt: skip
    """Compare numbers of prompt tokens.

    An offset that is the same for every text belongs to the frame, which the template stage judges; here only
    differences that vary with the text count.
    """
    counts: dict[str, tuple[int, int]] = {}
    for name, text in texts.items():
        if case.out_of_time:
            stage.add(name, Outcome.SKIPPED, "out of time")
            continue
        case.progress(f"tokens of {name}")
        answer, why = case.try_ask(make(text), 1, 0)
        if answer is None or answer.usage.prompt is None:
            stage.add(name, Outcome.UNSURE, why or "the response has no prompt token count")
            continue
        counts[name] = answer.usage.prompt, expected(text)
    if not counts:
        return
    deltas = [got - want for got, want in counts.values()]
    shift = max(set(deltas), key=lambda d: (deltas.count(d), -abs(d)))
    wrong_counts = {name: pair for name, pair in counts.items() if pair[0] - pair[1] != shift}
    figures = {name: f"{got} tokens, ours {want}" for name, (got, want) in counts.items()}
    offset = f", always {shift:+d}" if shift else ""
    case.offset = shift if subject == "plain prompts" else 0
    if wrong_counts:
        worst = next(iter(wrong_counts))
        got, want = wrong_counts[worst]
        ours = case.tokenizer
        assert ours is not None
        pieces = [ShownToken(visible(ours.token_bytes(i)), i) for i in ours.encode(texts[worst])]
        stage.add("counts", Outcome.WRONG, f"{worst}: {got} prompt tokens, not {want + shift} ({subject}{offset})",
                  figures=figures, where=[(f"right, {worst}", pieces)],
                  next=["Print the engine's token ids for this text and compare them with these"])  # fmt: skip
    else:
        stage.add("counts", Outcome.OK, f"{len(counts)} texts have the right token counts ({subject}{offset})",
                  figures=figures, sight="counts cannot detect a token replaced by another")  # fmt: skip
    if abs(shift) > (1 if subject == "plain prompts" else 0) and subject == "plain prompts":
        stage.add("extra tokens in a plain prompt", Outcome.UNSURE, f"{shift:+d} tokens in every plain prompt")
    answer, _ = case.try_ask(make(control), 1, 0)
    ours = case.tokenizer
    if answer is not None and answer.usage.prompt is not None and ours is not None:
        got, saved = answer.usage.prompt - shift, len(ours.encode(control)) - len(ours.encode_rendered(control))
        if saved and got == expected(control) - saved:
            _add_forgeable(stage, "a chat" if subject == "chat prompts" else "a plain prompt")
        elif got == expected(control):
            stage.add("control strings", Outcome.OK, f"stay text ({subject})")
        else:
            stage.add("control strings", Outcome.UNSURE, f"{got} tokens, ours {expected(control)}")


# ------------------------------------------------------------------------------------------------------ template


CHATS = {
    "user": ("", "Name three rivers.", "none"),
    "system and user": ("Answer in one word.", "Name three rivers.", "none"),
    "several lines": ("", "First line.\n\nThird line.\n", "none"),
    "thinking": ("", "Name three rivers.", "high"),
    "system, thinking": ("Answer in one word.", "Name three rivers.", "high"),
}


def template(case: ExamContext, stage: Stage) -> None:
    """Compare chat prompts of several shapes, then diagnose the answer to one of them (``numbers.chat``)."""
    ours = case.tokenizer
    if ours is None or case.same_model is False:
        why = "the model's file has no tokenizer to compare with" if ours is None else OTHER
        stage.add("template", Outcome.IMPOSSIBLE, why)
        return
    if "chat" not in case.kinds:
        stage.add("template", Outcome.IMPOSSIBLE, "the target does not support chat")
        return
    encode = getattr(case.target, "encode", None)
    if callable(encode):
        for name, (system, user, thinking) in CHATS.items():
            got = [int(i) for i in encode(Prompt.chat(user, system, thinking))]
            want = _chat_ids(ours, user, system, thinking)
            _compare(case, stage, name, [case.token(i) for i in want], [case.token(i) for i in got], "ids")
    else:
        _template_counts(case, stage, ours)
    from .numbers import chat

    chat(case, stage)


def _template_counts(case: ExamContext, stage: Stage, ours: Tokenizer) -> None:
    counts: dict[str, tuple[int, list[int]]] = {}
    for name, (system, user, thinking) in CHATS.items():
        if case.out_of_time:
            stage.add(name, Outcome.SKIPPED, "out of time")
            continue
        case.progress(f"chat: {name}")
        answer, why = case.try_ask(Prompt.chat(user, system, thinking), 1, 0)
        if answer is None or answer.usage.prompt is None:
            stage.add(name, Outcome.IMPOSSIBLE, why or "the response has no prompt token count")
        else:
            counts[name] = answer.usage.prompt, _chat_ids(ours, user, system, thinking)
    if not counts:
        return
    wrong_counts = {name: pair for name, pair in counts.items() if pair[0] != len(pair[1])}
    figures = {name: f"{got} tokens, ours {len(want)}" for name, (got, want) in counts.items()}
    sight = "counts cannot tell <think> from </think> or one marker from another; the logits after a chat can"
    if not wrong_counts:
        stage.add("counts", Outcome.OK, f"{len(counts)} chats have the right token counts", figures=figures,
                  sight=sight)  # fmt: skip
        return
    name, (got, want) = next(iter(wrong_counts.items()))
    fits = fitting_mistakes(ours, counts)
    pieces = [ShownToken(visible(ours.token_bytes(i)), i) for i in want]
    outcome = Outcome.UNSURE if case.tokenizer_wrong else Outcome.WRONG
    says = f"{name}: {got} prompt tokens, not {len(want)} ({len(wrong_counts)} of {len(counts)} chats differ)"
    notes = ["the tokenizer is wrong too: fix that first"] if case.tokenizer_wrong else []
    deltas = {got - len(want) for got, want in counts.values()}
    if case.offset and deltas == {case.offset}:
        notes.append(f"plain prompts count {case.offset:+d} too: an extra leading token, or the count itself is wrong")
    without_system = {got - len(want) for name, (got, want) in counts.items() if not CHATS[name][0]}
    with_system = {got - len(want) for name, (got, want) in counts.items() if CHATS[name][0]}
    if with_system == {0} and len(without_system) == 1 and min(without_system) > 0:
        notes.append(
            f"only chats without a system prompt differ: the server adds its own of {min(without_system)} tokens"
        )
    if "tokenizer.chat_template" not in case.engine.source.metadata:
        notes.append("the model file has no chat template: a server that reads it from the file falls back to its own")
    notes += [f"this bug would give the same counts: {mistake}" for mistake in fits]
    stage.add("counts", outcome, says, figures=figures, where=[(f"right, {name}", pieces)], notes=notes, sight=sight,
              next=["Print the prompt that your server renders and compare it (docs/explanation/text.md)"])  # fmt: skip


def fitting_mistakes(ours: Tokenizer, counts: dict[str, tuple[int, list[int]]]) -> list[str]:
    """Return the template mistakes, in words, that would give all the observed token counts.

    ``counts``: name of a chat -> (observed number of tokens, right ids).
    """
    simple: dict[str, Callable[[list[int]], list[int]]] = {
        "missing BOS token": lambda ids: ids[1:],
        "doubled BOS token": lambda ids: [ids[0], *ids],
    }
    known_mistakes = {mistake.says: (lambda ids, m=mistake: m.make(ours, ids)) for mistake in MISTAKES}
    return [text for text, make in (simple | known_mistakes).items()
            if all(len(make(list(want))) == got for got, want in counts.values())]  # fmt: skip
