"""Print tensors as llama.cpp's eval callback does."""

import itertools

import numpy as np

SHOWN = 3


def print_tensor(name: str, values: np.ndarray, op: str = "NONE") -> str:
    """Print the corners of ``values`` with four digits."""
    full = values.reshape((1,) * (4 - values.ndim) + values.shape)
    dims = ", ".join(str(n) for n in full.shape[::-1])
    lines = [f"common_debug_cb_eval: {name:>24} = (f32) {op:>10}({name}{{{dims}}}, }}) = {{{dims}}}"]
    for i3 in range(full.shape[0]):
        lines.append("    [")
        for i2, last2 in steps(full.shape[1]):
            lines += [" " * 8 + "..., "] * last2 + [" " * 8 + "["]
            for i1, last1 in steps(full.shape[2]):
                lines += [" " * 12 + "..., "] * last1
                cells = itertools.chain.from_iterable(
                    (["   ..."] if last0 else []) + [f"{full[i3, i2, i1, i0]:12.4f}"]
                    for i0, last0 in steps(full.shape[3])
                )
                lines.append(" " * 12 + "[" + ", ".join(cells) + "  ],")
            lines.append(" " * 8 + "],")
        lines += ["    ]", f"    sum = {np.float32(full.sum(dtype=np.float64)):f}"]
    return "\n".join(lines) + "\n"


def steps(n: int) -> list[tuple[int, bool]]:
    return [(i, n > 2 * SHOWN and i == n - SHOWN) for i in places(n)]


def places(n: int) -> list[int]:
    """Return the printed indices of a dimension."""
    return list(range(n)) if n <= 2 * SHOWN else [*range(SHOWN), *range(n - SHOWN, n)]
