"""Questions that look like those of a pack, for the demo and the screenshots. Easy ones: nobody is examined here."""

from __future__ import annotations

from collections.abc import Callable

from ds4ref.eval.packs import Question

C_CODE = """Which line lets a caller read past the end of `table`?

```c
1  int lookup(const int *table, int n, int i)
2  {
3      if (i > n)
4          return -1;
5      return table[i];
6  }
```"""


def _sum(n: int) -> tuple[str, str]:
    return f"What is the sum of all odd numbers below {2 * n}?", str(n * n)


def _squares(n: int) -> tuple[str, str]:
    return f"How many squares with sides along the lines does a board of {n} by {n} fields have?", str(
        n * (n + 1) * (2 * n + 1) // 6
    )


def _digits(n: int) -> tuple[str, str]:
    return f"What is the remainder of 10^{n + 3} when it is divided by 7?", str(10 ** (n + 3) % 7)


MATHS: tuple[tuple[str, Callable[[int], tuple[str, str]]], ...] = (
    ("sums", _sum), ("counting", _squares), ("number theory", _digits),
)  # fmt: skip
SCIENCE = (
    ("mechanics", "A ball is thrown straight up and caught again. Where is its acceleration largest, air aside?",
     ("at the top", "at the bottom", "it is the same everywhere", "halfway up"), "C"),
    ("chemistry", "Which of these turns blue litmus paper red in water?",
     ("table salt", "washing soda", "sugar", "vinegar"), "D"),
    ("optics", "Light enters glass from air at 30° to the normal. Which of its properties stays the same?",
     ("speed", "frequency", "wavelength", "direction"), "B"),
)  # fmt: skip
BROAD = (
    ("navigation", "A ship sails due north at 12 knots for 5 hours. By how much does its latitude change?",
     ("12 minutes", "30 minutes", "1 degree", "2 degrees", "5 degrees", "12 degrees"), "C"),
    ("bookkeeping", "Which account does depreciation reduce?",
     ("cash", "equipment", "payables", "share capital", "goodwill of others"), "B"),
    ("agronomy", "Which crop binds nitrogen through its roots?",
     ("maize", "wheat", "clover", "rape", "barley", "potatoes"), "C"),
)  # fmt: skip


def plausible(count: int) -> list[Question]:
    """So many, sources in turn."""
    return [_one(i) for i in range(count)]


def _one(i: int) -> Question:
    n, source = i // 4, ("science", "broad", "maths", "security")[i % 4]
    if source == "maths":
        domain, make = MATHS[n % len(MATHS)]
        question, answer = make(n + 3)
        return Question(f"maths-{i:08x}", source, domain, "hard", "integer", question, (), answer,
                        "Add them up for a few small cases, guess, and prove it by induction.")  # fmt: skip
    if source == "security":
        return Question(f"security-{i:08x}", source, "bounds", "medium", "lines", C_CODE, (), "3",
                        "With i == n the test passes, and table[n] is behind the last element.")  # fmt: skip
    domain, question, choices, answer = (SCIENCE if source == "science" else BROAD)[n % 3]
    question = question if n < 3 else f"({n // 3 + 1}) {question}"
    return Question(f"{source}-{i:08x}", source, domain, "hard", "choice", question, choices, answer,
                    "The others follow from mistakes that are made often.",
                    distractors=tuple("" if "ABCDEFGHIJ"[k] == answer else "a quantity mixed up with another"
                                      for k in range(len(choices))))  # fmt: skip
