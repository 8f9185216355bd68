"""The words by which an answer is stated, taken back or put under a condition; patterns are made of them once.

All of them are lower case. Words of languages that write spaces stand alone; Chinese, Japanese and Korean ones may
touch what is beside them. A word may also come without its accents. What is read in all of these languages is the
statement of an answer; taking back and conditions are read in English (and a few words of others).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable


def _words(text: str) -> tuple[str, ...]:
    return tuple(" ".join(word.split()) for word in text.split(","))


ANSWER = _words(
    """
    answer, answers, ans, antwort, réponse, respuesta, resposta, risposta, antwoord, svar, ответ, відповідь,
    odpowiedź, odpověď, cevap, yanıt, yanit, απάντηση, الإجابة, الجواب, إجابة, جواب, پاسخ, תשובה, התשובה, उत्तर, คำตอบ,
    đáp án, câu trả lời, jawaban,
    答案, 答え, 解答, 回答, 正解, 정답, 답, richtige option, opción correcta, opção correta,
    alternativa correta, opzione corretta, option correcte, правильный вариант
    """
) + tuple(
    f"{quality} {noun}"
    for quality in ("correct", "right", "best", "accurate", "appropriate", "likely")
    for noun in ("option", "choice", "statement", "letter", "response", "one")
)
"""What an answer is called. Before the value stands something that separates or equates."""

RESULT = _words(
    """
    result, solution, ergebnis, lösung, résultat, solución, resultado, soluzione, 结果, 结论, choice, option, selection,
    verdict, conclusion, correct, final
    """
)
"""These head many lines; they count only where they begin a line, with a colon, and the value is all that follows."""

CHOOSE = _words(
    """
    choose, chose, pick, select, go with, going with, opt for, settle on, corresponds to, it's, it is, that's, yes,
    say, leaving, leaves, by elimination, correspond to, matches, match, is option, is choice, selecting, choosing,
    i answer, i'd answer, i would answer, must be, therefore, thus, hence, so, 选择, 选,
    選択, 選
    """
)
"""A choice's letter may follow at once; read for letters only, up to the end of the sentence."""

IS = _words(
    """
    is, are, be, remains, stays, equals, equal, it's, ist, lautet, est, es, é, è, jest, это, є, هي, هو, است, है, là,
    adalah, είναι, היא, הוא, är, je, คือ, 是, 为, 為, は, 은, 는, 이, 가
    """
)
"""What equates the two."""

FILLER = (
    _words(
        """
    the, this, that, it, my, our, your, to, of, for, on, in, at, by, as, from, has, must, should, would, will, can,
    only, one, given, follows, following, equal to, namely, so, then, therefore, thus, hence, clearly, simply, just,
    exactly, indeed, definitely, certainly, surely, obviously, probably, likely, most, finally, now, again, still,
    actually, final, correct, right, best, selected, either, both, approximately, about, roughly, overall, and,
    option, choice, letter, number, numbers, integer, value, line, lines, defect, bug, vulnerability, question,
    problem, original, whole, located, found, i think, i believe, i would say, i choose, der, die, das, richtige,
    korrekte, endgültige, la, le, les, el, il, het, de, bonne, correcte, correcta, correta, corretta, juiste,
    finale, opción, a alternativa, l'option, правильный, правильна, верный, окончательный, вариант, الصحيحة,
    النهائية, सही, अंतिम, đúng, doğru, prawidłowa, poprawna, správná,
    正确, 最终, 最後, 最終, 的, 应该, 应当, 选项, 選項, 選択肢, 应, 故, 因此, 최종
    """
    )
    + IS
)
"""What may stand between the word for an answer and its value, in any order, and before that word on a final line."""

HEDGE = _words(
    """
    at first, initially, naively, first guess, i thought, for example, such as, i doubt, doubtful, unlikely,
    one would think, might think, may think, could think, might say, many say, some say, people say, people think,
    students say, student says, students think, textbooks say, textbook says
    """
)
"""In the same clause before a statement: it is none."""

NOT = _words("not, isn't, is not, don't, doesn't, cannot be, can't be, never, neither, nor, nicht, не")

IF = _words("if, whether, unless, suppose, supposing, assume, wenn, ob, falls, если")

BELITTLED = _words("wrong, incorrect, naive, tempting, false")
"""Before the word for an answer: it is none."""

BEFORE_A_STATEMENT = _words(
    """
    to, the, a, an, my, our, we, that, be, necessarily, correct, right, final, only, option, choice, think, believe,
    say, assume, die, richtige
    """
)
"""Negations and conditions, and what may stand between them and the statement that they take away."""

OTHERWISE = _words("cannot, can't, where, might, could, see, between, attained, than") + NOT
"""In the same clause before a value that no word for an answer announces: it is none, either."""

BUT = _words("but, but rather, sondern, sino, mais, maar, ma, mas, а")
"""After a negation: what is right instead."""

TAKEN_BACK = _words(
    """
    wait, hold on, actually, no, hmm, sorry, correction, scratch that, i mean, i meant, on second thought,
    on reflection, let me redo, let me reconsider, let me recheck, i made a mistake, i made an error, i was wrong,
    my mistake, that is wrong, that's wrong, this is wrong, that was wrong, that is incorrect, that is not right,
    that's not right, i forgot, i overlooked, i misread, i miscounted, nein, moment, non, espera, нет
    """
)
"""At the beginning of a clause behind a statement: what follows replaces it."""

INSTEAD = _words("it is, it should be, should be, rather, again, the")
"""Between taking back and what replaces it."""

REFUTED = _words(
    """
    scratch that, i made a mistake, i made an error, i was wrong, that is wrong, that's wrong, this is wrong,
    that was wrong, that is incorrect, that is not right, that's not right
    """
)
"""Behind the last statement: it no longer holds."""

REOPENED = _words("wait, hold on, on second thought, let me redo, let me reconsider, moment mal")
"""Behind the last statement: it is open again, unless one of these follows:"""

CONFIRMED = _words(
    """
    yes, confirm, confirms, confirmed, checks out, is correct, is right, was correct, was right, stands, holds,
    consistent, verified, same answer, same result, agrees, as before
    """
)

BECAUSE = _words(
    """
    because, since, as, by, with, due, for, from, which, where, when, via, after, see, at, attained, obtained,
    reached, using, weil, da, denn, car, porque, perché, потому, так
    """
)
"""What gives the reason for an answer ends it; behind A or I it shows that they are letters, not words."""

ONLY_IF = _words("if, only if, unless, provided, falls, wenn, если")
"""Behind a value: it holds under a condition."""

AND = _words("and, und, et, y, e, en, и, 和, と, 및, và, plus, as well as")

OR = _words("or, oder, ou, o, или, 或, 或者, 또는, hoặc")

SO = _words("so, hence, thus, therefore, giving, so that, that is")
"""What sums up what stands before it."""

_UNSPACED = re.compile(r"[\u0900-\u097f\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]")


def bare(text: str) -> str:
    """``text`` without what is deleted from answers, too: marks that combine with a letter."""
    return "".join(c for c in text if unicodedata.category(c) not in ("Mn", "Me", "Cf"))


def forms(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """Words with and without their accents, longest first: those that stand alone, and those that may touch others."""
    plainer = {bare(unicodedata.normalize("NFD", word)) for word in words if len(word) > 1}  # é is not e
    every = sorted({bare(word) for word in words} | plainer, key=lambda word: (-len(word), word))
    return [word for word in every if not _UNSPACED.search(word)], [word for word in every if _UNSPACED.search(word)]


def alternatives(words: Iterable[str]) -> str:
    """A pattern of whole words."""
    alone, touching = forms(words)
    parts = [rf"\b(?:{'|'.join(map(re.escape, alone))})\b"] if alone else []
    return "|".join([*parts, *map(re.escape, touching)])
