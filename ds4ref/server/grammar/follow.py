"""One answer on its way through a grammar: which tokens may come next, and the shortest way to the end.

Three things that a grammar does not say are seen to here, because what reads the answer trips over them:

  numbers   15 digits and no exponent, as far as the grammar leaves a choice: more digits are rounded by every reader,
            perhaps across a bound of the schema
  nesting   48 levels of JSON, likewise
  markup    the closing tag of a parameter, spelled in plain tokens inside a string's text, would end it

All of them only ever take tokens away, and not the last ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ...errors import TextError
from ...text.protocol import CANONICAL
from ...text.rawjson import MAX_DEPTH
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
_FORCED, _BRANCHES, _LOOKED_AT = 24, 8, 48
_KINDS = (b"</", *(bytes([byte]) for byte in b"01aA</ \n-.:@+*#_=\\"))
"""Tokens that the search for an end can force at a time, tools that it tries, characters that it tries; and which ones
where all are possible."""


class Follower:
    """``start`` is a compiled grammar, of which a copy is followed. The answer begins in JSON, or in markup after
    ``begin_markup``. ``forms`` are compiled grammars of custom tools, by their names as they stand in the markup."""

    def __init__(
        self,
        words: Vocabulary,
        start: LLMatcher,
        *,
        forms: dict[bytes, LLMatcher] | None = None,
    ):
        self.words, self._forms = words, forms or {}
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
        other = Follower(self.words, self._matcher, forms=self._forms)
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
        """Which tokens may come next, (vocabulary,) bool. TextError if the grammar became too much for the library."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        bits = unpack(self._bits.tobytes(), self.words.size)
        if self._form is not None:
            bits &= self._form.allowed()
        if not bits.any():
            why = self._matcher.get_error().partition("\n")[0][:200] or "no token fits"
            raise TextError(f"the answer could not be kept to its grammar: {why}")
        for unwanted in self._unwanted():
            kept = bits.copy()
            kept[unwanted] = False
            bits = kept if kept.any() else bits
        return bits

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
        """The token that was taken. TextError for one that was not allowed."""
        words = self.words
        if not self._matcher.consume_token(token):
            raise TextError(f"the answer left its grammar at token {token}")
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

    def shortest(self, most: int, cancelled: Callable[[], bool] = lambda: False) -> list[int] | None:
        """Tokens that end the answer from here, control tokens included, as few as a greedy search finds; None if it
        takes more than ``most``. This follower stays where it is."""
        ahead, path = self.copy(), list[int]()
        seen: set[bytes] = set()
        while not ahead.complete:
            if len(path) >= most or cancelled():
                return None
            forced = ahead._forced(most - len(path))
            if not forced and ahead.place == "markup" and not ahead._tool:
                return ahead._shortest_call(path, most, cancelled)
            for token in forced or ahead._cheapest(seen):
                ahead.consume(token)
                path.append(token)
        return path

    def _shortest_call(self, path: list[int], most: int, cancelled: Callable[[], bool]) -> list[int] | None:
        """The rest of a way on which a tool is to be chosen: the shortest of some."""
        best: list[int] | None = None
        allowed = np.flatnonzero(self.allowed())
        for token in sorted(allowed, key=lambda token: len(self.words.bytes[token]), reverse=True)[:_BRANCHES]:
            branch = self.copy()
            branch.consume(int(token))
            if not branch._tool:
                branch._tool = b"?"  # no more branches for names that begin alike
            found = branch.shortest(most - len(path) - 1, cancelled)
            if found is not None and (best is None or len(found) < len(best) - 1):
                best = [int(token), *found]
        return None if best is None else path + best

    def _forced(self, most: int) -> list[int]:
        """Tokens to which there is no alternative."""
        if self._form is not None or self.place == "text":
            return []  # those know more than the grammar does
        return self._matcher.compute_ff_tokens()[: min(most, _FORCED)]

    def _cheapest(self, seen: set[bytes]) -> list[int]:
        """The tokens that bring the end nearest, as far as a step or two tell. ``seen`` are the masks that were met in
        the string that is being read: a token that leads to a new one gets on with its pattern."""
        words, bits = self.words, self.allowed()
        allowed, quote = np.flatnonzero(bits), words.exactly(b'"')
        in_text, in_string = self.place == "text", self.place == "json" and self._json.quoted
        if bits[words.eos]:
            return [words.eos]
        if not in_text and not in_string:
            seen.clear()
            rank = words.rank[allowed] + 100 * (allowed == words.dsml)  # a marker in between opens one more tag
            if self.place == "markup" and bits[quote]:
                return [quote]  # of an attribute
            return [int(allowed[rank.argmin()])]
        if in_text and bits[words.dsml]:
            return [words.dsml]
        if in_string and bits[quote]:
            return [quote]
        if in_text and self._leads(words.closer, words.dsml):
            return list(words.closer)
        seen.add(bits.tobytes())
        new = None
        for token in self._candidates(allowed):
            step = self.copy()
            step.consume(token)
            after = step.allowed()
            if (in_string and after[quote]) or (in_text and step._leads(words.closer, words.dsml)):
                return [token]
            if new is None and after.tobytes() not in seen:
                new = token
        if new is not None:
            return [new]
        longest = [token for token in allowed if words.bytes[token].isalnum() and words.bytes[token].isascii()]
        return [int(max(longest or allowed, key=lambda token: len(words.bytes[token])))]

    def _leads(self, way: tuple[int, ...], to: int) -> bool:
        """Whether ``way`` may be taken, and ``to`` behind it."""
        ahead = self.copy()
        for token in way:
            if not ahead.allowed()[token]:
                return False
            ahead.consume(token)
        return bool(ahead.allowed()[to])

    def _candidates(self, allowed: np.ndarray) -> list[int]:
        """Some tokens that are worth a look: short ones, of all kinds."""
        words = self.words
        ranked = allowed[words.rank[allowed].argsort(kind="stable")]
        single = [int(token) for token in ranked if len(words.bytes[token]) == 1 or words.bytes[token] == b"</"]
        if len(single) <= _LOOKED_AT:
            return single or [int(token) for token in ranked[:_LOOKED_AT]]
        return [token for token in single if words.bytes[token] in _KINDS]


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
