"""The engine: a model file, a backend and a numerics mode. Immutable and shared; sessions are its timelines.

engine = Engine.open("model.gguf", numerics="exact")
session = engine.session(ctx=4096)
session.sync(engine.tokenizer.encode("Hello"))
session.eval(session.argmax())
"""

from __future__ import annotations

import os
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .archs import Model, arch_of
from .backends import DEFAULT_BACKEND, load_backend
from .environment import memory_bytes
from .errors import UsageError
from .numerics import DEFAULT_MODE, numerics
from .session.session import Session
from .weights.gguf import GGUFFile

if TYPE_CHECKING:
    from .text.tokenizer import Tokenizer


class Engine:
    """A loaded model. Use ``Engine.open``."""

    def __init__(self, gguf: GGUFFile, model: Model, backend: str, split: str = "unicode"):
        self.gguf, self.model, self.backend, self._split = gguf, model, backend, split

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        backend: str = DEFAULT_BACKEND,
        numerics: str = DEFAULT_MODE,
        threads: int | None = None,
        strict: bool = False,
        split: str = "unicode",
        advise: bool | None = None,
    ) -> Engine:
        """Map and check a model file (None: the embedded model), load a backend.

        strict: also demand the exact dimensions of DeepSeek V4 Flash (engine.md 1.3).
        split: how the tokenizer cuts text before merging: "unicode" as the model was trained, or "ds4".
        advise: ask the system for routed experts as soon as they are chosen, which pays when the model does not fit
        into memory (None: do so if the file is larger than the memory this process may use).
        Raises UsageError, ModelFileError, ShapeError, BackendError.
        """
        mode = _mode(numerics)
        if threads is not None and threads < 1:
            raise UsageError(f"threads must be at least 1, got {threads}")
        if path is None:
            from .nano import embedded_path

            path = embedded_path()
        gguf = GGUFFile.open(path)
        try:
            arch = arch_of(gguf)
            shape = arch.read_shape(gguf, strict)
            weights = arch.bind(gguf, shape)
            ops = load_backend(backend, threads)
        except BaseException:
            gguf.close()
            raise
        if advise is None:
            memory = memory_bytes()
            advise = memory is not None and gguf.size > memory
        return cls(gguf, arch.model(shape, weights, ops, mode, advise), backend, split)

    @property
    def path(self) -> str:
        """The model file."""
        return os.fspath(self.gguf.path)

    @property
    def shape(self) -> Any:
        """Every dimension of the model, as its architecture names them (``archs``)."""
        return self.model.shape

    @property
    def threads(self) -> int:
        """Threads this engine computes with; assign to change them. Other engines keep theirs."""
        return self.model.ops.threads

    @threads.setter
    def threads(self, count: int) -> None:
        if count < 1:
            raise UsageError(f"threads must be at least 1, got {count}")
        self.model.ops.threads = count

    def expert_use(self, most: int = 16) -> dict[str, Any]:
        """How often which routed experts were chosen so far, in all sessions."""
        return self.model.experts.summary(most)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Built from the file's vocabulary on first use."""
        from .text.tokenizer import Tokenizer

        return Tokenizer.from_gguf(self.gguf, self._split)

    def session(self, ctx: int) -> Session:
        """A new, empty timeline with room for ``ctx`` tokens."""
        return Session(self.model, ctx)

    def close(self) -> None:
        """Drop the weights and unmap the file. Sessions of this engine are unusable afterwards. May be called again."""
        self.__dict__.pop("model", None)
        self.gguf.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


_mode = numerics
