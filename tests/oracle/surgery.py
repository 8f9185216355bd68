"""How a mistake gets into Hugging Face's model: its source edited, its numbers changed, each undone afterwards.

An edit takes the text of one method, replaces a fragment that must be there, and puts the compiled result in its place:
the same keystroke that an engineer would have got wrong. A version of transformers whose text differs is refused
loudly, never patched halfway.

    with edited(modeling.DeepseekV4Attention, "forward", ("cos, -sin", "cos, sin")):
        ...
"""

from __future__ import annotations

import copy
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast
from unittest.mock import patch

import torch
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as modeling

from .hf import Oracle

Apply = Callable[[Oracle], AbstractContextManager[None]]
Change = tuple[str, str]
Alter = Callable[[torch.Tensor], torch.Tensor]

CSA, INDEXER, HCA = modeling.DeepseekV4CSACompressor, modeling.DeepseekV4Indexer, modeling.DeepseekV4HCACompressor
ATTENTION, LAYER = modeling.DeepseekV4Attention, modeling.DeepseekV4DecoderLayer
MIXING = modeling.DeepseekV4HyperConnection
HEAD, SCORER = modeling.DeepseekV4HyperHead, modeling.DeepseekV4IndexerScorer
LEARNED, HASHED = modeling.DeepseekV4TopKRouter, modeling.DeepseekV4HashRouter
MOE, EXPERTS, SHARED = modeling.DeepseekV4SparseMoeBlock, modeling.DeepseekV4Experts, modeling.DeepseekV4MLP
NORM, PLAIN_NORM = modeling.DeepseekV4RMSNorm, modeling.DeepseekV4UnweightedRMSNorm
ROPE = modeling.DeepseekV4RotaryEmbedding


@dataclass(frozen=True)
class Bug:
    """Hugging Face's model with one mistake: ``with bug.apply(oracle): oracle.logits(ids)``."""

    name: str
    says: str
    apply: Apply


def rewritten(function: Any, changes: Sequence[Change]) -> Any:
    """``function`` with fragments of its source replaced; ValueError if one is not there.

    What it reads as a global is looked up in the module when it runs, so that whatever else is patched there is seen. A
    function that was rewritten is rewritten further.
    """
    function = inspect.unwrap(function)
    source = getattr(function, "rewritten", None) or textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        if old not in source:
            raise ValueError(f"{function.__qualname__} of this transformers has no {old!r}")
        source = source.replace(old, new)
    found: dict[str, Any] = {}
    exec(compile(source, f"<edited {function.__qualname__}>", "exec"), vars(modeling), found)
    built = found[function.__name__]
    built.rewritten = source
    return built


def edit(owner: Any, name: str, *changes: Change) -> Apply:
    """Method or module function ``name`` of ``owner`` with its text changed (``rewritten``)."""

    def apply(_oracle: Oracle) -> AbstractContextManager[None]:
        return patch.object(owner, name, rewritten(getattr(owner, name), changes))

    return apply


def forward(*owners: Any, to: Sequence[Change]) -> Apply:
    """The same changes in ``forward`` of several classes."""
    return both(*(edit(owner, "forward", *to) for owner in owners))


def both(*parts: Apply) -> Apply:
    """Several changes at once, first to last."""

    @contextmanager
    def apply(oracle: Oracle) -> Iterator[None]:
        with ExitStack() as stack:
            for part in parts:
                stack.enter_context(part(oracle))
            yield

    return apply


def modules(oracle: Oracle, kinds: Any) -> list[Any]:
    """All modules of these classes, in the order of the layers."""
    return [module for module in oracle.model.modules() if isinstance(module, kinds)]


def attribute(kinds: Any, name: str, change: Callable[[Any], Any]) -> Apply:
    """change(value) in place of attribute ``name`` of every module of these classes."""
    return each(lambda oracle: modules(oracle, kinds), name, change)


def each(choose: Callable[[Oracle], Iterable[Any]], name: str, change: Callable[[Any], Any]) -> Apply:
    """change(value) in place of attribute ``name`` of the chosen objects."""

    @contextmanager
    def apply(oracle: Oracle) -> Iterator[None]:
        with ExitStack() as stack:
            chosen = list(choose(oracle))
            if not chosen:
                raise ValueError(f"nothing here has a {name} to change")
            for each_ in chosen:
                stack.enter_context(patch.object(each_, name, change(getattr(each_, name))))
            yield

    return apply


def identity(choose: Callable[[Oracle], Iterable[Any]]) -> Apply:
    """The chosen modules return what they are given."""
    return each(choose, "forward", lambda _forward: lambda x: x)


def output(choose: Callable[[Oracle], Iterable[Any]], change: Alter) -> Apply:
    """What the chosen modules return goes through ``change``."""
    return each(choose, "forward", lambda plain: lambda *args, **more: change(plain(*args, **more)))


def layers(part: str) -> Callable[[Oracle], list[Any]]:
    """The module at ``part`` ("self_attn.kv_norm") of every layer that has one."""

    def choose(oracle: Oracle) -> list[Any]:
        found = []
        for layer in oracle.model.model.layers:
            here: Any = layer
            for name in part.split("."):
                here = getattr(here, name, None)
            if here is not None:
                found.append(here)
        return found

    return choose


def weights(choose: Callable[[Oracle], Iterable[torch.Tensor]], change: Alter) -> Apply:
    """change(tensor) in place of the chosen tensors' contents, same shape."""

    @contextmanager
    def apply(oracle: Oracle) -> Iterator[None]:
        kept = [(tensor, tensor.detach().clone()) for tensor in choose(oracle)]
        if not kept:
            raise ValueError("nothing here has such a tensor")
        try:
            with torch.no_grad():
                for tensor, old in kept:
                    tensor.copy_(change(old))
            yield
        finally:
            with torch.no_grad():
                for tensor, old in kept:
                    tensor.copy_(old)

    return apply


def configured(**changes: Any) -> Apply:
    """Fields of the model's config that ``forward`` reads; a callable gets the right value."""

    @contextmanager
    def apply(oracle: Oracle) -> Iterator[None]:
        with ExitStack() as stack:
            for name, new in changes.items():
                value = new(getattr(oracle.config, name)) if callable(new) else new
                stack.enter_context(patch.object(oracle.config, name, value))
            yield

    return apply


def rotated(change: Callable[[dict[str, Any]], None]) -> Apply:
    """Every rope table built from ``rope_parameters`` as ``change`` leaves them (it edits a copy in place)."""

    @contextmanager
    def apply(oracle: Oracle) -> Iterator[None]:
        config = copy.deepcopy(oracle.config)
        change(cast(dict[str, Any], config.rope_parameters))
        built = ROPE(config)
        tables = modules(oracle, ROPE)
        names = [f"{kind}_{what}" for kind in built.layer_types for what in ("inv_freq", "attention_scaling")]
        kept = [(table, name, getattr(table, name)) for table in tables for name in names]
        try:
            for table, name, _ in kept:
                setattr(table, name, getattr(built, name))
            yield
        finally:
            for table, name, old in kept:
                setattr(table, name, old)

    return apply


def masked(change: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]) -> Apply:
    """The raw rows' mask (1, 1, T, T) through change(mask, query positions (T, 1), key positions (T,))."""

    def wrong(plain: Any) -> Any:
        def attend(*args: Any, attention_mask: torch.Tensor, **more: Any) -> Any:
            at = torch.arange(attention_mask.shape[-1])
            return plain(*args, attention_mask=change(attention_mask, at[:, None], at), **more)

        return attend

    return each(layers("self_attn"), "forward", wrong)


HIDDEN = torch.finfo(torch.float32).min
"""What the mask adds to a key that is not to be seen."""
