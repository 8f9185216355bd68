"""The grader: the corpus, what each of its rules is there for, its words, and any text at all."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eval import grading
from eval.grading import corpus, cues, grade, plain, self_test, statements, values, words
from eval.packs import LETTERS, Question, line_set
from eval.prompt import key

CHOICES = ("It doubles", "It is halved", "It stays the same", "It vanishes")
ENTRIES = corpus.entries()


def question(kind="choice", answer="C", choices=CHOICES):
    return Question("q-1", "test", "", "", kind, "What happens?", choices if kind == "choice" else (), answer)


def outcome(text, kind="choice", answer="C", **more):
    found = grade(question(kind, answer), text, **more)
    return found.outcome, found.given


# ---------------------------------------------------------------------------------------------------------- corpus


def test_every_output_of_the_corpus_gets_the_grade_that_a_reader_gave_it():
    count, wrong = self_test()
    assert count == len(ENTRIES) and not wrong, "\n".join(wrong)


def test_the_corpus_is_broad():
    assert len(ENTRIES) >= 200
    assert {e.question.kind for e in ENTRIES} == {"choice", "integer", "lines"}
    assert min(Counter(e.question.kind for e in ENTRIES).values()) > 100
    assert min(Counter(e.outcome for e in ENTRIES).values()) >= 20
    assert sum(e.text.count("\n\n") >= 2 for e in ENTRIES) >= 20, "outputs of several paragraphs"
    assert all(e.outcome in ("right", "wrong", "ambiguous", "missing") for e in ENTRIES)
    asked = [(e.question.kind, e.question.choices, e.question.answer, e.text, e.reasoning, e.finish) for e in ENTRIES]
    assert len(set(asked)) == len(asked)


def test_what_is_given_agrees_with_the_outcome():
    """A mistake in the corpus would be a mistake in the grader."""
    for e in ENTRIES:
        assert (e.given == "") == (e.outcome == "missing"), e.text
        if e.outcome in ("right", "wrong"):
            lines = e.question.kind == "lines"
            good = values.within(e.given, line_set(e.question.answer)) if lines else e.given == e.question.answer
            assert good == (e.outcome == "right"), e.text


def test_a_failure_is_told(monkeypatch):
    monkeypatch.setattr(corpus, "entries", lambda: [ENTRIES[0], ENTRIES[1]._replace(outcome="right", given="C")])
    count, wrong = self_test()
    assert count == 2 and len(wrong) == 1 and "wrong B" in wrong[0] and "instead of right C" in wrong[0]


def test_ambiguous_and_missing_say_why():
    for e in ENTRIES:
        found = e.graded()
        assert found.why, e.text
        if found.outcome == "ambiguous":
            assert ":" in found.why, e.text


NEVER = re.compile(r"(?!)")


def patterns(module):
    return [name for name, value in sorted(vars(module).items()) if isinstance(value, re.Pattern)]


def corpus_notices() -> bool:
    grading._folded.cache_clear()
    try:
        return any((g.outcome, g.given) != (e.outcome, e.given) for e in reversed(ENTRIES) for g in [e.graded()])
    except Exception:  # without a rule it may well break
        return True
    finally:
        grading._folded.cache_clear()


@pytest.mark.parametrize("step", plain.STEPS, ids=lambda step: step.__name__)
def test_the_corpus_notices_a_step_that_is_left_out(step, monkeypatch):
    monkeypatch.setattr(plain, "STEPS", tuple(other for other in plain.STEPS if other is not step))
    assert corpus_notices()


@pytest.mark.parametrize("table", ["_COMMANDS", "_MARKUP"])
def test_the_corpus_notices_a_markup_rule_that_is_left_out(table, monkeypatch):
    rules = getattr(plain, table)
    spared = []
    for i, rule in enumerate(rules):
        monkeypatch.setattr(plain, table, rules[:i] + rules[i + 1 :])
        spared += [rule[1].pattern] * (not corpus_notices())
    assert not spared


@pytest.mark.parametrize("find", statements.FINDERS, ids=lambda find: find.__name__)
def test_the_corpus_notices_a_finder_that_is_left_out(find, monkeypatch):
    monkeypatch.setattr(grading, "FINDERS", tuple(other for other in statements.FINDERS if other is not find))
    assert corpus_notices()


@pytest.mark.parametrize("module", [plain, cues, statements, values, grading], ids=lambda module: module.__name__)
def test_the_corpus_notices_a_pattern_that_finds_nothing(module, monkeypatch):
    spared = []
    for name in patterns(module):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, NEVER)
            spared += [name] * (not corpus_notices())
    assert not spared


@pytest.mark.parametrize("kind", ["choice", "integer", "lines"])
def test_the_corpus_notices_what_leads_to_a_value(kind, monkeypatch):
    monkeypatch.setitem(statements._LEAD, kind, NEVER)
    assert corpus_notices()


@pytest.mark.parametrize(
    "name",
    ["_hedged", "_doubted", "_listed", "_opens_line", "_further_on", "_read_behind", "_behind_fillers", "taken_back"],
)
def test_the_corpus_notices_a_question_that_is_not_asked(name, monkeypatch):
    nothing = {
        "_further_on": lambda *a: iter(()),
        "_read_behind": lambda output, start, at: output.read(at),
        "_behind_fillers": lambda output, at: at,
        "taken_back": lambda *a: ([], []),
    }.get(name, lambda *a: False)
    for module in (statements, grading):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, nothing)
    assert corpus_notices()


# ----------------------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize("word", words.ANSWER)
def test_words_for_an_answer(word):
    assert outcome(f"The flux is conserved.\n\n{word}: C") == ("right", "C")
    assert outcome(f"{word.upper()}: 12", "integer", "12") == ("right", "12")


@pytest.mark.parametrize("word", words.RESULT)
def test_words_for_a_result(word):
    assert outcome(f"{word}: C\n\nThe flux is conserved.") == ("right", "C")
    assert outcome(f"{word}: C and much else about it.")[0] == "missing"


@pytest.mark.parametrize("word", words.CHOOSE)
def test_words_of_choosing(word):
    assert outcome(f"Considering it all, {word} C.") == ("right", "C")
    assert outcome(f"Considering it all, {word} C of the second kind")[0] == "missing"


@pytest.mark.parametrize("word", words.IS)
def test_words_that_equate(word):
    assert outcome(f"We see the answer {word} C. More of this below.") == ("right", "C")


@pytest.mark.parametrize("word", words.FILLER)
def test_words_between(word):
    assert outcome(f"Answer: {word} C") == ("right", "C")
    assert outcome(f"{word} answer C") == ("right", "C"), "a final line begins with it"


@pytest.mark.parametrize("word", words.HEDGE)
def test_words_that_belittle(word):
    assert outcome(f"{word} the answer is B")[0] == "missing"
    assert outcome(f"{word} the answer is B, so the answer is C.") == ("right", "C")


@pytest.mark.parametrize("word", words.BELITTLED)
def test_words_that_judge(word):
    assert outcome(f"The {word} answer is B.")[0] == "missing"
    assert outcome(f"It is {word} to say that the answer is B.")[0] == "missing"
    assert outcome(f"Since B is {word} the answer is C.") == ("right", "C")


@pytest.mark.parametrize("word", words.NOT + words.IF)
def test_words_that_deny_or_suppose(word):
    assert outcome(f"I {word} the answer is B")[0] == "missing"
    assert outcome(f"I {word} care; the answer is C") == ("right", "C")


@pytest.mark.parametrize("word", words.BEFORE_A_STATEMENT)
def test_words_between_a_denial_and_what_it_denies(word):
    assert outcome(f"not {word} the answer is B")[0] == "missing"


@pytest.mark.parametrize("word", words.OTHERWISE)
def test_words_that_spoil_a_sentence(word):
    assert outcome(f"The answer {word} all of this is B.")[0] == "missing"


@pytest.mark.parametrize("word", words.BUT)
def test_what_follows_a_denial(word):
    assert outcome(f"The answer is not B {word} C.") == ("right", "C")


@pytest.mark.parametrize("word", words.TAKEN_BACK)
def test_words_of_taking_back(word):
    assert outcome(f"Answer: B. {word}, C.") == ("right", "C")
    assert outcome(f"Answer: B\n\n{word}: the area is fixed, and so the correct option is C.") == ("right", "C")


@pytest.mark.parametrize("word", words.INSTEAD)
def test_words_behind_taking_back(word):
    assert outcome(f"Answer: B. No, {word} C.") == ("right", "C")


@pytest.mark.parametrize("word", words.REFUTED)
def test_words_of_refuting(word):
    assert outcome(f"Answer: C\n\n{word}, yes, confirmed.") == ("ambiguous", "C")
    assert outcome(f"Answer: C\n\nMany say B, but {word}.") == ("right", "C")


@pytest.mark.parametrize("word", words.REOPENED)
def test_words_of_reopening(word):
    assert outcome(f"Answer: C\n\n{word}, the sign") == ("ambiguous", "C")


@pytest.mark.parametrize("word", words.CONFIRMED)
def test_words_of_confirming(word):
    assert outcome(f"Answer: C\n\nWait, the sign: all {word}.") == ("right", "C")


@pytest.mark.parametrize("word", words.BECAUSE)
def test_words_of_reason(word):
    assert outcome(f"The answer is A {word} whatever we said above", answer="A") == ("right", "A")
    assert outcome(f"Answer: 12 {word} 3 * 4 = 12 and 5 = 5", "integer", "12") == ("right", "12")


@pytest.mark.parametrize("word", words.ONLY_IF)
def test_words_of_condition(word):
    assert outcome(f"The answer is C {word} the field is uniform.") == ("ambiguous", "C")
    assert outcome(f"The answer would be C {word} the field were uniform.")[0] == "missing"


@pytest.mark.parametrize("word", words.AND + words.OR)
def test_words_between_answers(word):
    assert outcome(f"Answer: A {word} C") == ("ambiguous", "A, C")


@pytest.mark.parametrize("word", [word for word in words.AND if len(word) > 1])
def test_words_between_lines(word):
    assert outcome(f"Answer: 4 {word} 6", "lines", "4,6") == ("right", "4,6")


@pytest.mark.parametrize("word", words.OR)
def test_words_between_lines_that_leave_it_open(word):
    assert outcome(f"Answer: 4 {word} 6", "lines", "4,6") == ("ambiguous", "4, 6")


@pytest.mark.parametrize("word", words.SO)
def test_words_that_sum_up(word):
    assert outcome(f"Answer: 3 = 2 + 1, {word} n = 12", "integer", "12") == ("right", "12")


@pytest.mark.parametrize(
    "said",
    [
        *(
            "C is correct",
            "(C) is right",
            "C is the best choice",
            "C is the correct one",
            "C is the answer",
            "C as the answer",
        ),
        *("C is therefore correct", "C is thus correct", "C is clearly right", "C is indeed the proper letter"),
        *(
            "C is our best choice",
            "C is my best answer",
            "C: correct",
            "C - correct",
            "C (correct)",
            "only C remains",
            "only C survives",
        ),
        *(
            "C is left",
            "C is the only correct statement",
            "C is the most proper option",
        ),
        *("C ist richtig", "C est correcte", "C es la correcta", "C è corretta", "C é correto", "C ist korrekt"),
        *("C верно", "C правильно", "C is juist", "C is right, so"),
    ],
)
def test_verdicts(said):
    assert outcome(f"We find that {said}") == ("right", "C")
    assert outcome(f"If {said}") == ("missing", "")


@pytest.mark.parametrize("reason", ["because", "since", "as", "so"])
def test_verdicts_with_a_reason(reason):
    assert outcome(f"This makes C the best answer {reason} the area is fixed.") == ("right", "C")


@pytest.mark.parametrize(
    "said",
    [
        "A and C are correct",
        "A or C is correct",
        "A, C are right",
        "A, and C are both correct",
        "A and C are all right",
    ],
)
def test_verdicts_on_several(said):
    assert outcome(f"We find that {said}.") == ("ambiguous", "A, C")


@pytest.mark.parametrize(
    "noun", "statement claim assertion reaction structure compound reason type class phase equation".split()
)
def test_roman_numerals_are_no_choice(noun):
    choices = tuple("one two six ten red big old new top end".split())
    asked = question(answer="I", choices=choices)
    assert grade(asked, f"We find that {noun} I is correct.").outcome == "missing"
    assert grade(asked, "We find that I is correct.").outcome == "right"


@pytest.mark.parametrize("noun", "defect vulnerability vulnerable bug flaw fault problem error culprit".split())
def test_verdicts_on_lines(noun):
    noun = "vulnerable line" if noun == "vulnerable" else noun
    assert outcome(f"Line 7 is the {noun}, as the others are checked", "lines", "7") == ("right", "7")
    assert outcome(f"Lines 4-6 are a {noun}, as the others are checked", "lines", "4-6") == ("right", "4-6")


@pytest.mark.parametrize(
    "said",
    [
        *(
            "none",
            "nothing",
            "nil",
            "n/a",
            "zero",
            "safe",
            "secure",
            "none of the lines",
            "none of these",
            "none found",
            "nothing at all",
        ),
        *(
            "none here",
            "none present",
            "none exists",
            "no line is defective",
            "no lines are vulnerable",
            "no line is unsafe",
        ),
        *(
            "no line",
            "no lines",
            "no defect",
            "no bugs",
            "no vulnerability",
            "no vulnerabilities",
            "no flaw",
            "no issues",
            "no errors",
        ),
        *(
            "there is no bug",
            "there are no bugs",
            "there seems to be no bug",
            "no bug in the code",
            "no bug in this function",
        ),
        *(
            "the function is safe",
            "this code is secure",
            "the snippet seems fine",
            "the code seems correct",
            "it is safe",
            "this is secure",
        ),
        *("none, as far as I see", "safe - all is checked", "none (all is checked)", "no defect: all is checked"),
    ],
)
def test_words_for_no_line(said):
    assert outcome(f"Answer: {said}", "lines", "0") == ("right", "0")
    assert outcome(f"Answer: {said}", "lines", "7") == ("wrong", "0")


@pytest.mark.parametrize(
    "said",
    [
        "no bug in lines 1-3",
        "none too good",
        "safer than before",
        "the function is safe if n > 0",
        "nothing but line 9",
    ],
)
def test_words_for_no_line_that_are_none(said):
    assert outcome(f"Answer: {said}", "lines", "0")[0] in ("missing", "wrong", "ambiguous")


@pytest.mark.parametrize(
    "between",
    ["-", "--", "---", "~", "..", " to ", " through ", " thru ", " until ", " till ", " bis ", "至", "到", "から"],
)
@pytest.mark.parametrize(
    "name",
    ["", "line ", "lines ", "line number ", "L", "ln ", "#", "no. ", "Zeile ", "on line ", "from line ", "at line "],
)
def test_ranges_of_lines(between, name):
    assert outcome(f"Answer: {name}4{between}{name}6", "lines", "4-6") == ("right", "4-6")
    assert outcome(f"Answer: {name}4{between}{name}7", "lines", "4-6") == ("wrong", "4-7")


@pytest.mark.parametrize("number", ["1st", "2nd", "3rd", "4th"])
def test_ordinals_of_lines(number):
    assert outcome(f"Answer: the {number} line", "lines", number[0]) == ("right", number[0])


@pytest.mark.parametrize(
    "unit", ["m", "cm", "mm", "km", "g", "kg", "s", "ms", "th", " ways", "%", "°", " square units", " kg m^2"]
)
def test_units(unit):
    assert outcome(f"Answer: 12{unit}", "integer", "12") == ("right", "12")


@pytest.mark.parametrize(
    "more",
    [
        "x",
        "i",
        "n",
        "pi",
        " pi",
        "√2",
        "^2",
        "/x",
        " + 1",
        "·3",
        " choose 2",
        " million",
        " dozen",
        "-fold",
        ":5",
        " squared",
    ],
)
def test_what_is_not_worked_out_is_no_integer(more):
    assert outcome(f"Answer: 12{more}", "integer", "12")[0] == "ambiguous"


@pytest.mark.parametrize("verb", ["is", "are", "was", "has", "can", "if"])
def test_a_number_with_a_verb_behind_it_is_no_second_answer(verb):
    found = outcome(f"Answer: 12, 13 {verb} too many", "integer", "12")
    assert found == ("right", "12")


@pytest.mark.parametrize(
    "said",
    [
        "is wrong",
        "was wrong",
        "is incorrect",
        "seems false",
        "looks wrong",
        "would be wrong",
        "isn't it",
        "is not it",
        "is impossible",
        "is ruled out",
        "is false",
    ],
)
def test_what_is_denied_at_once_is_no_answer(said):
    assert outcome(f"Answer: C {said}")[0] == "missing"
    assert outcome(f"Answer: 12 {said}", "integer", "12")[0] == "missing"
    assert outcome(f"Answer: 7 {said}", "lines", "7")[0] == "missing"


@pytest.mark.parametrize("part", ["for part 1", "in part (a)", "in case 2", "in step 3"])
def test_an_answer_to_a_part_is_none(part):
    assert outcome(f"Answer: 12 {part}", "integer", "12")[0] == "missing"
    assert outcome(f"{part.capitalize()}, the answer is 12.", "integer", "12")[0] == "missing"


@pytest.mark.parametrize("other", ["not B", "not option B", "not choice (B)", "not the B", "nicht B", "pas B"])
def test_denying_another_choice_confirms_this_one(other):
    assert outcome(f"Answer: C, {other}") == ("right", "C")


@pytest.mark.parametrize(
    "verb", ["is", "are", "be", "equals", "of", "get", "have", "gives", "yields", "obtain", "total"]
)
def test_the_last_sentence_leads_to_an_integer(verb):
    assert outcome(f"After all these steps the count, we find, {verb} 12.", "integer", "12") == ("right", "12")


@pytest.mark.parametrize(
    "head", ["Question:", "Question 2:", "Problem 3.", "Exercise 4)", "Human:", "User:", "Q:", "Q7."]
)
def test_questions_of_its_own_end_the_answer(head):
    assert outcome(f"Answer: C\n\n{head} What else?\nAnswer: B") == ("right", "C")


TAGS = "think thinking thought thoughts reasoning reflection scratchpad seed:think".split()


@pytest.mark.parametrize(
    ("opens", "closes"),
    [
        *((f"<{tag}>", f"</{tag}>") for tag in TAGS),
        *(("[THINK]", "[/THINK]"), ("◁think▷", "◁/think▷"), ("<|begin_of_thought|>", "<|end_of_thought|>")),
        *(("<|START_THINKING|>", "<|END_THINKING|>"), ("<|channel|>analysis", "<|channel|>final")),
        *(("<|channel|>commentary", "<|channel|>final"), ("<THINK>", "</Think>")),
    ],
)
def test_marks_of_thinking(opens, closes):
    assert outcome(f"{opens}Answer: B") == ("missing", "")
    assert outcome(f"Answer: C{opens}Answer: B") == ("right", "C")
    assert outcome(f"{opens}Answer: B{closes}") == ("missing", "")
    assert outcome(f"Answer: B{closes}") == ("missing", "")
    assert outcome(f"{opens}Answer: B{closes}C is correct.") == ("right", "C")
    assert outcome(f"Answer: C\n{opens}Answer: B{closes}\nSo it is.") == ("right", "C")
    assert outcome(f"A `{opens}` and a `{closes}` are only talked about.\nAnswer: C") == ("right", "C")


@pytest.mark.parametrize(
    "token",
    [
        *(
            "<|im_end|>",
            "<|eot_id|>",
            "<|end_of_text|>",
            "<|endoftext|>",
            "<|eom_id|>",
            "<|end|>",
            "<|return|>",
            "<|user|>",
            "</s>",
        ),
        *("<eos>", "<end_of_turn>", "[INST]", "[/INST]", "<｜end▁of▁sentence｜>", "<｜User｜>", "<|IM_END|>"),
    ],
)
def test_tokens_that_end_a_turn(token):
    assert outcome(f"Answer: C{token}Answer: B") == ("right", "C")
    assert outcome(f"{token}Answer: C") == ("right", "C")


@pytest.mark.parametrize(
    "style",
    [
        *(
            "text",
            "textbf",
            "textit",
            "textrm",
            "textsf",
            "texttt",
            "textup",
            "textnormal",
            "mathbf",
            "mathrm",
            "mathit",
            "mathsf",
        ),
        *(
            "mathtt",
            "mathbb",
            "mathcal",
            "boldsymbol",
            "bm",
            "emph",
            "underline",
            "mbox",
            "hbox",
            "operatorname",
            "operatorname*",
            "tag",
        ),
    ],
)
def test_styles_of_latex(style):
    assert outcome(f"\\boxed{{\\{style}{{C}}}}") == ("right", "C")
    assert outcome(f"The sum is $\\{style}{{1}}17$.", "integer", "117") == ("right", "117")


@pytest.mark.parametrize(
    "space",
    [
        "\\,",
        "\\;",
        "\\:",
        "\\ ",
        "\\quad ",
        "\\qquad ",
        "\\left(",
        "\\big(",
        "\\bigl(",
        "\\Big(",
        "\\displaystyle ",
        "\\textstyle ",
        "$$",
        "\\(",
        "\\[",
    ],
)
def test_spaces_and_brackets_of_latex(space):
    assert outcome(f"Answer: {space}117", "integer", "117") == ("right", "117")


@pytest.mark.parametrize("arrow", ["\\to", "\\rightarrow", "\\Rightarrow", "\\implies", "→", "⇒", "⟹", "->", "=>"])
def test_arrows_lead_to_the_result(arrow):
    assert outcome(f"Answer: $100 + 17 {arrow} 117$", "integer", "117") == ("right", "117")


@pytest.mark.parametrize("mark", ["∎", "□", "■", "QED", "Q.E.D.", "\\square", "\\qed", "\\Box", "\\blacksquare"])
def test_marks_of_a_finished_proof(mark):
    assert outcome(f"Thus we have n = 4. {mark}", "integer", "4") == ("right", "4")


@pytest.mark.parametrize("word", words.ANSWER)
def test_tables(word):
    assert outcome(f"| Part | {word} |\n|---|:-:|\n| all | C |\n\nThat is all.") == ("right", "C")


@pytest.mark.parametrize("zero", ["0", "٠", "۰", "०", "০", "๐", "０", "𝟎", "𝟘", "𝟬", "𝟶", "੦", "௦", "០"])
def test_digits_of_all_scripts(zero):
    number = "".join(chr(ord(zero) + int(digit)) for digit in "1079")
    assert outcome(f"Answer: {number}", "integer", "1079") == ("right", "1079")
    assert outcome(f"Answer: {number}", "integer", "1070") == ("wrong", "1079")


@pytest.mark.parametrize("first", ["Ａ", "Ⓐ", "🄐", "🄰", "🅐", "🅰", "🇦", "𝐀", "𝙰", "⒜", "ⓐ"])
def test_letters_of_all_kinds(first):
    assert outcome(f"Answer: {chr(ord(first) + 2)}") == ("right", "C")
    assert outcome(f"Answer: {chr(ord(first) + 3)}") == ("wrong", "D")


@pytest.mark.parametrize(("letter", "latin"), plain.LOOKALIKES.items())
def test_letters_that_look_alike(letter, latin):
    choices = tuple("one two six ten red big old new top end".split())
    assert grade(question(answer=latin, choices=choices), f"Answer: {letter}").outcome == "right"
    assert grade(question(answer=latin, choices=choices), f"Answer: {letter} слово").outcome == "missing"


@pytest.mark.parametrize("dash", "‐ ‑ ‒ – — ― − ﹘ ﹣ －".split())
def test_dashes(dash):
    assert outcome(f"Answer: 4{dash}6", "lines", "4-6") == ("right", "4-6")
    assert outcome(f"Answer: {dash}5", "integer", "-5") == ("right", "-5")
    assert outcome(f"Answer {dash} C") == ("right", "C")


@pytest.mark.parametrize(
    "space", ["\u00a0", "\u2002", "\u2003", "\u2005", "\u2007", "\u2009", "\u200a", "\u202f", "\u205f", "\u3000"]
)
def test_spaces(space):
    assert outcome(f"Answer:{space}12{space}345", "integer", "12345") == ("right", "12345")
    assert outcome(f"The{space}answer{space}is{space}C.") == ("right", "C")


# ------------------------------------------------------------------------------------------- what the corpus leaves


def test_the_order_shown_decides_letters_and_texts():
    asked, order = question(answer="A"), (2, 0, 3, 1)  # B shows the first choice
    assert grade(asked, "Answer: B", order=order).outcome == "right"
    assert grade(asked, "Answer: A", order=order) == grade(asked, "Answer: (A)", order=order)
    assert grade(asked, "Answer: A", order=order).outcome == "wrong"
    by_text = grade(asked, "Answer: It doubles", order=order)
    assert (by_text.outcome, by_text.given) == ("right", "B") and "text" in by_text.why
    assert grade(asked, "Answer: B. It doubles", order=order).outcome == "right"
    assert grade(asked, "Answer: A. It doubles", order=order).outcome == "ambiguous"


def test_reasoning_counts_for_nothing_but_is_told_from_nothing():
    assert outcome("", reasoning="Answer: C") == ("missing", "")
    assert "thinking" in grade(question(), "", reasoning="Answer: C").why
    assert "thinking" in grade(question(), "<think>Answer: C").why
    assert grade(question(), "").why == "empty"
    assert grade(question(), " \n\u200b").why == "empty"
    assert outcome("Answer: C", reasoning="Answer: B") == ("right", "C")


def test_what_was_cut_off_is_said():
    assert grade(question(), "Let me see", finish="length").why.endswith("cut off")
    assert not grade(question(), "Let me see", finish="stop").why.endswith("cut off")


def test_a_letter_that_was_not_shown_is_wrong_and_said_to_be_none():
    found = grade(question(), "Answer: E")
    assert (found.outcome, found.given) == ("wrong", "E") and "none of ABCD" in found.why


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ([("7", "7")], "7"),
        ([("6", "4")], "4-6"),
        ([("4", "5"), ("6", "6")], "4-6"),
        ([("9", "9"), ("3", "3"), ("10", "10")], "3,9-10"),
        ([("0", "0"), ("1", "1")], "0,1"),
        ([("1", "3"), ("2", "5")], "1-5"),
        ([("4", "4"), ("4" * 20, "4" * 20)], "4," + "4" * 20),
    ],
)
def test_lines_have_one_spelling(ranges, text):
    assert values.spelt(ranges) == text


@pytest.mark.parametrize(
    ("given", "key", "good"),
    [
        ("4", "4-6", True),
        ("4-6", "4-6", True),
        ("4,6", "4-6", True),
        ("4-7", "4-6", False),
        ("3", "4-6", False),
        ("0", "0", True),
        ("0", "1-3", False),
        ("0,4", "4", False),
        ("1-999999999999", "1-9999", False),
        ("9" * 30, "9", False),
        ("4-" + "9" * 30, "4", False),
    ],
)
def test_lines_within_a_key(given, key, good):
    assert values.within(given, line_set(key)) == good


def test_a_statement_that_is_many_words_back_still_counts():
    assert outcome("Answer: C\n\n" + "The field is uniform. " * 2000) == ("right", "C")
    assert outcome("The answer is B. " * 50 + "\n\nAnswer: C") == ("right", "C")
    assert outcome("Answer: C\n" * 50) == ("right", "C")


def test_long_chinese_texts_are_searched_in_pieces():
    text = "设线圈的面积为常数" * 1000
    for at in range(cues.PIECE - 8, cues.PIECE + 8):
        assert outcome(f"{text}\n答案：C\n{text[:at]}") == ("right", "C")


def test_words_are_found_wherever_a_piece_ends():
    for at in range(cues.PIECE - 30, cues.PIECE + 5):
        assert outcome("Hence the correct option is C.\n" + "x" * at + " y" * 3000) == ("right", "C")


# -------------------------------------------------------------------------------------------------------- any text

KINDS = st.sampled_from(
    [("choice", "C"), ("choice", "A"), ("integer", "12"), ("integer", "-5"), ("lines", "4-6"), ("lines", "0")]
)
PIECES = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from([e.text for e in ENTRIES if len(e.text) < 60]),
        st.sampled_from(
            [
                "Answer: ",
                "\\boxed{",
                "}",
                "</think>",
                "<think>",
                "\n",
                "|",
                "```",
                "~~",
                "\ud800",
                "\0",
                " or ",
                "12",
                "4-6",
                "C",
            ]
        ),
        st.characters(),
    ),
    max_size=12,
).map("".join)


@given(KINDS, PIECES, st.sampled_from(["", "stop", "length", "error"]), st.permutations(range(4)))
@example(("choice", "C"), "\x02", "", [0, 1, 2, 3])
def test_any_text_has_a_grade(kind, text, finish, order):
    found = grade(question(*kind), text, finish=finish, order=tuple(order) if kind[0] == "choice" else ())
    assert found.outcome in ("right", "wrong", "ambiguous", "missing")
    assert found.why
    assert (found.given == "") == (found.outcome == "missing")


@pytest.mark.parametrize("lead", ["is ", "= ", "=> ", "7 is ", "=1x=> "])
@pytest.mark.parametrize("tail", ["5 and ", "1 = ", "1/", "+ 1 "])
def test_a_text_of_nothing_but_cues_is_read_in_few_places(monkeypatch, lead, tail):
    read = []

    def reader(text, at, shown=()):
        read.append(at)
        return values.integer(text, at, shown)

    monkeypatch.setitem(values.READERS, "integer", reader)
    grade(question("integer", "7"), "ответ " * 700 + lead * 150 + tail * 700 + "7", finish="stop", order=())
    assert 0 < len(read) < 80


def test_an_enumeration_is_read_to_its_first_numbers():
    found = values.integer("1, 2" + ", 3" * 90, 0)
    assert found is not None and found.unclear == "several numbers" and found.end < 40
    found = values.integer("1" + "+1" * 140, 0)
    assert found is not None and "not worked out" in found.unclear and len(found.given[0]) <= values.TOLD


INVISIBLE = st.text("\u200b\u200c\u200d\ufeff\u2060\u00ad\u200e\u200f\u202a\u202e\x00", max_size=5)


@given(KINDS, PIECES, st.text(" \n\t\r\u00a0\u2009", max_size=5), INVISIBLE)
def test_space_and_invisible_characters_behind_an_answer_change_nothing(kind, text, space, invisible):
    if text.rpartition("\n")[2].strip("~`") != text.rpartition("\n")[2] or "\x1b" in text:
        return  # a fence or an escape sequence that the addition would complete
    asked = question(*kind)
    assert grade(asked, text + space + invisible) == grade(asked, text)


@given(
    KINDS,
    st.lists(st.sampled_from(["Answer", ": ", "C", "1", "2", "4", "-", "6", ".", "\n", "so "]), max_size=9),
    INVISIBLE,
)
def test_invisible_characters_within_change_nothing(kind, pieces, invisible):
    assert grade(question(*kind), invisible.join(pieces)) == grade(question(*kind), "".join(pieces))


FORMS = (
    "Answer: {}",
    "answer: {}",
    "**Answer:** {}",
    "The answer is {}.",
    "Answer: ({})",
    "\\boxed{{{}}}",
    "Final answer: **{}**",
    "{}",
)


@given(
    st.integers(2, 10),
    st.data(),
    st.sampled_from(FORMS),
    st.sampled_from(["", "Let us see.\n\n", "The answer is not obvious.\n\n"]),
)
def test_the_right_letter_is_right_and_another_is_wrong(count, data, form, before):
    choices = tuple(f"the {word} of them" for word in "one two six ten red big old new top end".split())[:count]
    asked = question(answer=data.draw(st.sampled_from(LETTERS[:count])), choices=choices)
    order = tuple(data.draw(st.permutations(range(count))))
    right = key(asked, order)
    assert grade(asked, before + form.format(right), order=order).outcome == "right"
    other = data.draw(st.sampled_from([letter for letter in LETTERS[:count] if letter != right]))
    assert grade(asked, before + form.format(other), order=order).outcome == "wrong"


@given(
    st.integers(-(10**17), 10**17),
    st.sampled_from(FORMS),
    st.sampled_from(["{}", "{:,}", "{}.0", " {}", "${}$", "{} ways"]),
)
def test_the_right_integer_is_right_and_its_neighbour_is_wrong(number, form, spelling):
    asked = question("integer", str(number))
    assert grade(asked, form.format(spelling.format(number))).outcome == "right"
    assert grade(asked, form.format(spelling.format(number + 1))).outcome == "wrong"


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6, unique=True), st.data(), st.sampled_from(FORMS[:-2]))
def test_some_of_the_right_lines_are_right_and_one_more_is_wrong(lines, data, form):
    lines.sort()
    asked = question("lines", ",".join(map(str, lines)))
    some = sorted(data.draw(st.sets(st.sampled_from(lines), min_size=1)))
    between = data.draw(st.sampled_from([",", ", ", " and ", "; ", " & "]))
    assert grade(asked, form.format(between.join(map(str, some)))).outcome == "right"
    more = data.draw(st.integers(1, 60).filter(lambda line: line not in lines))
    assert grade(asked, form.format(between.join(map(str, [*some, more])))).outcome == "wrong"


@pytest.mark.parametrize("kind", ["choice", "integer", "lines"])
def test_long_runs_end(kind):
    """Not timed: a pattern that tries every split of a run would not end in a lifetime."""
    asked = question(kind, {"choice": "C", "integer": "12", "lines": "7"}[kind])
    for piece in (
        "a",
        " ",
        "1",
        "1,",
        "\\boxed{",
        "{",
        "answer ",
        "Answer: ",
        "not ",
        "```\n",
        "|-",
        "~~a",
        "A and ",
        "- 1",
        "x=",
        "(",
        "ab cd ",
    ):
        for head, tail in (("", ""), ("Answer: ", "!"), ("\\boxed{", "}"), ("The answer ", "\n"), ("\n|", "x\n")):
            assert grade(asked, head + piece * (20_000 // len(piece)) + tail).why


def test_the_page_shows_what_ds4_makes_of_the_corpus():
    page = (Path(__file__).parents[2] / "docs" / "eval.md").read_text()
    assert corpus.table() in page, "python -m eval.grading.corpus"
