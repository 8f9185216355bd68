"""One answer on its way through a grammar: which tokens may come next, and the shortest way to the end.

Three things that a grammar does not say are seen to here, because what reads the answer trips over them:

  numbers   15 digits and no exponent, as far as the grammar leaves a choice: more digits are rounded by every reader,
            perhaps across a bound of the schema
  nesting   48 levels of JSON, likewise
  markup    the closing tag of a parameter, spelled in plain tokens inside a string's text, would end it

All of them only ever take tokens away, and not the last ones.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...text.dsml import escape_string
from ...text.protocol import CANONICAL
from ...text.rawjson import MAX_DEPTH, quote
from . import Lost
from .custom import Form, unpack

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from .vocabulary import Vocabulary

MOST_DIGITS = 13
"""After so many no token of digits comes any more; the last one may have brought three."""
MOST_NESTING = 48
assert MOST_NESTING < MAX_DEPTH

_CLOSER = CANONICAL.param_close.encode()
_INVOKE, _PARAMETER = b'invoke name="', b"parameter name="
_FORCED, _BRANCHES = 24, 8
_LOOKED_AT, _TRIED, _WIDTH, _MET = 40, 600, 24, 4
EFFORT, _LOOK = 6000, 8
_KINDS = tuple(bytes([byte]) for byte in b"01aA</ \n-.:@+*#_=\\")
"""Bounds of the search for an end: tokens that are forced at a time, tools that are tried; characters that are looked
at where more are possible (then some of all kinds), steps, states side by side, and how often one may come again; and
steps of all searches on one way, and after how many of them the clock is looked at."""
_ANY = "a" * 64
"""An example of a string without a pattern."""


class Follower:
    """``start`` is a compiled grammar, of which a copy is followed. The answer begins in JSON, or in markup after
    ``begin_markup``. ``forms`` are compiled grammars of custom tools, by their names as they stand in the markup;
    ``examples`` are strings that help to find the end of one that has a pattern."""

    def __init__(
        self,
        words: Vocabulary,
        start: LLMatcher,
        *,
        forms: dict[bytes, LLMatcher] | None = None,
        examples: Sequence[str] = (),
    ):
        self.words, self._forms, self._examples = words, forms or {}, examples
        self._matcher = start.deep_copy()
        self._form: Form | None = None
        self._json = Json()
        self.place = "json"
        """Where the answer is: in "json", in "markup", in the "text" of a string."""
        self._tail = b""
        self._tool = b""
        self._bits = np.zeros((words.size + 31) // 32, np.uint32)

    def copy(self) -> Follower:
        """The same, to go on with apart from this one."""
        other = Follower(self.words, self._matcher, forms=self._forms, examples=self._examples)
        other._form = None if self._form is None else self._form.copy()
        other._json, other.place, other._tail, other._tool = self._json.copy(), self.place, self._tail, self._tool
        return other

    def begin_markup(self) -> None:
        """What follows stands behind the marker of a tag."""
        self.place, self._tail = "markup", b""

    @property
    def complete(self) -> bool:
        """Whether the answer may end here."""
        return self._form is None and self._matcher.is_accepting()

    def allowed(self) -> np.ndarray:
        """Which tokens may come next, (vocabulary,) bool. Lost if the grammar became too much for the library."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        bits = unpack(self._bits.tobytes(), self.words.size)
        if self._form is not None:
            bits &= self._form.allowed()
        if not bits.any():
            raise Lost("no token fits the grammar of the answer", self._why())
        for unwanted in self._unwanted():
            kept = bits.copy()
            kept[unwanted] = False
            bits = kept if kept.any() else bits
        return bits

    def _why(self) -> str:
        return (self._matcher.get_error() or (self._form.why if self._form else "")).partition("\n")[0][:200]

    def _unwanted(self) -> list[np.ndarray]:
        words, json = self.words, self._json
        found = []
        if self.place == "json":
            if json.digits:
                found.append(words.exponent)
            elif not json.quoted:
                found.append(words.spelled_exponent)
            if json.digits >= MOST_DIGITS:
                found.append(words.number)
            if json.depth >= MOST_NESTING:
                found.append(words.opening_later if json.quoted else words.opening)
        elif self.place == "text":
            for n in range(min(len(self._tail), len(_CLOSER) - 1), 0, -1):
                if self._tail.endswith(_CLOSER[:n]):
                    found.append(words.starting(_CLOSER[n:]))
                if self._forms and self._tail.endswith(b";" + _CLOSER[1:n]):
                    found.append(words.starting(_CLOSER[n:]))
        elif self._tool in self._forms and self._tail.startswith(_PARAMETER):
            found.append(words.overshooting)
            found += [words.starting(b">")] if self._tail.endswith(b'"') else []
            if self._tail.endswith(b'"') and (end := words.exactly(b">")) >= 0:
                found[-1] = found[-1][found[-1] != end]
        return [ids for ids in found if len(ids)]

    def consume(self, token: int) -> None:
        """The token that was taken. Lost for one that was not allowed."""
        words = self.words
        if not self._matcher.consume_token(token):
            raise Lost(f"the answer left its grammar at token {token}", self._why())
        if token in words.control:
            if token == words.dsml:
                self.place, self._tail, self._form = "markup", b"", None
            return
        if self._form is not None:
            self._form.consume(token)
        data = words.bytes[token]
        if self.place == "markup":
            data = self._markup(data)
        if self.place == "json":
            self._json.feed(data)
        elif self.place == "text":
            self._tail = (self._tail + data)[-2 * len(_CLOSER) :]

    def _markup(self, data: bytes) -> bytes:
        """Follow a tag to its end; what is left of ``data`` is in the next place."""
        tag, end, rest = (self._tail + data).partition(b">")
        if not end:
            self._tail = tag
            return b""
        if tag.startswith(_INVOKE):
            self._tool = tag[len(_INVOKE) :].rstrip(b'"')
        self._tail = b""
        if tag.startswith(_PARAMETER):
            is_string = tag.endswith(b'string="true"')
            self.place, self._json = ("text" if is_string else "json"), Json()
            if is_string and self._tool in self._forms:
                self._form = Form(self.words, self._forms[self._tool].deep_copy())
            return rest
        return b""

    def shortest(
        self, most: int, cancelled: Callable[[], bool] = lambda: False, patience: Patience | None = None
    ) -> list[int] | None:
        """Tokens that end the answer from here, control tokens included, as few as a short search finds; None if it
        takes more than ``most``, or more than ``patience``. This follower stays where it is."""
        ahead, path, patience = self.copy(), list[int](), patience or Patience()
        patience.renew()
        while not ahead.complete:
            if len(path) >= most or patience.over or cancelled():
                return None
            forced = ahead._forced(most - len(path))
            if not forced and ahead.place == "markup" and not ahead._tool:
                return ahead._shortest_call(path, most, cancelled, patience)
            for token in forced or ahead._nearer(patience):
                ahead.consume(token)
                path.append(token)
        return path

    def _shortest_call(
        self, path: list[int], most: int, cancelled: Callable[[], bool], patience: Patience
    ) -> list[int] | None:
        """The rest of a way on which a tool is to be chosen: the shortest of some."""
        best: list[int] | None = None
        allowed = np.flatnonzero(self.allowed())
        for token in sorted(allowed, key=lambda token: len(self.words.bytes[token]), reverse=True)[:_BRANCHES]:
            branch = self.copy()
            branch.consume(int(token))
            if not branch._tool:
                branch._tool = b"?"  # no more branches for names that begin alike
            found = branch.shortest(most - len(path) - 1, cancelled, patience)
            if found is not None and (best is None or len(found) < len(best) - 1):
                best = [int(token), *found]
        return None if best is None else path + best

    def _forced(self, most: int) -> list[int]:
        """Tokens to which there is no alternative."""
        if self._form is not None or self.place == "text":
            return []  # those know more than the grammar does
        return self._matcher.compute_ff_tokens()[: min(most, _FORCED)]

    def _nearer(self, patience: Patience) -> list[int]:
        """Tokens that bring the end nearer."""
        words, bits = self.words, self.allowed()
        patience.tried += 1
        mark = words.exactly(b'"')
        if bits[words.eos]:
            return [words.eos]
        if self.place == "text":
            if bits[words.dsml]:
                return [words.dsml]
            if self._leads(words.closer, words.dsml):
                return list(words.closer)
        elif self.place == "markup" or not (self._json.quoted or self._json.digits):
            patience.renew()
            if self.place == "markup" and bits[mark]:
                return [mark]  # of an attribute
            return [self._lowest(bits)]
        elif self._json.may_close and bits[mark]:
            return [mark]
        elif self._json.digits and (rest := words.without_numbers(bits)).any():
            return [self._lowest(rest)]
        if patience.skip:
            patience.skip -= 1
            return [self._longest(bits)]
        way = self._guided(patience) or self._search(bits, patience)
        if way is None:
            patience.lose()
            return [self._longest(bits)]
        return way

    def _guided(self, patience: Patience) -> list[int]:
        """The shortest rest of an example behind which the string that is being read may end; none if there is none."""
        words = self.words
        if self.place != "text" and not self._json.may_close:
            return []
        end = [*words.closer, words.dsml] if self.place == "text" else [words.exactly(b'"')]
        for example in (*self._examples, _ANY):
            for size in (*range(1, min(len(example), len(_ANY))), len(example)):
                rest = example[-size:]
                tokens = words.spelled(escape_string(rest) if self.place == "text" else quote(rest)[1:-1])
                if patience.over:
                    return []
                if self._form is not None and not self._form.takes(tokens):
                    continue
                if self._matcher.validate_tokens([*tokens, *end]) == len(tokens) + len(end):
                    return tokens
        return []

    def _lowest(self, bits: np.ndarray) -> int:
        """The token of the lowest rank; a marker only if there is nothing else."""
        allowed = np.flatnonzero(bits)
        return int(allowed[self.words.later[allowed].argmin()])

    def _longest(self, bits: np.ndarray) -> int:
        """The token that says most, of letters and digits if possible."""
        for tokens in (self.words.words, self.words.long):
            found = bits[tokens]
            if found.any():
                return int(tokens[found.argmax()])
        return int(bits.argmax())

    def _search(self, bits: np.ndarray, patience: Patience) -> list[int] | None:
        """The tokens after which the string or number that is being read may end, breadth first; None if that is far.
        States are told apart by what may come next, and each is met a few times only."""
        front: list[tuple[Follower, np.ndarray, list[int]]] = [(self, bits, [])]
        met: Counter[bytes] = Counter()
        end = patience.tried + _TRIED
        while front and patience.tried < end and not patience.over:
            further: list[tuple[Follower, np.ndarray, list[int]]] = []
            for state, allowed, path in front:
                children = set()
                for token in state._candidates(allowed, patience.wide):
                    if patience.over:
                        return None
                    step = state.copy()
                    step.consume(token)
                    patience.tried += 1
                    after = step.allowed()
                    if step._may_end(after):
                        return [*path, token]
                    key = after.tobytes()
                    if key in children or met[key] >= _MET:
                        continue
                    children.add(key)
                    met[key] += int(np.count_nonzero(after) > 1)
                    further.append((step, after, [*path, token]))
            front = further[:_WIDTH]
        return None

    def _leads(self, way: tuple[int, ...], to: int) -> bool:
        """Whether ``way`` may be taken, and ``to`` behind it."""
        ahead = self.copy()
        for token in way:
            if not ahead.allowed()[token]:
                return False
            ahead.consume(token)
        return bool(ahead.allowed()[to])

    def _may_end(self, bits: np.ndarray) -> bool:
        """Whether the string or number may end here, where ``bits`` are allowed."""
        words = self.words
        if self.place == "text":
            return self._leads(words.closer, words.dsml)
        if self._json.quoted:
            return self._json.may_close and bool(bits[words.exactly(b'"')])
        return bool(words.without_numbers(bits).any())

    def _candidates(self, bits: np.ndarray, wide: bool) -> list[int]:
        """Some tokens that are worth a look: short ones, of all kinds."""
        words = self.words
        single = [int(token) for token in words.single[bits[words.single]]]
        if not single:
            allowed = np.flatnonzero(bits)
            return [int(token) for token in allowed[words.rank[allowed].argsort(kind="stable")][:_LOOKED_AT]]
        if len(single) <= _LOOKED_AT:
            return single
        return [token for token in single if words.bytes[token] in _KINDS or (wide and words.bytes[token].isascii())]


class Patience:
    """How much a search may cost: steps, and processor seconds of its thread. How often one for the end of a string has
    failed: the next one comes after twice as many steps."""

    def __init__(self, seconds: float = 2.0, clock: Callable[[], float] = time.thread_time):
        self.tried = self._looked = 0
        self._clock, self._end = clock, clock() + seconds
        self.renew()

    @property
    def over(self) -> bool:
        """Whether that is enough."""
        if self.tried >= self._looked + _LOOK:  # reading the clock may cost as much as a step
            self._looked = self.tried
            if self._clock() >= self._end:
                self.tried = EFFORT
        return self.tried >= EFFORT

    def renew(self) -> None:
        """Another string or number."""
        self.skip, self._lost, self.wide = 0, 0, False

    def lose(self) -> None:
        """A search found nothing; the second one looks at all characters."""
        self._lost += 1
        self.wide = self._lost == 1
        self.skip = 0 if self.wide else min(1 << self._lost, 256)


class Json:
    """Where in a JSON text we are: inside a string, how deep, after how many digits of a number."""

    def __init__(self) -> None:
        self.quoted = self._escaped = False
        self.depth = self.digits = 0

    def copy(self) -> Json:
        """The same, to go on with apart from this one."""
        other = Json()
        other.quoted, other._escaped, other.depth, other.digits = self.quoted, self._escaped, self.depth, self.digits
        return other

    @property
    def may_close(self) -> bool:
        """Whether a quotation mark would end a string here."""
        return self.quoted and not self._escaped

    def feed(self, data: bytes) -> None:
        """More of the text."""
        for byte in data:
            if self.quoted:
                if self._escaped:
                    self._escaped = False
                elif byte == 0x5C:
                    self._escaped = True
                elif byte == 0x22:
                    self.quoted = False
            elif byte in b"0123456789":
                self.digits += 1
            elif byte not in b".-" or not self.digits:
                self.digits = 0
                if byte == 0x22:
                    self.quoted = True
                elif byte in b"[{":
                    self.depth += 1
                elif byte in b"]}":
                    self.depth -= 1
