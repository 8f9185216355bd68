"""Every word, mark and script that the grader knows leads to a grade."""

from __future__ import annotations

import pytest

from eval.grading import grade, plain, words

from .grading import outcome, question

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
