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
    """Fillings of a 3 x 3 board by 1..9 in which every cell beats all its neighbours or loses to all of them."""
    near = [[j for j in range(9) if abs(i // 3 - j // 3) + abs(i % 3 - j % 3) == 1] for i in range(9)]
    total = 0
    for p in permutations(range(1, 10)):
        # A cheap test of the first corner throws out a third of the orders before the full test.
        if (p[0] > p[1]) != (p[0] > p[3]):
            continue
        total += all(len({p[i] > p[j] for j in near[i]}) == 1 for i in range(9))
    return total % 1000


def pairs_without_neighbours() -> int:
    """Ways to split the ten cells of a 2 x 5 board into five pairs, no pair being two cells with a common side."""

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


def portals_two_and_four() -> int:
    """Self-maps of a set of five in which the second and the fourth iterate agree, modulo 1000."""
    total = 0
    for f in product(range(5), repeat=5):
        total += all(f[f[f[f[x]]]] == f[f[x]] for x in range(5))
    return total % 1000


def balanced_lamps() -> int:
    """4 x 4 arrays of red (1), blue (-1), off (0), each row and column with as much red as blue, modulo 1000."""
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
    """Ordered pairs of right/up paths from (0,0) to (5,3) that share exactly two points besides the ends."""
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
    """Circular colourings of 15 lockers in three colours, any three in a row showing exactly two, modulo 1000."""
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
    """Twelve-step closed walks on the 2-subsets of {1..5} (steps to disjoint subsets) that never step straight back."""
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
    """The one n from 1 to 1000 for which n to the power n leaves 13 modulo 1000."""
    (found,) = [n for n in range(1, 1001) if pow(n, n, 1000) == 13]
    return found


def stamps_six_ways() -> int:
    """How many amounts from 1 to 500 can be paid in exactly six ways with stamps of 20, 28 and 35."""
    ways = [1] + [0] * 500
    for stamp in (20, 28, 35):
        for amount in range(stamp, 501):
            ways[amount] += ways[amount - stamp]
    return sum(w == 6 for w in ways[1:])


def quadratic_form_pairs() -> int:
    """Pairs 1 <= x, y <= 441 with x^2 + xy + y^2 divisible by 441, modulo 1000."""
    m = 441
    return sum((x * x + x * y + y * y) % m == 0 for x in range(1, m + 1) for y in range(1, m + 1)) % 1000


def base24_zeros() -> int:
    """Zeros at the end of the base-24 form of the product of 11^k - 5^k for k = 1..600."""
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
    """Sum of all a <= 500 for which some b makes ab divide a^2 + b^2 + 8."""
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
    """Divisors d of (2*3*5*7)^8 with as many divisors as their co-divisor."""
    total = 0
    for a, b, c, d in product(range(9), repeat=4):
        total += (a + 1) * (b + 1) * (c + 1) * (d + 1) == (9 - a) * (9 - b) * (9 - c) * (9 - d)
    return total


def bounded_quintic() -> int:
    """Largest P(7) for degree <= 5 and |P| <= 1 at -4, -2, -1, 1, 2, 4."""
    nodes = (-4, -2, -1, 1, 2, 4)
    best = Fraction(0)
    # P is fixed by its six values and P(7) is linear in them, so the maximum sits at a corner of the cube of values.
    for values in product((-1, 1), repeat=6):
        table = [Fraction(v) for v in values]
        for level in range(1, 6):  # Newton's divided differences, in place
            for i in range(5, level - 1, -1):
                table[i] = (table[i] - table[i - 1]) / (nodes[i] - nodes[i - level])
        value = Fraction(0)
        for node, coefficient in zip(reversed(nodes), reversed(table), strict=True):
            value = value * (7 - node) + coefficient
        best = max(best, value)
    if best.denominator != 1:
        raise ValueError("the maximum is not an integer")
    return int(best)


def root_pair_products() -> int:
    """Product of 3 - r s over the six pairs of roots of x^4 + 2x^3 - 5x^2 + x + 3."""
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


def octal_coefficients() -> int:
    """Polynomials with coefficients 0..7 and P(2) = 122."""
    target = 122
    ways = [1] + [0] * target
    power = 1
    while power <= target:
        ways = [sum(ways[t - c * power] for c in range(8) if t >= c * power) for t in range(target + 1)]
        power *= 2
    return ways[target]


def circle_of_reals() -> int:
    """Largest sum of squares of 28 reals on a circle with sum 0 and neighbours at most 1 apart."""
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
    """m + n for f(4) = m/n, where 2 f(x) + f(3/(3 - x)) = 2/x."""
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
    """m + n for the area of the triangle of the 2nd, 4th and 6th centres of the chain in the arbelos."""
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
    """m + n for the radius of the circle through B and C that touches the incircle from outside."""
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
    """m + n for the squared radius of the sphere through the six contact points of four touching balls."""
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


def ellipsoid_right_corner() -> int:
    """Least volume of OPQR with P, Q, R on the ellipsoid and OP, OQ, OR pairwise perpendicular."""
    weights = np.array([1 / 72, 1 / 216, 1 / 432])

    def volume(angles: Sequence[float]) -> float:
        (ca, cb, cc), (sa, sb, sc) = np.cos(angles), np.sin(angles)
        turn = (
            np.array([[ca, -sa, 0], [sa, ca, 0], [0, 0, 1]])
            @ np.array([[cb, 0, sb], [0, 1, 0], [-sb, 0, cb]])
            @ np.array([[1, 0, 0], [0, cc, -sc], [0, sc, cc]])
        )
        # Along a unit vector u the ellipsoid is met at distance (sum of weights * u^2) ** -0.5.
        lengths = ((turn**2) @ weights) ** -0.5
        return float(lengths.prod() / 6)

    rng = np.random.default_rng(1)
    best = min(minimize(volume, rng.uniform(0, 3, 3), method="BFGS", options={"gtol": 1e-10}).fun for _ in range(12))
    if abs(best - round(best)) > 1e-9 * best:
        raise ValueError(f"the minimum {best!r} is not an integer")
    return round(best)


def right_isosceles_lattice() -> int:
    """Isosceles right triangles with corners in a 4 x 10 array of points."""
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
    """m + n for the expected number of fair tosses until both HHH and HTH have appeared."""

    def moves(state: tuple[str, bool, bool]) -> list[tuple[str, bool, bool]]:
        tail, first, second = state
        return [((tail + s)[-2:], first or tail + s == "HHH", second or tail + s == "HTH") for s in "HT"]

    value = _hitting_time(("", False, False), moves, lambda s: s[1] and s[2])
    return value.numerator + value.denominator


def octahedron_tour() -> int:
    """m + n for the expected moves of a random walk on the octahedron's edges until all six vertices are visited."""

    def moves(state: tuple[int, frozenset[int]]) -> list[tuple[int, frozenset[int]]]:
        here, seen = state
        # Vertices 0/1, 2/3, 4/5 are opposite; every other pair is joined by an edge.
        return [(v, seen | {v}) for v in range(6) if v // 2 != here // 2]

    value = _hitting_time((0, frozenset({0})), moves, lambda s: len(s[1]) == 6)
    return value.numerator + value.denominator
