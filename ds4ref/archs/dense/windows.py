"""Sliding windows in config.json: one reader a way of spelling them, as Hugging Face's configs of each family do.

Each returns the window in tokens, 0 for none, and whether each layer has it, empty if all have. A config that names
windows where Hugging Face's model has none, or other layers than it has them in, is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...weights.accounting import inert
from ...weights.cursor import quote

if TYPE_CHECKING:
    from ...weights.config import Config

Window = tuple[int, tuple[bool, ...]]
FULL, SLIDING = "full_attention", "sliding_attention"
INERT = inert("the layers with a window are known without it", "sliding_window max_window_layers")
"""Keys that count only with ``use_sliding_window``, the second one only without ``layer_types``."""
PUBLISHED = 4096
"""Window of Mistral 7B, which its config leaves out."""


def no_window(config: Config, layers: int) -> Window:
    """Read a family that has none (Llama)."""
    if config.flag("use_sliding_window", False):
        raise config.fail("use_sliding_window", "is true, which is not supported here")
    _agree(config, layers, False)
    return 0, ()


def everywhere(absent: int, config: Config, layers: int) -> Window:
    """Read ``sliding_window`` of all layers: null is none; ``absent``: the window of a config without the key."""
    window = _size(config, absent)
    _agree(config, layers, bool(window))
    return window, ()


def switched(config: Config, layers: int) -> Window:
    """Read ``sliding_window`` of all layers if ``use_sliding_window`` (Qwen3 with experts)."""
    if config.flag("use_sliding_window", False):
        return everywhere(PUBLISHED, config, layers)
    _agree(config, layers, False)
    return 0, ()


def layered(config: Config, layers: int) -> Window:
    """Read ``sliding_window`` if ``use_sliding_window``, of the layers from ``max_window_layers`` on, or of those that
    ``layer_types`` names (Qwen2, Qwen3)."""
    if not config.flag("use_sliding_window", False):
        return switched(config, layers)
    named = _named(config, layers)
    windowed = named or tuple(layer >= config.integer("max_window_layers", 28) for layer in range(layers))
    window = _size(config, PUBLISHED)
    return (window, () if all(windowed) else windowed) if window and any(windowed) else (0, ())


def fixed(config: Config, windowed: tuple[bool, ...]) -> int:
    """Read ``sliding_window`` of a family whose layers have it in a fixed order, ``windowed``; ``layer_types`` may say
    the same (Gemma 3)."""
    named = _named(config, len(windowed))
    if named and named != windowed:
        raise config.fail("layer_types", "is not the order of this family's layers, the only one supported here")
    return _size(config, PUBLISHED)


def _size(config: Config, absent: int) -> int:
    if "sliding_window" not in config.values:
        return absent
    return config.integer("sliding_window", low=1, high=1 << 30) if config.has("sliding_window") else 0


def _named(config: Config, layers: int) -> tuple[bool, ...]:
    """Return whether ``layer_types`` gives each layer a window; empty without that key."""
    if not config.has("layer_types"):
        return ()
    kinds = config.texts("layer_types", most=1 << 16)
    foreign = set(kinds) - {FULL, SLIDING}
    if foreign:
        raise config.fail("layer_types", f"has {quote(min(foreign), 40)}, not one of {FULL}, {SLIDING}")
    if len(kinds) != layers:
        raise config.fail("layer_types", f"has {len(kinds)} values for {layers} layers")
    return tuple(kind == SLIDING for kind in kinds)


def _agree(config: Config, layers: int, windowed: bool) -> None:
    """Refuse ``layer_types`` by which other layers have a window than all or, unless ``windowed``, none."""
    named = _named(config, layers)
    if any(named) and not (windowed and all(named)):
        raise config.fail("layer_types", f"has {SLIDING!r} where this model has none of it")
    if named and windowed and not any(named):
        raise config.fail("layer_types", f"has no {SLIDING!r} where this model has all of it")
