"""Verifiers for the maths questions: each function recomputes one answer from the text of its question.

No function uses the closed form that the explanation derives. Small cases are enumerated; larger ones go through
exact arithmetic (integers or fractions). The geometry functions build the figure numerically and then check that the
value found is an integer or a small fraction within 1e-9.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from itertools import combinations, permutations, product
from math import hypot, sqrt
from typing import TypeVar

import numpy as np
from scipy.optimize import brentq, minimize

S = TypeVar("S", bound=Hashable)


def _solve(matrix: list[list[Fraction]], right: list[Fraction]) -> list[Fraction]:
    """Solve a square linear system exactly by Gauss-Jordan elimination."""
    size = len(matrix)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for col in range(size):
        pivot = next(r for r in range(col, size) if rows[r][col] != 0)
        rows[col], rows[pivot] = rows[pivot], rows[col]
        head = rows[col][col]
        rows[col] = [x / head for x in rows[col]]
        for r in range(size):
            factor = rows[r][col]
            if r != col and factor != 0:
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[col], strict=True)]
    return [row[-1] for row in rows]


def _determinant(matrix: list[list[Fraction]]) -> Fraction:
    """Exact determinant by elimination."""
    rows = [row[:] for row in matrix]
    size, value = len(rows), Fraction(1)
    for col in range(size):
        pivot = next((r for r in range(col, size) if rows[r][col] != 0), None)
        if pivot is None:
            return Fraction(0)
        if pivot != col:
            rows[col], rows[pivot] = rows[pivot], rows[col]
            value = -value
        value *= rows[col][col]
        for r in range(col + 1, size):
            factor = rows[r][col] / rows[col][col]
            rows[r] = [x - factor * y for x, y in zip(rows[r], rows[col], strict=True)]
    return value


def _hitting_time(start: S, moves: Callable[[S], list[S]], done: Callable[[S], bool]) -> Fraction:
    """Expected steps of a chain (all listed moves equally likely) from start until done holds, exactly."""
    index: dict[S, int] = {start: 0}
    queue = [start]
    for state in queue:  # the list grows while it is walked: breadth-first search
        for target in moves(state):
            if not done(target) and target not in index:
                index[target] = len(index)
                queue.append(target)
    matrix = [[Fraction(0)] * len(queue) for _ in queue]
    for i, state in enumerate(queue):
        matrix[i][i] += 1
        targets = moves(state)
        for target in targets:
            if not done(target):
                matrix[i][index[target]] -= Fraction(1, len(targets))
    return _solve(matrix, [Fraction(1)] * len(queue))[0]


def _fraction(value: float, limit: int = 2000) -> Fraction:
    """The fraction with a small denominator that a numeric value stands for; fails if none is within 1e-9."""
    found = Fraction(value).limit_denominator(limit)
    if abs(float(found) - value) > 1e-9:
        raise ValueError(f"{value!r} is not close to a fraction with denominator up to {limit}")
    return found


def grid_local_extremes() -> int:
    """Count fillings of a 3 x 3 board by 1..9 in which every cell beats all its neighbours or loses to all of them."""
    near = [[j for j in range(9) if abs(i // 3 - j // 3) + abs(i % 3 - j % 3) == 1] for i in range(9)]
    total = 0
    for p in permutations(range(1, 10)):
        # A cheap test of the first corner throws out a third of the orders before the full test.
        if (p[0] > p[1]) != (p[0] > p[3]):
            continue
        total += all(len({p[i] > p[j] for j in near[i]}) == 1 for i in range(9))
    return total % 1000


def pairs_without_neighbours() -> int:
    """Count ways to split the ten cells of a 2 x 5 board into five pairs, none of them two cells with a common side."""

    def count(cells: tuple[tuple[int, int], ...]) -> int:
        if not cells:
            return 1
        (r, c), rest = cells[0], cells[1:]
        total = 0
        for k, (s, d) in enumerate(rest):
            if abs(r - s) + abs(c - d) != 1:
                total += count(rest[:k] + rest[k + 1 :])
        return total

    return count(tuple((r, c) for r in range(2) for c in range(5)))


def balanced_lamps() -> int:
    """Count 4 x 4 arrays of red (1), blue (-1), off (0), each row and column with as much red as blue, modulo 1000."""
    rows = [row for row in product((-1, 0, 1), repeat=4) if sum(row) == 0]
    sums: Counter[tuple[int, ...]] = Counter({(0, 0, 0, 0): 1})
    for _ in range(4):  # add one row at a time, keeping only the vector of column sums
        grown: Counter[tuple[int, ...]] = Counter()
        for column_sums, ways in sums.items():
            for row in rows:
                grown[tuple(a + b for a, b in zip(column_sums, row, strict=True))] += ways
        sums = grown
    return sums[(0, 0, 0, 0)] % 1000


def paths_two_meetings() -> int:
    """Count ordered pairs of right/up paths from (0,0) to (5,3) that share exactly two points besides the ends."""
    paths = []
    for rights in combinations(range(8), 5):
        x = y = 0
        points = {(0, 0)}
        for step in range(8):
            x, y = (x + 1, y) if step in rights else (x, y + 1)
            points.add((x, y))
        paths.append(points)
    return sum(len(p & q) == 4 for p in paths for q in paths)


def lockers_two_colours() -> int:
    """Count circular colourings of 15 lockers in three colours, any three in a row showing exactly two, modulo 1000."""
    size = 15
    total = 0

    def extend(colours: list[int]) -> None:
        nonlocal total
        if len(colours) == size:
            wrapped = (colours[-2], colours[-1], colours[0]), (colours[-1], colours[0], colours[1])
            total += all(len(set(three)) == 2 for three in wrapped)
            return
        for colour in range(3):
            if len({colours[-2], colours[-1], colour}) == 2:
                extend([*colours, colour])

    for first, second in product(range(3), repeat=2):
        extend([first, second])
    return total % 1000


def disjoint_pairs_walk() -> int:
    """Count twelve-step closed walks on the 2-subsets of {1..5}, by steps to disjoint subsets, never straight back."""
    cards = [frozenset(c) for c in combinations(range(1, 6), 2)]
    start = frozenset({1, 2})
    # State: (subset now, subset one step before).
    state: Counter[tuple[frozenset[int], frozenset[int] | None]] = Counter({(start, None): 1})
    for _ in range(12):
        grown: Counter[tuple[frozenset[int], frozenset[int] | None]] = Counter()
        for (now, before), ways in state.items():
            for card in cards:
                if not card & now and card != before:
                    grown[(card, now)] += ways
        state = grown
    return sum(ways for (now, _), ways in state.items() if now == start)


def self_power_thirteen() -> int:
    """Return the one n from 1 to 1000 for which n to the power n leaves 13 modulo 1000."""
    (found,) = [n for n in range(1, 1001) if pow(n, n, 1000) == 13]
    return found


def stamps_six_ways() -> int:
    """Count the amounts from 1 to 500 that can be paid in exactly six ways with stamps of 20, 28 and 35."""
    ways = [1] + [0] * 500
    for stamp in (20, 28, 35):
        for amount in range(stamp, 501):
            ways[amount] += ways[amount - stamp]
    return sum(w == 6 for w in ways[1:])


def quadratic_form_pairs() -> int:
    """Count pairs 1 <= x, y <= 441 with x^2 + xy + y^2 divisible by 441, modulo 1000."""
    m = 441
    return sum((x * x + x * y + y * y) % m == 0 for x in range(1, m + 1) for y in range(1, m + 1)) % 1000


def base24_zeros() -> int:
    """Count the zeros at the end of the base-24 form of the product of 11^k - 5^k for k = 1..600."""
    twos = threes = 0
    for k in range(1, 601):
        value = 11**k - 5**k
        low = (value & -value).bit_length() - 1
        twos += low
        while value % 3 == 0:
            value //= 3
            threes += 1
    return min(twos // 3, threes)  # 24 = 2^3 * 3


def vieta_eight() -> int:
    """Return the sum of all a <= 500 for which some b makes ab divide a^2 + b^2 + 8."""
    total = 0
    for a in range(1, 501):
        # ab | a^2 + b^2 + 8 forces b | a^2 + 8, so b is at most a^2 + 8: the search over divisors is complete.
        top = a * a + 8
        small = [d for d in range(1, int(sqrt(top)) + 1) if top % d == 0]
        divisors = {*small, *(top // d for d in small)}
        if any((top + b * b) % (a * b) == 0 for b in divisors):
            total += a
    return total


def mirror_divisors() -> int:
    """Count the divisors d of (2*3*5*7)^8 with as many divisors as (2*3*5*7)^8 / d."""
    total = 0
    for a, b, c, d in product(range(9), repeat=4):
        total += (a + 1) * (b + 1) * (c + 1) * (d + 1) == (9 - a) * (9 - b) * (9 - c) * (9 - d)
    return total


def root_pair_products() -> int:
    """Return the product of 3 - r s over the six pairs of roots r, s of x^4 + 2x^3 - 5x^2 + x + 3."""
    companion = [[0, 0, 0, -3], [1, 0, 0, -1], [0, 1, 0, 5], [0, 0, 1, -2]]
    pairs = list(combinations(range(4), 2))
    # The 2 x 2 minors of the companion matrix form a 6 x 6 matrix whose eigenvalues are the pair products.
    matrix = [[Fraction(0)] * 6 for _ in pairs]
    for i, (a, b) in enumerate(pairs):
        for j, (c, d) in enumerate(pairs):
            minor = companion[a][c] * companion[b][d] - companion[a][d] * companion[b][c]
            matrix[i][j] = Fraction((3 if i == j else 0) - minor)
    value = _determinant(matrix)
    roots = np.roots([1, 2, -5, 1, 3])
    numeric = np.prod([3 - roots[a] * roots[b] for a, b in pairs])
    if abs(numeric - float(value)) > 1e-6:
        raise ValueError("exact and numeric products differ")
    return int(value)


def circle_of_reals() -> int:
    """Return the largest sum of squares of 28 reals on a circle with sum 0 and neighbours at most 1 apart."""
    size = 28
    # For sum 0 the sum of squares is (sum x^2) - (sum x)^2 / 28 of any shifted copy, a convex function of the 28
    # differences, which lie in [-1, 1] and add up to 0. A corner of that polytope has at most one difference other
    # than 1 or -1, and since 27 odd numbers have an odd sum, that one is odd too: all are 1 or -1.
    best = {(0, 0): 0}  # (height, sum of heights) -> largest sum of squares
    for _ in range(size):
        grown: dict[tuple[int, int], int] = {}
        for (height, total), squares in best.items():
            for h in (height - 1, height + 1):
                key = (h, total + h)
                grown[key] = max(grown.get(key, -1), squares + h * h)
        best = grown
    value = max(Fraction(q) - Fraction(s * s, size) for (h, s), q in best.items() if h == 0)
    if value.denominator != 1:
        raise ValueError("the maximum is not an integer")
    return int(value)


def mobius_equation() -> int:
    """Return m + n for f(4) = m/n, where 2 f(x) + f(3/(3 - x)) = 2/x."""
    orbit = [Fraction(4)]
    while (image := 3 / (3 - orbit[-1])) != orbit[0]:
        orbit.append(image)
    size = len(orbit)
    matrix = [[Fraction(0)] * size for _ in orbit]
    for i in range(size):
        matrix[i][i] += 2
        matrix[i][(i + 1) % size] += 1
    value = _solve(matrix, [2 / x for x in orbit])[0]
    return value.numerator + value.denominator


def arbelos_chain_triangle() -> int:
    """Return m + n for the area m/n of the triangle of the 2nd, 4th and 6th centres of the chain in the arbelos."""
    # A = (0, 0), C = (20, 0), B = (30, 0). Tangency to the big arc (centre 15, radius 15) and to the arc on AC
    # (centre 10, radius 10) leaves one unknown, the radius r: the difference of the two distance equations,
    # (x - 15)^2 + y^2 = (15 - r)^2 and (x - 10)^2 + y^2 = (10 + r)^2, gives x = 5 r.

    def centre(r: float) -> tuple[float, float]:
        x = 5 * r
        return x, sqrt(max((10 + r) ** 2 - (x - 10) ** 2, 0.0))

    last = (25.0, 0.0, 5.0)  # the arc on CB is what the first circle touches
    chain = []
    for _ in range(6):

        def gap(r: float, last: tuple[float, float, float] = last) -> float:
            x, y = centre(r)
            return hypot(x - last[0], y - last[1]) - r - last[2]

        r = brentq(gap, 1e-9, last[2], xtol=1e-15, rtol=1e-14)
        last = (*centre(r), r)
        chain.append(last)
    (x1, y1, _), (x2, y2, _), (x3, y3, _) = chain[1], chain[3], chain[5]
    area = _fraction(abs((x2 - x1) * (y3 - y1) - (x3 - x1) * (y2 - y1)) / 2)
    return area.numerator + area.denominator


def circle_round_incircle() -> int:
    """Return m + n for the radius m/n of the circle through B and C that touches the incircle from outside."""
    a, b, c = 25.0, 17.0, 28.0
    x = (a * a + c * c - b * b) / (2 * a)  # A's foot on BC, with B = (0, 0) and C = (25, 0)
    height = sqrt(c * c - x * x)
    # The incentre is the mean of the corners with the opposite sides as weights.
    incentre = (a * np.array([x, height]) + c * np.array([a, 0.0])) / (a + b + c)
    inradius = float(incentre[1])

    def gap(k: float) -> float:
        radius = hypot(a / 2, k)
        return hypot(a / 2 - incentre[0], k - incentre[1]) - (radius - inradius)

    # Centres run up and down the perpendicular bisector of BC; a scan shows that the gap changes sign once.
    grid = np.linspace(-200, 200, 4001)
    signs = [gap(float(k)) > 0 for k in grid]
    (change,) = [i for i in range(4000) if signs[i] != signs[i + 1]]
    k = brentq(gap, float(grid[change]), float(grid[change + 1]), xtol=1e-15, rtol=1e-14)
    radius = _fraction(hypot(a / 2, k))
    return radius.numerator + radius.denominator


def four_balls() -> int:
    """Return m + n for the squared radius m/n of the sphere through the six contact points of four touching balls."""
    radii = (3.0, 4.0, 6.0, 12.0)

    def dist(i: int, j: int) -> float:
        return radii[i] + radii[j]

    # Gram matrix of the centres seen from the first one, then a triangular square root for coordinates.
    gram = np.zeros((3, 3))
    for i, j in product(range(3), repeat=2):
        apart = dist(i + 1, j + 1) if i != j else 0.0
        gram[i, j] = (dist(0, i + 1) ** 2 + dist(0, j + 1) ** 2 - apart**2) / 2
    centres = np.vstack([np.zeros(3), np.linalg.cholesky(gram)])
    # On the segment between two centres the contact point divides the distance in the ratio of the radii.
    contacts = np.array(
        [centres[i] + (centres[j] - centres[i]) * radii[i] / dist(i, j) for i, j in combinations(range(4), 2)]
    )
    # |p|^2 = 2 p.q + t, linear in the sphere's centre q and in t = R^2 - |q|^2.
    system = np.hstack([2 * contacts, np.ones((6, 1))])
    solution = np.linalg.lstsq(system, (contacts**2).sum(axis=1), rcond=None)[0]
    squares = ((contacts - solution[:3]) ** 2).sum(axis=1)
    if np.ptp(squares) > 1e-9:
        raise ValueError("the six contact points do not lie on one sphere")
    value = _fraction(float(squares.mean()))
    return value.numerator + value.denominator


def right_isosceles_lattice() -> int:
    """Count isosceles right triangles with corners in a 4 x 10 array of points."""
    points = list(product(range(4), range(10)))
    total = 0
    for three in combinations(points, 3):
        (ax, ay), (bx, by), (cx, cy) = three
        ab = (ax - bx) ** 2 + (ay - by) ** 2
        bc = (bx - cx) ** 2 + (by - cy) ** 2
        ca = (cx - ax) ** 2 + (cy - ay) ** 2
        p, q, r = sorted((ab, bc, ca))
        total += p == q and p + q == r
    return total


def both_patterns() -> int:
    """Return m + n for the expected number m/n of fair tosses until both HHH and HTH have appeared."""

    def moves(state: tuple[str, bool, bool]) -> list[tuple[str, bool, bool]]:
        tail, first, second = state
        return [((tail + s)[-2:], first or tail + s == "HHH", second or tail + s == "HTH") for s in "HT"]

    value = _hitting_time(("", False, False), moves, lambda s: s[1] and s[2])
    return value.numerator + value.denominator


def octahedron_tour() -> int:
    """Return m + n for the expected moves m/n until a random walk on an octahedron's edges has visited all vertices."""

    def moves(state: tuple[int, frozenset[int]]) -> list[tuple[int, frozenset[int]]]:
        here, seen = state
        # Vertices 0/1, 2/3, 4/5 are opposite; every other pair is joined by an edge.
        return [(v, seen | {v}) for v in range(6) if v // 2 != here // 2]

    value = _hitting_time((0, frozenset({0})), moves, lambda s: len(s[1]) == 6)
    return value.numerator + value.denominator


def bracelet_every_pair_twice() -> int:
    """Count circular words in which each ordered colour pair occurs twice, up to rotation and reflection, modulo
    1000."""
    length = 18
    # Colour 0 follows itself somewhere, so every bracelet has a reading that starts with 0, 0.
    words = np.zeros((1, 2), dtype=np.int8)
    used = np.array([[1] + [0] * 8], dtype=np.int8)
    for step in range(1, length):
        new_words, new_used = [], []
        for colour in range(3) if step < length - 1 else range(1):  # the last step returns to the first bead
            pair = 3 * words[:, -1].astype(np.int64) + colour
            keep = np.nonzero(used[np.arange(len(words)), pair] < 2)[0]
            after = used[keep].copy()
            after[np.arange(len(keep)), pair[keep]] += 1
            new_words.append(np.hstack([words[keep], np.full((len(keep), 1), colour, dtype=np.int8)]))
            new_used.append(after)
        words, used = np.concatenate(new_words), np.concatenate(new_used)
    # 18 steps with at most 2 of each of the 9 pairs: every pair occurs exactly twice.
    if not (used == 2).all():
        raise ValueError("a pair occurs too rarely")
    top = 3 ** (length - 1)
    digits = words[:, :length].astype(np.int64)
    weights = 3 ** np.arange(length - 1, -1, -1, dtype=np.int64)
    least = np.full(len(words), 3**length, dtype=np.int64)
    for code in (digits @ weights, digits[:, ::-1] @ weights):
        for _ in range(length):
            code = code % top * 3 + code // top  # turn by one bead
            least = np.minimum(least, code)
    return len(np.unique(least)) % 1000


def _solutions_mod_3(rows: list[list[int]], right: list[int]) -> int:
    """Number of solutions of a linear system over the field with three elements."""
    work = [[*(x % 3 for x in row), value % 3] for row, value in zip(rows, right, strict=True)]
    size, rank = len(rows[0]), 0
    for col in range(size):
        pivot = next((r for r in range(rank, len(work)) if work[r][col]), None)
        if pivot is None:
            continue
        work[rank], work[pivot] = work[pivot], work[rank]
        head = work[rank]
        for r in range(rank + 1, len(work)):
            if work[r][col]:
                factor = work[r][col] * head[col]  # 1 and 2 are their own inverses
                work[r] = [(x - factor * y) % 3 for x, y in zip(work[r], head, strict=True)]
        rank += 1
    return 0 if any(row[-1] for row in work[rank:]) else 3 ** (size - rank)


def cube_roots_of_identity() -> int:
    """Count 3 x 3 matrices modulo 9 whose cube is 1, modulo 1000.

    All matrices modulo 3 are enumerated; the lifts modulo 9 of each are counted by an exact linear system.
    """
    one = np.eye(3, dtype=np.int64)
    all_mod_3 = np.array(list(product(range(3), repeat=9)), dtype=np.int64).reshape(-1, 3, 3)
    cubes = all_mod_3 @ all_mod_3 @ all_mod_3
    total = 0
    for a in all_mod_3[((cubes - one) % 3 == 0).all(axis=(1, 2))]:
        # Modulo 9, (A + 3B)^3 is A^3 + 3(AAB + ABA + BAA); each B modulo 3 is one lift.
        square = a @ a
        system = np.kron(square, one) + np.kron(a, a.T) + np.kron(one, square.T)  # acts on B read row by row
        total += _solutions_mod_3(system.tolist(), ((one - square @ a) // 3).reshape(-1).tolist())
    return total % 1000


def _product(p: list[int], q: list[int]) -> list[int]:
    """Exact product of two polynomials given by their coefficients."""
    out = [0] * (len(p) + len(q) - 1)
    for i, x in enumerate(p):
        for j, y in enumerate(q):
            out[i + j] += x * y
    return out


def splitting_octic() -> int:
    """Count integers a from -2000 to 2000 for which x^8 + a x^4 + 1296 factors over the integers.

    For every a all sets of at most four of the eight roots are tried; exact multiplication confirms a factor.
    """
    values = np.arange(-2000, 2001)
    # y = x^4 solves y^2 + a y + 1296 = 0; take the larger root first, so that nothing cancels.
    root = np.sqrt(values.astype(complex) ** 2 - 4 * 1296)
    big = np.where(values >= 0, -(values + root) / 2, -(values - root) / 2)
    turns = np.array([1, 1j, -1, -1j])
    roots = np.concatenate([np.sqrt(np.sqrt(y))[:, None] * turns for y in (big, 1296 / big)], axis=1)
    found: set[int] = set()
    zero = np.zeros((len(values), 1))
    stack = [(0, np.ones((len(values), 1), dtype=complex))]  # next root that may be taken, product so far
    while stack:
        start, poly = stack.pop()
        size = poly.shape[1] - 1
        if size < 4:
            longer, shifted = np.hstack([poly, zero]), np.hstack([zero, poly])
            stack += [(k + 1, longer - roots[:, [k]] * shifted) for k in range(start, 8)]
        if size == 0:
            continue
        for i in np.nonzero((np.abs(poly - np.round(poly.real)) < 1e-6).all(axis=1))[0]:
            a = int(values[i])
            if a in found:
                continue
            # Exact division by a monic factor, checked by multiplying back.
            whole = [1, 0, 0, 0, a, 0, 0, 0, 1296]
            factor, rest, quotient = [round(c.real) for c in poly[i]], whole[:], []
            for j in range(9 - size):
                quotient.append(rest[j])
                for k, c in enumerate(factor):
                    rest[j + k] -= quotient[j] * c
            if _product(factor, quotient) == whole:
                found.add(a)
    return len(found)


def ant_on_tetrahedron() -> int:
    """Unroll the tetrahedron over the plane, collect the images of P, and search for the farthest point Q.

    Each unrolled face is stored by its three corners and their names. Since all faces are congruent the unrolled faces
    fit together without overlap (checked), every straight segment in the plane folds up to a path on the surface, and
    the distance to the nearest image is the distance on the surface.
    """
    side = {frozenset("BC"): 14.0, frozenset("AB"): 13.0, frozenset("AC"): 15.0}
    side |= {frozenset("AD"): 14.0, frozenset("CD"): 13.0, frozenset("BD"): 15.0}

    def third(p: complex, q: complex, to_p: float, to_q: float, away: complex) -> complex:
        """Corner at the given distances from p and q, on the other side of pq than the point away."""
        base = abs(q - p)
        along = (to_p**2 - to_q**2 + base**2) / (2 * base)
        high = (to_p**2 - along**2) ** 0.5
        unit = (q - p) / base
        one, two = p + unit * complex(along, high), p + unit * complex(along, -high)
        return one if abs(one - away) > abs(two - away) else two

    first = {"B": 0j, "C": 14 + 0j}
    first["A"] = third(first["B"], first["C"], 13.0, 15.0, -100j)
    spot = 7 + 4j  # BP = CP = sqrt(65), on the same side of BC as A
    # Weights of P in the face ABC, to find it again in every image of that face.
    weights = np.linalg.solve(
        np.array([[first[k].real for k in "ABC"], [first[k].imag for k in "ABC"], [1.0, 1.0, 1.0]]),
        np.array([spot.real, spot.imag, 1.0]),
    )
    if weights.min() <= 0:
        raise ValueError("P is not inside the face")

    def key(z: complex) -> tuple[int, int]:
        return round(z.real * 1000), round(z.imag * 1000)

    faces = {key(sum(first.values()) / 3): first}
    queue, names = [first], {key(z): k for k, z in first.items()}
    while queue:
        face = queue.pop()
        (missing,) = set("ABCD") - set(face)
        for p, q in combinations(face, 2):
            (left,) = set(face) - {p, q}
            z = third(face[p], face[q], side[frozenset((p, missing))], side[frozenset((q, missing))], face[left])
            after = {p: face[p], q: face[q], missing: z}
            middle = sum(after.values()) / 3
            if key(middle) not in faces and abs(middle) < 70:
                if names.setdefault(key(z), missing) != missing:
                    raise ValueError("the unrolled faces do not fit together")
                faces[key(middle)] = after
                queue.append(after)
    images = np.array(
        [sum(w * f[k] for w, k in zip(weights, "ABC", strict=True)) for f in faces.values() if "D" not in f]
    )

    def short(v: Sequence[float] | np.ndarray) -> float:
        return -float(np.abs(images - complex(v[0], v[1])).min())

    best = 0.0
    # The face ABC and its neighbour over BC, over CA and over AB show the whole surface once.
    shown = [f for f in faces.values() if len({key(z) for z in f.values()} & {key(z) for z in first.values()}) >= 2]
    for face in shown:
        a, b, c = face.values()
        marks = [(i / 16, j / 16) for i in range(17) for j in range(17 - i)]
        points = sorted((a + s * (b - a) + t * (c - a) for s, t in marks), key=lambda z: short([z.real, z.imag]))
        for z in points[:4]:
            options = {"xatol": 1e-10, "fatol": 1e-12, "maxiter": 2000}
            best = max(best, -float(minimize(short, [z.real, z.imag], method="Nelder-Mead", options=options).fun))
    square = Fraction(best**2).limit_denominator(200)
    if abs(float(square) - best**2) > 1e-5:
        raise ValueError("no small fraction found")
    return square.numerator + square.denominator
