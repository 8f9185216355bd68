"""Reads the sliding window from config.json: one function for each way in which families state it.

Each returns the window in tokens (0: none), and for each layer whether it has the window (empty: all have it). A config
that names windows in other layers than those where Hugging Face's model has them is refused.
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
"""Keys that have an effect only with ``use_sliding_window``, and the second one only without ``layer_types``."""
PUBLISHED = 4096
"""Default window in tokens, for configs that do not state it, such as Mistral 7B's."""


def no_window(config: Config, layers: int) -> Window:
    """Return no window, for a family that has none (Llama); raise ModelFileError if the config asks for one."""
    if config.flag("use_sliding_window", False):
        raise config.fail("use_sliding_window", "is true, which is not supported here")
    _agree(config, layers, False)
    return 0, ()


def everywhere(absent: int, config: Config, layers: int) -> Window:
    """Read ``sliding_window``, which holds for all layers; null means none; ``absent``: default without the key."""
    window = _size(config, absent)
    _agree(config, layers, bool(window))
    return window, ()


def switched(config: Config, layers: int) -> Window:
    """Read ``sliding_window``, which holds for all layers if ``use_sliding_window`` is true (Qwen3 with experts)."""
    if config.flag("use_sliding_window", False):
        return everywhere(PUBLISHED, config, layers)
    _agree(config, layers, False)
    return 0, ()


def layered(config: Config, layers: int) -> Window:
    """Read ``sliding_window``, which, if ``use_sliding_window`` is true, holds for the layers from
    ``max_window_layers`` on, or for those that ``layer_types`` names (Qwen2, Qwen3)."""
    if not config.flag("use_sliding_window", False):
        return switched(config, layers)
    named = _named(config, layers)
    windowed = named or tuple(layer >= config.integer("max_window_layers", 28) for layer in range(layers))
    window = _size(config, PUBLISHED)
    return (window, () if all(windowed) else windowed) if window and any(windowed) else (0, ())


def fixed(config: Config, windowed: tuple[bool, ...]) -> int:
    """Read ``sliding_window`` of a family in which the layers that have it are fixed (Gemma 3).

    windowed: for each layer, whether it has the window; ``layer_types``, if the config has it, must agree.
    """
    named = _named(config, len(windowed))
    if named and named != windowed:
        raise config.fail("layer_types", "is not the order of this family's layers, the only one supported here")
    return _size(config, PUBLISHED)


def _size(config: Config, absent: int) -> int:
    if "sliding_window" not in config.values:
        return absent
    return config.integer("sliding_window", low=1, high=1 << 30) if config.has("sliding_window") else 0


def _named(config: Config, layers: int) -> tuple[bool, ...]:
    """Return, for each layer, whether ``layer_types`` gives it a window; () without that key."""
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
    """Raise ModelFileError unless ``layer_types``, if there, gives a window to all layers if ``windowed``, else to
    none."""
    named = _named(config, layers)
    if any(named) and not (windowed and all(named)):
        raise config.fail("layer_types", f"has {SLIDING!r} where this model has none of it")
    if named and windowed and not any(named):
        raise config.fail("layer_types", f"has no {SLIDING!r} where this model has all of it")
