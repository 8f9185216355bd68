"""An engine: a model file, opened with a backend and a numerics mode. It is immutable and shared by its sessions, each
of which is one sequence of tokens.

    model = Engine.open("model.gguf", numerics="exact")
    print(model.ask("Why?"))
    logits = model.logits("Hello")

``ask`` and ``logits`` are for notebooks: each makes a session of its own. To keep a session, call ``session`` and
decode with ``generate``. docs/reference/api.md has examples.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from numbers import Integral
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .archs import Model, arch_of, costs_of
from .archs.experts import cached, dense_bytes
from .backends import load_backend
from .costs import prefill_chunk
from .engine_options import UNSTEERED, EngineOptions, Steering, check_on_cluster
from .environment import available_bytes, memory_bytes
from .errors import BackendError, DataError, SessionError, TextError, TokenError, UsageError, did_you_mean
from .numerics import checked_settings, numerics
from .residency.hotlist import beside, read_hot_list
from .session.session import CLOSED, Session
from .session.together import Together
from .text.protocol import DEFAULT_SYSTEM, SYSTEM
from .weights import open_source

FREE_FOR_EXPERTS = 0.8
"""The share of free memory that the cached experts and all other weights together may take, for a model larger than
memory."""

CTX_STEP = 4096
"""``Engine.stream`` rounds contexts up to a multiple of so many tokens: sessions of the same context size share
recordings (``decode``)."""

SCORE_ROWS = 128
"""Number of tokens whose logits are in memory at a time while a text is scored."""

if TYPE_CHECKING:
    import numpy as np

    from .archs.steering import Directions
    from .costs import Costs
    from .drafts.setup import Drafts
    from .generate import Generation, Progress
    from .residency.resident import ResidentExperts
    from .sampling import Sampler
    from .text.chat import Message
    from .text.official import Profile
    from .text.tokenizer import Tokenizer
    from .weights.source import TensorSource

    Asked = str | Sequence[int] | Sequence[Mapping[str, Any] | Message]


class Engine:
    """A loaded model, opened with ``Engine.open``."""

    def __init__(self, source: TensorSource, model: Model, options: EngineOptions, drafts: Drafts | None = None):
        self.source, self.model, self.options, self.drafts = source, model, options, drafts

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # ``close`` removes the model
            raise SessionError(CLOSED)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        if "model" not in self.__dict__:
            return f"<Engine: {self.path}, closed>"
        return f"<Engine: {self.path}, backend {self.backend}, numerics {self.model.numerics.name}>"

    def check_open(self) -> None:
        """Raise SessionError if the engine is closed."""
        _ = self.model

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | None = None,
        options: EngineOptions | None = None,
        *,
        progress: Callable[[str], None] | None = None,
        **keywords: Any,
    ) -> Engine:
        """Map and check a model file (default: the embedded model) and load a backend.

        keywords: fields of ``EngineOptions``, which override those of ``options``.
        progress: called with a line of text, once a second, while the kernels of the backend cpu are compiled, which
        takes 10 s or more at their first use on a machine (None: the first and last line go to stderr).
        Raise UsageError, ModelFileError, ShapeError, BackendError; ClusterError for a worker that cannot be used;
        DataError for steering directions that do not fit the model.
        """
        wanted = replace(options or EngineOptions(), **keywords)
        mode = numerics(wanted.numerics)
        if wanted.drafts is not None and wanted.drafts.kind == "off":
            wanted = replace(wanted, drafts=None)
        if wanted.cluster is not None:
            check_on_cluster(wanted)
        if wanted.threads is not None:
            _check_threads(wanted.threads)
        if path is None:
            from .nano import embedded_path

            path = embedded_path()
        source, resident = open_source(path), None
        try:
            arch = arch_of(source)
            shape = arch.read_shape(source, wanted.strict)
            if wanted.cluster is not None:
                from .cluster.open import open_cluster

                far: Any = open_cluster(wanted, source, shape)
                return cls(source, far, wanted)
            if wanted.backend == "cuda" and hasattr(source, "in_place"):
                source.in_place = False  # CUDA kernels need weight rows in a storage format, not the file's own layout
            _check_memory(source, wanted.backend)
            weights = arch.bind(source, shape)
            needs = arch.kernels(source, shape, mode.act_quant)
            ops = load_backend(wanted.backend, wanted.threads, wanted.gpu_memory, progress, needs)
            larger, size = _larger_than_memory(source), wanted.expert_cache
            if wanted.advise is not None and size is None:
                size = "off"
            weights, resident, uncached = _expert_cache(size, larger, source, weights, ops, shape.n_used)
            try:
                advise = larger if wanted.advise is None else wanted.advise
                model = arch.model(shape, weights, ops, mode, advise, resident)
            except MemoryError as e:
                raise BackendError(f"backend {wanted.backend} cannot run this model here: {e}") from e
            model.experts.uncached = uncached
            if wanted.steering is not None:
                model = _steered(model, wanted.steering)
            if resident is not None and beside(path).exists():
                resident.preload(read_hot_list(beside(path), *resident.contents.place.shape))
            drafts = None
            if wanted.drafts is not None:
                from .drafts.setup import Drafts

                drafts = Drafts(model, wanted.drafts)
        except BaseException:
            if resident is not None:
                resident.close()
            source.close()
            raise
        return cls(source, model, wanted, drafts)

    @property
    def backend(self) -> str:
        """Return the name of the backend."""
        return self.options.backend

    @property
    def path(self) -> str:
        """Return the path of the model file."""
        return os.fspath(self.source.path)

    @property
    def shape(self) -> Any:
        """Return the dimensions of the model, an object of its architecture (``archs.NAME.shape``)."""
        return self.model.shape

    @property
    def steering(self) -> Directions | None:
        """Return the steering directions of this engine, None without steering."""
        return self.model.steering

    @property
    def cluster(self) -> list[dict[str, Any]] | None:
        """Return which worker has which layers (``cluster.model.ClusterModel.places``), None on one machine."""
        return self.model.places()

    def steered(self, steering: Steering | None) -> Engine:
        """Return an engine of the same weights with other steering (None: without any), and without speculative
        decoding.

        Both engines share memory and file: call ``close`` only on the one that ``open`` returned, when neither is used
        any more. Raise UsageError or DataError for directions that do not fit, UsageError on a cluster.
        """
        options = replace(self.options, steering=steering, drafts=None)
        return Engine(self.source, _steered(self.model, steering), options)

    @property
    def threads(self) -> int:
        """Return the number of threads this engine computes with; assign to change it. Other engines keep theirs."""
        return self.model.ops.threads

    @threads.setter
    def threads(self, count: int) -> None:
        _check_threads(count)
        self.model.ops.threads = count

    def expert_use(self, most: int = 16) -> dict[str, Any]:
        """Return how often routed experts were chosen so far, in all sessions: totals, and the ``most`` frequent
        experts."""
        return self.model.experts.summary(most)

    def expert_counts(self) -> np.ndarray:
        """Return how often each routed expert was chosen, (layers, experts); raise DataError for a model without routed
        experts."""
        counts: np.ndarray = self.model.ops.host(self.model.experts.counts)
        if not counts.size:
            raise DataError(f"{self.path}: the model has no routed experts")
        return counts

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer, built from the file's vocabulary on first use."""
        from .text.vocabulary import open_tokenizer

        self.check_open()
        tokenizer = open_tokenizer(self.source, self.options.split)
        if self.profile is not None:
            tokenizer.profile = self.profile
            if self.profile.in_place:
                tokenizer.special_id(SYSTEM)
        return tokenizer

    @cached_property
    def profile(self) -> Profile | None:
        """Return the prompt format that the options or the checkpoint ask for; None for ds4's ("may"), or for the own
        format of a model that is not DeepSeek V4."""
        from .archs.deepseek4.checkpoint import checkpoint_of
        from .text.official import PROFILES
        from .weights.source import DEEPSEEKS, architecture

        name = self.options.template
        if architecture(self.source) not in DEEPSEEKS:
            if name is not None:
                raise UsageError(f"{self.path}: template {name} is DeepSeek V4's; this model has one of its own")
            return None
        name = name or checkpoint_of(self.source).profile
        if name == "may":
            return None
        return replace(PROFILES[name], escapes=self.options.template_escapes == "on")

    @property
    def also(self) -> dict[str, str]:
        """Return further settings that change results, beside model and numerics, to be recorded with them: steering,
        and another prompt format."""
        facts = {} if self.steering is None else {"steering": self.steering.identity}
        if self.profile is not None:
            facts["template"] = self.profile.name + ("" if self.profile.escapes else ", no escapes")
        return facts

    def sampler(self, temperature: float = 0.0, **settings: Any) -> Sampler:
        """Return a sampler for this model (``sampling.sampler_of``); ``settings`` may be top_k, top_p, min_p, seed.

        Raise UsageError for a value out of its range (``numerics.RANGES``), TypeError for an unknown setting.
        """
        from .sampling import sampler_of

        self.check_open()
        checked_settings({"temperature": temperature, **settings})
        return sampler_of(self.source, temperature, **settings)

    def costs(self) -> Costs:
        """Return the cost model of this file in this numerics mode: bytes and operations per token."""
        self.check_open()
        costs = costs_of(self.source, self.model.numerics.act_quant)
        costs.chunk = self.prefill_chunk
        return costs

    @property
    def prefill_chunk(self) -> int:
        """Return the default tokens per prefill chunk of sessions."""
        return prefill_chunk(self.model.ops)

    def session(self, ctx: int) -> Session:
        """Return a new, empty session for ``ctx`` tokens; raise BackendError if memory does not suffice."""
        if not isinstance(ctx, Integral):
            raise UsageError(f"ctx is {_shown(ctx)}: a number of tokens is needed")
        try:
            return Session(self.model, ctx) if self.drafts is None else self.drafts.session(ctx)
        except MemoryError as e:
            raise BackendError(f"no memory for a context of {ctx} tokens: {e}") from e

    def together(self) -> Together:
        """Return an object that evaluates the next tokens of several sessions in one pass."""
        return Together(self.model)

    # --- without an explicit session

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a plain text; text that looks like a control token is encoded as ordinary text."""
        self.check_open()
        if not isinstance(text, str):
            raise UsageError(f"the text is {_shown(text)}: a str is needed")
        return self.tokenizer.encode(text)

    def decode(self, ids: int | Sequence[int]) -> str:
        """Return the text of token ids; bytes that are not valid UTF-8 become U+FFFD. Raise TokenError for an unknown
        id."""
        self.check_open()
        known = _token_ids([ids] if isinstance(ids, Integral) else ids, self.shape.vocab)
        return self.tokenizer.decode(known).decode("utf-8", "replace")

    def prompt(self, text: Asked, system: str = DEFAULT_SYSTEM, thinking: str = "none") -> list[int]:
        """Return the token ids of a chat, up to the start of its answer.

        text: a question, or messages in the form of OpenAI's API ({"role": ..., "content": ...}) or as ``Message``, the
        last of which is not the assistant's. Text that looks like a control token is encoded as ordinary text.
        system: system text, unless the messages have one of their own.
        thinking: "none", "low", "high" or "max".
        Raise UsageError for an unknown thinking mode, TextError for malformed messages or a file without a tokenizer.
        """
        from .text.chat import MODES, Message
        from .text.prompts import encode_chat_prompt, prompt_of

        self.check_open()
        if thinking not in MODES:
            raise UsageError(
                f"unknown thinking mode {thinking!r}: choose from {', '.join(MODES)}{did_you_mean(thinking, MODES)}"
            )
        if isinstance(text, str):
            return encode_chat_prompt(self.tokenizer, system or "", text, thinking)
        messages = read_messages(text)
        if len(messages) == 1 and messages[0].role == "user":
            return self.prompt(messages[0].content, system, thinking)
        if system and not any(message.role in ("system", "developer") for message in messages):
            messages = [Message("system", system), *messages]
        return prompt_of(self.tokenizer.profile, messages, (), thinking).encode(self.tokenizer)

    def stream(
        self,
        prompt: Asked,
        *,
        max_tokens: int = 256,
        system: str = DEFAULT_SYSTEM,
        thinking: str = "none",
        stop: str | Sequence[str] | None = None,
        temperature: float = 0.0,
        progress: Progress | None = None,
        **sampling: Any,
    ) -> Generation:
        """Evaluate a prompt and return a Generation; iterating over it decodes the answer, one ``Piece`` of text at a
        time.

        prompt: a question or messages, put into a chat by ``prompt``, or token ids, used unchanged.
        system, thinking: as for ``prompt``. stop: texts at which the answer ends; the stop text is not part of the
        answer, and reasoning is not searched for it.
        temperature: 0 picks the most likely token; ``sampling`` is top_k, top_p, min_p, seed of ``sampling.Sampler``.
        progress: called with (tokens done, tokens of the prompt) as the prompt is evaluated (``ds4ref.Progress``).
        Raise UsageError for an option out of its range.
        """
        from .generate import Generation, Timing, prefill
        from .text.chat import ends_in_thinking

        sampler = self.sampler(temperature, **sampling)
        checked_settings({"max_tokens": max_tokens})
        stops = _texts(stop)
        ids = self._prompt_ids(prompt, system, thinking)
        needed = len(ids) + max_tokens + 1
        session, timing = self.session(-(-needed // CTX_STEP) * CTX_STEP), Timing()
        prefill(session, ids, timing, progress=progress)
        inside = ends_in_thinking(ids, self.tokenizer)
        return Generation(
            session, self.tokenizer, sampler, limit=max_tokens, thinking=inside, timing=timing, stop=stops
        )

    def ask(self, prompt: Asked, **options: Any) -> str:
        """Return the answer to a prompt as text, without its reasoning. Options are those of ``stream``."""
        return "".join(piece.text for piece in self.stream(prompt, **options) if not piece.thinking)

    def logits(self, text: str | Sequence[int]) -> np.ndarray:
        """Return the logits (T, vocab) float32 after each token of a plain text or of token ids."""
        ids = self._text_ids(text)
        return self.session(len(ids) + 1).extend(ids)

    def logprobs(self, text: str | Sequence[int], progress: Progress | None = None) -> np.ndarray:
        """Return the natural log probability of each token but the first, given those before it: (T - 1,) float32.

        text: a plain text, encoded without BOS, or token ids.
        """
        import numpy as np

        from .sampling import token_logprob

        ids = self._text_ids(text)
        values: list[float] = []
        for start, rows in self.session(len(ids) + 1).passes(ids[:-1], rows=SCORE_ROWS):
            values += [token_logprob(row, token) for row, token in zip(rows, ids[start + 1 :], strict=False)]
            if progress is not None:
                progress(len(values), len(ids) - 1)
        return np.array(values, np.float32)

    def perplexity(self, text: str | Sequence[int], progress: Progress | None = None) -> float:
        """Return the perplexity of a plain text or of token ids: exp of the mean of ``-logprobs``.

        Raise UsageError for fewer than two tokens.
        """
        import numpy as np

        scored = self.logprobs(text, progress)
        if not len(scored):
            raise UsageError("a perplexity needs a text of at least 2 tokens: the first has nothing before it")
        with np.errstate(over="ignore"):
            return float(np.exp(-scored.mean(dtype=np.float64)))

    def hidden(self, text: str | Sequence[int], progress: Progress | None = None) -> np.ndarray:
        """Return the last hidden states of a plain text or of token ids: (T, dim) float32, after the output norm.

        They are the inputs of the output matrix; in V4 the residual streams (hyper-connections) of a token are merged
        by then. Raise UsageError on a cluster.
        """
        import numpy as np

        from .archs.deepseek4.hooks import Recorder

        if self.cluster is not None:
            raise UsageError("hidden states are not read on a cluster: one machine")
        ids, seen = self._text_ids(text), Recorder("result_norm")
        for start, _, streams in self._evaluated(ids, progress):
            self.model.logits(self.model.ops.upload(streams), start, seen)
        return seen["result_norm", -1] if ids else np.empty((0, self.shape.dim), np.float32)

    def _prompt_ids(self, prompt: Any, system: str, thinking: str) -> list[int]:
        if isinstance(prompt, str):
            return self.prompt(prompt, system, thinking)
        items = list(prompt) if isinstance(prompt, Iterable) and not isinstance(prompt, Mapping | bytes) else None
        if items is not None and all(isinstance(item, Integral) for item in items):
            return _token_ids(items, self.shape.vocab)
        return self.prompt(prompt if items is None else items, system, thinking)

    def _text_ids(self, text: str | Sequence[int]) -> list[int]:
        return self.encode(text) if isinstance(text, str) else _token_ids(text, self.shape.vocab)

    def _evaluated(self, ids: Sequence[int], progress: Progress | None) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Evaluate ``ids`` in a session of its own; yield position, logits (N, vocab) and residual streams of
        SCORE_ROWS tokens at a time, to bound the memory of the logits."""
        session = self.session(len(ids) + 1)
        for start in range(0, len(ids), SCORE_ROWS):
            streams: list[np.ndarray] = []
            part = ids[start : start + SCORE_ROWS]
            rows = session.extend(part, chunk=SCORE_ROWS, streams=streams)
            if progress is not None:
                progress(start + len(part), len(ids))
            (together,) = streams
            yield start, rows, together

    def close(self) -> None:
        """Drop the weights and unmap the file; sessions of this engine become unusable. Calling it again has no
        effect."""
        model = self.__dict__.pop("model", None)
        if model is not None:
            model.closed = True  # sessions check it before they compute
            model.close()
        if self.drafts is not None:
            self.drafts.close()
        self.source.close()

    def __enter__(self) -> Engine:
        self.check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def read_messages(messages: Sequence[Any]) -> list[Message]:
    """Convert messages in the form of OpenAI's API to ``Message``; items that are ``Message`` already are kept.

    Raise TextError for an item that is not a message, for an unknown role or a content that is not text, and for a list
    that is empty or ends with a message of the assistant.
    """
    import json

    from .text.chat import ROLES, Message
    from .text.messages import from_openai

    if not isinstance(messages, Iterable) or isinstance(messages, Mapping | bytes):
        raise UsageError(
            f"the prompt is {_shown(messages)}: a text, a list of messages or a list of token ids is needed"
        )
    read: list[Message] = []
    for number, item in enumerate(messages, 1):
        where = f"message {number}"
        if isinstance(item, Message):
            read.append(item)
        elif not isinstance(item, Mapping) or not isinstance(item.get("role"), str):
            raise TextError(f"{where} is {_shown(item)}: {{'role': ..., 'content': ...}} is needed")
        else:
            content = item.get("content")
            parts = (
                content if isinstance(content, list) else [] if item.get("tool_calls") and not content else [content]
            )
            if not all(isinstance(part, str) or (isinstance(part, Mapping) and "text" in part) for part in parts):
                raise TextError(f"{where}: its content is {_shown(content)}: a text is needed")
            try:
                read += from_openai(json.dumps([item]))
            except (TypeError, ValueError) as error:
                raise TextError(f"{where}: {error}") from None
        if read[-1].role not in ROLES:
            raise TextError(f"{where}: unknown role {_shown(read[-1].role)}: choose from {', '.join(ROLES)}")
    if not read or read[-1].role == "assistant":
        raise TextError("the messages must end with one to answer, of the user or a tool")
    return read


def _check_threads(count: Any) -> None:
    if not isinstance(count, Integral) or int(count) < 1:
        raise UsageError(f"threads must be at least 1, got {_shown(count)}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _texts(stop: Any) -> list[str]:
    """Return ``stop`` as a list of texts; raise UsageError if one is empty or not a text."""
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(stops, list | tuple) or not all(isinstance(text, str) and text for text in stops):
        raise UsageError(f"stop is {_shown(stop)}: a text, or a list of texts, none of them empty, is needed")
    return list(stops)


def _token_ids(ids: Any, vocab: int) -> list[int]:
    """Return token ids as a list of int; raise TokenError for one that is not a token id of the vocabulary."""
    if not isinstance(ids, Iterable):
        raise UsageError(f"the token ids are {_shown(ids)}: a text or a list of token ids is needed")
    known = list(ids)
    for at, token in enumerate(known):
        if not isinstance(token, Integral) or isinstance(token, bool) or not 0 <= int(token) < vocab:
            raise TokenError(f"token id {_shown(token)} at position {at} is outside the vocabulary of {vocab}")
    return [int(token) for token in known]


def _check_memory(source: Any, backend: str) -> None:
    """Raise BackendError if the weights do not fit into memory in the form into which they must first be converted."""
    memory, unpacked = memory_bytes(), getattr(source, "made_bytes", 0)
    if memory is not None and unpacked > memory:
        need = f"{unpacked / 2**30:.1f} GiB of memory to lay out its weights, {memory / 2**30:.1f} are there"
        raise BackendError(
            f"{source.path}: backend {backend} takes {need}; a GGUF made of it (ds4-quantize) is read in place"
        )


def _larger_than_memory(source: Any) -> bool:
    memory = memory_bytes()
    return memory is not None and source.size > memory


def _expert_cache(
    wanted: int | str | None, larger: bool, source: Any, weights: Any, ops: Any, used: int
) -> tuple[Any, ResidentExperts | None, str]:
    """Return (weights, expert cache or None, why there is no automatic cache) for the option ``expert_cache`` of
    ``Engine.open``, which is ``wanted``.

    The returned weights read routed experts through the cache, if there is one. The reason is "" if there is a cache or
    none was due.
    larger: the file is larger than memory. used: number of experts per token and layer.
    """
    automatic = wanted in (None, "auto")
    if wanted == "off" or (automatic and not larger):
        return weights, None, ""
    if not automatic:
        return *cached(source, weights, ops, int(wanted or 0), used), ""
    free = available_bytes()
    if free is None:
        return weights, None, "the system does not tell how much memory is free"
    try:
        return *cached(source, weights, ops, max(0, int(FREE_FOR_EXPERTS * free) - dense_bytes(source)), used), ""
    except (UsageError, BackendError) as error:  # too little memory for a cache: experts are read from the mapped file
        return weights, None, str(error)


def _steered(model: Model, steering: Steering | None) -> Model:
    """Return a model of the same weights with other steering, None for none; raise UsageError for a model on a
    cluster."""
    from .archs.steering import Directions

    if model.ops.name == "cluster":
        raise UsageError(UNSTEERED)
    other = copy.copy(model)
    directions = None if steering is None else Directions(steering, model.shape, model.ops)
    other.steering = directions if directions is not None and directions.active else None
    return other
