"""Is the prompt what it should be before the model sees it: tokenizer and chat template.

Four ways to look, in order of what they can tell: token ids, the bytes of echoed tokens, the number of tokens of a
plain prompt, the number of tokens of a chat. A count can show that something is wrong and never that nothing is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ds4ref.errors import Ds4Error
from ds4ref.targets import Ability, Prompt
from ds4ref.text.chat import encode_chat_prompt
from ds4ref.text.tokenizer import Tokenizer

from ..diagnosis.prompts import MISTAKES
from .case import Case
from .findings import Outcome, Piece, Stage, row, visible

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
Theirs = Sequence[tuple[bytes, int | None]]


def tokenizer(case: Case, stage: Stage) -> None:
    """Texts of many kinds, by the best way there is."""
    ours = case.tokenizer
    if ours is None:
        stage.add("tokenizer", Outcome.IMPOSSIBLE, "the model's file has no tokenizer to compare with")
        return
    if case.same_model is False:
        stage.add("tokenizer", Outcome.IMPOSSIBLE, "the target has another model than the one it is compared with",
                  next=["Give the target's model with -m MODEL.gguf"])  # fmt: skip
        return
    texts = {name: TEXTS[name] for name in QUICK} if case.quick else TEXTS
    control = f"say {ours.token_bytes(ours.eos).decode()} and {ours.token_bytes(ours.user).decode()} aloud"
    if case.target.can(Ability.TOKENIZE):
        _by_ids(case, stage, ours, texts, control)
    elif case.echo:
        _by_echo(case, stage, ours, texts, control)
    elif "text" in case.kinds and _counts(case, Prompt.plain(TEXTS["prose"])):
        _by_count(case, stage, texts, control, "plain prompts", Prompt.plain, lambda text: len(ours.encode(text)))
    elif "chat" in case.kinds and _counts(case, Prompt.chat(TEXTS["prose"])):
        _by_count(case, stage, texts, control, "chat prompts", Prompt.chat, lambda t: len(_frame(ours, t)))
    else:
        stage.add("tokenizer", Outcome.IMPOSSIBLE, "the target shows neither ids, nor echoed tokens, nor counts")
    case.tokenizer_wrong = stage.outcome is Outcome.WRONG


def _frame(ours: Tokenizer, text: str, system: str = "", thinking: str = "none") -> list[int]:
    return encode_chat_prompt(ours, system, text, thinking)


def _by_ids(case: Case, stage: Stage, ours: Tokenizer, texts: dict[str, str], control: str) -> None:
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
        # an external binary's dump of tokens recognises control strings, which these texts do not have
        look(name, text, not local)
    look("control strings", control, not local)


def _by_echo(case: Case, stage: Stage, ours: Tokenizer, texts: dict[str, str], control: str) -> None:
    for name, text in texts.items():
        if case.late:
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
            _forgeable(stage, "a plain prompt")
        else:
            _compare(case, stage, "control strings", [case.token(i) for i in plain], theirs, "the echoed tokens")


def _echo(case: Case, stage: Stage, name: str, text: str) -> Theirs | None:
    try:
        return [(s.token.raw, s.token.id) for s in case.target.score_text(text, 1) if s.token.raw]
    except Ds4Error as error:
        stage.add(name, Outcome.UNSURE, f"the echo cannot be read: {error}",
                  notes=["a server that gives tokens as text loses those that end inside a character"])  # fmt: skip
        return None


def _forgeable(stage: Stage, what: str) -> None:
    stage.add("control strings", Outcome.UNSURE, f"control strings in {what} become control tokens",
              notes=["ds4's own server does this too: whoever writes into a prompt can end a turn or begin another"],
              next=["Encode the text of users and tools without recognising control tokens"])  # fmt: skip


def _compare(case: Case, stage: Stage, name: str, ours: Theirs, theirs: Theirs, how: str) -> None:
    """Equal by ids where both have them, else by bytes."""
    same = [a[1] == b[1] if b[1] is not None else a[0] == b[0] for a, b in zip(ours, theirs, strict=False)]
    at = same.index(False) if False in same else min(len(ours), len(theirs))
    if at == len(ours) == len(theirs):
        stage.add(name, Outcome.OK, f"{len(ours)} tokens, the same by {how}")
        return
    got, want = (visible(side[at][0]) if at < len(side) else "the end" for side in (theirs, ours))
    stage.add(name, Outcome.WRONG, f"token {at} is {got}, not {want} ({len(theirs)} tokens, not {len(ours)})",
              where=[("theirs", row(theirs, at)), ("right", row(ours, at))],
              next=["Compare the splitting rule and the merges with docs/text.md"])  # fmt: skip


def _counts(case: Case, prompt: Prompt) -> bool:
    done, _ = case.tries(prompt, 1, 0)
    return done is not None and done.usage.prompt is not None


def _by_count(
    case: Case, stage: Stage, texts: dict[str, str], control: str, what: str,
    make: Callable[[str], Prompt], expected: Callable[[str], int],
) -> None:  # fmt: skip
    """Numbers of prompt tokens. What is the same for every text belongs to the frame, and the template stage judges
    it; here only what changes with the text counts."""
    found: dict[str, tuple[int, int]] = {}
    for name, text in texts.items():
        if case.late:
            stage.add(name, Outcome.SKIPPED, "out of time")
            continue
        case.progress(f"tokens of {name}")
        done, why = case.tries(make(text), 1, 0)
        if done is None or done.usage.prompt is None:
            stage.add(name, Outcome.UNSURE, why or "the answer has no count of prompt tokens")
            continue
        found[name] = done.usage.prompt, expected(text)
    if not found:
        return
    deltas = [got - want for got, want in found.values()]
    base = max(set(deltas), key=lambda d: (deltas.count(d), -abs(d)))
    bad = {name: pair for name, pair in found.items() if pair[0] - pair[1] != base}
    figures = {name: f"{got} tokens, ours {want}" for name, (got, want) in found.items()}
    offset = f", always {base:+d}" if base else ""
    case.offset = base if what == "plain prompts" else 0
    if bad:
        worst = next(iter(bad))
        got, want = bad[worst]
        ours = case.tokenizer
        assert ours is not None
        pieces = [Piece(visible(ours.token_bytes(i)), i) for i in ours.encode(texts[worst])]
        stage.add("counts", Outcome.WRONG, f"{worst}: {got} prompt tokens, not {want + base} ({what}{offset})",
                  figures=figures, where=[(f"right, {worst}", pieces)],
                  next=["Let the engine print its ids of this text, to see where they part from these"])  # fmt: skip
    else:
        stage.add("counts", Outcome.OK, f"{len(found)} texts have as many tokens as they should ({what}{offset})",
                  figures=figures, sight="counts cannot see a token that is merely another one")  # fmt: skip
    if abs(base) > (1 if what == "plain prompts" else 0) and what == "plain prompts":
        stage.add("frame of a plain prompt", Outcome.UNSURE, f"{base:+d} tokens in every plain prompt")
    done, _ = case.tries(make(control), 1, 0)
    ours = case.tokenizer
    if done is not None and done.usage.prompt is not None and ours is not None:
        got, saved = done.usage.prompt - base, len(ours.encode(control)) - len(ours.encode_rendered(control))
        if saved and got == expected(control) - saved:
            _forgeable(stage, "a chat" if what == "chat prompts" else "a plain prompt")
        elif got == expected(control):
            stage.add("control strings", Outcome.OK, f"stay text ({what})")
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


def template(case: Case, stage: Stage) -> None:
    """Chats of several shapes; then (``numbers.chat``) what the model says after one."""
    ours = case.tokenizer
    if ours is None or case.same_model is False:
        why = "the model's file has no tokenizer" if ours is None else "the target has another model"
        stage.add("template", Outcome.IMPOSSIBLE, f"{why}: there is nothing to compare with")
        return
    if "chat" not in case.kinds:
        stage.add("template", Outcome.IMPOSSIBLE, "the target takes no chats")
        return
    encode = getattr(case.target, "encode", None)
    if callable(encode):
        for name, (system, user, thinking) in CHATS.items():
            got = [int(i) for i in encode(Prompt.chat(user, system, thinking))]
            want = _frame(ours, user, system, thinking)
            _compare(case, stage, name, [case.token(i) for i in want], [case.token(i) for i in got], "ids")
    else:
        _counted(case, stage, ours)
    from .numbers import chat

    chat(case, stage)


def _counted(case: Case, stage: Stage, ours: Tokenizer) -> None:
    found: dict[str, tuple[int, list[int]]] = {}
    for name, (system, user, thinking) in CHATS.items():
        if case.late:
            stage.add(name, Outcome.SKIPPED, "out of time")
            continue
        case.progress(f"chat: {name}")
        done, why = case.tries(Prompt.chat(user, system, thinking), 1, 0)
        if done is None or done.usage.prompt is None:
            stage.add(name, Outcome.IMPOSSIBLE, why or "the answer has no count of prompt tokens")
        else:
            found[name] = done.usage.prompt, _frame(ours, user, system, thinking)
    if not found:
        return
    bad = {name: pair for name, pair in found.items() if pair[0] != len(pair[1])}
    figures = {name: f"{got} tokens, ours {len(want)}" for name, (got, want) in found.items()}
    sight = "a count cannot tell <think> from </think>, nor one marker from another: the numbers after a chat can"
    if not bad:
        stage.add("counts", Outcome.OK, f"{len(found)} chats have as many tokens as they should", figures=figures,
                  sight=sight)  # fmt: skip
        return
    name, (got, want) = next(iter(bad.items()))
    fits = fitting(ours, found)
    pieces = [Piece(visible(ours.token_bytes(i)), i) for i in want]
    outcome = Outcome.UNSURE if case.tokenizer_wrong else Outcome.WRONG
    says = f"{name}: {got} prompt tokens, not {len(want)} ({len(bad)} of {len(found)} chats differ)"
    notes = ["the tokenizer is wrong too: mend that first"] if case.tokenizer_wrong else []
    deltas = {got - len(want) for got, want in found.values()}
    if case.offset and deltas == {case.offset}:
        notes.append(f"plain prompts count {case.offset:+d} too: a token in front of all, or the count itself is wrong")
    alone = {got - len(want) for name, (got, want) in found.items() if not CHATS[name][0]}
    given = {got - len(want) for name, (got, want) in found.items() if CHATS[name][0]}
    if given == {0} and len(alone) == 1 and min(alone) > 0:
        notes.append(f"only chats without a system text differ: the server adds one of {min(alone)} tokens of its own")
    notes += [f"as many tokens would come of this: {said}" for said in fits]
    stage.add("counts", outcome, says, figures=figures, where=[(f"right, {name}", pieces)], notes=notes, sight=sight,
              next=["Print the prompt that your server renders and compare it (docs/text.md)"])  # fmt: skip


def fitting(ours: Tokenizer, found: dict[str, tuple[int, list[int]]]) -> list[str]:
    """Mistakes of a template that would give all these counts."""
    simple: dict[str, Callable[[list[int]], list[int]]] = {
        "no beginning-of-sentence token": lambda ids: ids[1:],
        "the beginning-of-sentence token twice": lambda ids: [ids[0], *ids],
    }
    said = {mistake.says: (lambda ids, m=mistake: m.make(ours, ids)) for mistake in MISTAKES}
    return [text for text, make in (simple | said).items()
            if all(len(make(list(want))) == got for got, want in found.values())]  # fmt: skip
