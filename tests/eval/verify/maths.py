"""Verifiers for the maths questions: each function recomputes one answer from the text of its question.

No function uses the closed form that the explanation derives. Small cases are enumerated; larger ones go through
exact arithmetic (integers or fractions). The geometry functions build the figure numerically and then check that the
value found is an integer or a small fraction within 1e-9.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from itertools import combinations, pairwise, permutations, product
from math import hypot, sqrt
from typing import TypeVar

import numpy as np
from scipy.optimize import brentq, minimize

S = TypeVar("S", bound=Hashable)


def _solve(matrix: list[list[Fraction]], right: list[Fraction]) -> list[Fraction]:
    """Solve a square linear system exactly by Gauss-Jordan elimination."""
    size = len(matrix)
    rows = np.array([[*row, value] for row, value in zip(matrix, right, strict=True)], dtype=object)
    for col in range(size):
        pivot = next(r for r in range(col, size) if rows[r, col] != 0)
        rows[[col, pivot]] = rows[[pivot, col]]
        rows[col] = rows[col] / rows[col, col]
        for r in range(size):
            if r != col:
                rows[r] = rows[r] - rows[r, col] * rows[col]
    return list(rows[:, -1])


def _hitting_time(start: S, moves: Callable[[S], list[S]], done: Callable[[S], bool]) -> Fraction:
    """Expected steps of a chain (all listed moves equally likely) from start until done holds, exactly."""
    index: dict[S, int] = {start: 0}
    queue = [start]
    for state in queue:  # the list grows while it is walked: breadth-first search
        for target in moves(state):
            if not done(target) and target not in index:
                index[target] = len(index)
                queue.append(target)
    matrix = [[Fraction(int(i == j)) for j in range(len(queue))] for i in range(len(queue))]
    for i, state in enumerate(queue):
        targets = moves(state)
        for target in targets:
            if not done(target):
                matrix[i][index[target]] -= Fraction(1, len(targets))
    return _solve(matrix, [Fraction(1)] * len(queue))[0]


def _parts(value: float, limit: int = 2000, within: float = 1e-9) -> int:
    """Return m + n for the fraction m/n with a small denominator that a numeric value stands for."""
    found = Fraction(value).limit_denominator(limit)
    assert abs(float(found) - value) <= within, value
    return found.numerator + found.denominator


def grid_local_extremes() -> int:
    """Count fillings of a 3 x 3 board by 1..9 in which every cell beats all its neighbours or loses to all of them."""
    near = [[j for j in range(9) if abs(i // 3 - j // 3) + abs(i % 3 - j % 3) == 1] for i in range(9)]
    boards = (p for p in permutations(range(1, 10)) if (p[0] > p[1]) == (p[0] > p[3]))  # a cheap test first
    return sum(all(len({p[i] > p[j] for j in near[i]}) == 1 for i in range(9)) for p in boards) % 1000


def pairs_without_neighbours() -> int:
    """Count ways to split the ten cells of a 2 x 5 board into five pairs, none of them two cells with a common side."""

    def count(cells: tuple[tuple[int, int], ...]) -> int:
        if not cells:
            return 1
        (r, c), rest = cells[0], cells[1:]
        apart = [k for k, (s, d) in enumerate(rest) if abs(r - s) + abs(c - d) != 1]
        return sum(count(rest[:k] + rest[k + 1 :]) for k in apart)

    return count(tuple(product(range(2), range(5))))


def balanced_lamps() -> int:
    """Count 4 x 4 arrays of red (1), blue (-1), off (0), each row and column with as much red as blue, modulo 1000."""
    rows = [row for row in product((-1, 0, 1), repeat=4) if sum(row) == 0]
    sums: Counter[tuple[int, ...]] = Counter({(0, 0, 0, 0): 1})
    for _ in range(4):  # add one row at a time, keeping only the vector of column sums
        grown: Counter[tuple[int, ...]] = Counter()
        for column_sums, row in product(sums, rows):
            grown[tuple(a + b for a, b in zip(column_sums, row, strict=True))] += sums[column_sums]
        sums = grown
    return sums[(0, 0, 0, 0)] % 1000


def paths_two_meetings() -> int:
    """Count ordered pairs of right/up paths from (0,0) to (5,3) that share exactly two points besides the ends."""
    paths = []
    for rights in combinations(range(8), 5):
        steps = [sum(r < n for r in rights) for n in range(9)]
        paths.append({(x, n - x) for n, x in enumerate(steps)})
    return sum(len(p & q) == 4 for p in paths for q in paths)


def lockers_two_colours() -> int:
    """Count circular colourings of 15 lockers in three colours, any three in a row showing exactly two, modulo 1000."""

    def count(colours: tuple[int, ...]) -> int:
        if len(colours) > 2 and len(set(colours[-3:])) != 2:
            return 0
        if len(colours) == 17:
            return colours[-2:] == colours[:2]
        return sum(count((*colours, colour)) for colour in range(3))

    return count(()) % 1000


def disjoint_pairs_walk() -> int:
    """Count twelve-step closed walks on the 2-subsets of {1..5}, by steps to disjoint subsets, never straight back."""
    cards = [frozenset(c) for c in combinations(range(1, 6), 2)]
    start = frozenset({1, 2})
    # State: (subset now, subset one step before).
    state: Counter[tuple[frozenset[int], frozenset[int] | None]] = Counter({(start, None): 1})
    for _ in range(12):
        grown: Counter[tuple[frozenset[int], frozenset[int] | None]] = Counter()
        for (now, before), card in product(state, cards):
            if not card & now and card != before:
                grown[(card, now)] += state[now, before]
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
    return sum((x * x + x * y + y * y) % 441 == 0 for x, y in product(range(1, 442), repeat=2)) % 1000


def base24_zeros() -> int:
    """Count the zeros at the end of the base-24 form of the product of 11^k - 5^k for k = 1..600."""
    powers = {2: 0, 3: 0}
    for k, prime in product(range(1, 601), powers):
        value = 11**k - 5**k
        while value % prime == 0:
            value //= prime
            powers[prime] += 1
    return min(powers[2] // 3, powers[3])  # 24 = 2^3 * 3


def vieta_eight() -> int:
    """Return the sum of all a <= 500 for which some b makes ab divide a^2 + b^2 + 8."""
    total = 0
    for a in range(1, 501):
        # ab | a^2 + b^2 + 8 forces b | a^2 + 8, so b is at most a^2 + 8: the search over divisors is complete.
        top = a * a + 8
        small = [d for d in range(1, int(sqrt(top)) + 1) if top % d == 0]
        total += a * any((top + b * b) % (a * b) == 0 for b in (*small, *(top // d for d in small)))
    return total


def mirror_divisors() -> int:
    """Count the divisors d of (2*3*5*7)^8 with as many divisors as (2*3*5*7)^8 / d."""
    return sum(np.prod(np.add(e, 1)) == np.prod(np.subtract(9, e)) for e in product(range(9), repeat=4))


def root_pair_products() -> int:
    """Return the product of 3 - r s over the six pairs of roots r, s of x^4 + 2x^3 - 5x^2 + x + 3."""
    roots = np.roots([1, 2, -5, 1, 3])
    value = complex(np.prod([3 - r * s for r, s in combinations(roots, 2)]))  # symmetric, hence an integer
    assert abs(value - round(value.real)) < 1e-6
    return round(value.real)


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
                grown[h, total + h] = max(grown.get((h, total + h), -1), squares + h * h)
        best = grown
    value = max(Fraction(q) - Fraction(s * s, size) for (h, s), q in best.items() if h == 0)
    assert value.denominator == 1
    return int(value)


def mobius_equation() -> int:
    """Return m + n for f(4) = m/n, where 2 f(x) + f(3/(3 - x)) = 2/x."""
    orbit = [Fraction(4)]
    while (image := 3 / (3 - orbit[-1])) != orbit[0]:
        orbit.append(image)
    size = len(orbit)
    matrix = [[Fraction(2 * (i == j) + ((i + 1) % size == j)) for j in range(size)] for i in range(size)]
    value = _solve(matrix, [2 / x for x in orbit])[0]
    return value.numerator + value.denominator


def arbelos_chain_triangle() -> int:
    """Return m + n for the area m/n of the triangle of the 2nd, 4th and 6th centres of the chain in the arbelos."""
    # A = (0, 0), C = (20, 0), B = (30, 0). Tangency to the big arc (centre 15, radius 15) and to the arc on AC
    # (centre 10, radius 10) leaves one unknown, the radius r: the difference of the two distance equations,
    # (x - 15)^2 + y^2 = (15 - r)^2 and (x - 10)^2 + y^2 = (10 + r)^2, gives x = 5 r.

    def centre(r: float) -> tuple[float, float]:
        return 5 * r, sqrt(max((10 + r) ** 2 - (5 * r - 10) ** 2, 0.0))

    def gap(r: float, x: float, y: float, radius: float) -> float:
        return hypot(centre(r)[0] - x, centre(r)[1] - y) - r - radius

    chain = [(25.0, 0.0, 5.0)]  # the arc on CB is what the first circle touches
    for _ in range(6):
        r = brentq(gap, 1e-9, chain[-1][2], chain[-1], xtol=1e-15, rtol=1e-14)
        chain.append((*centre(r), r))
    (x1, y1, _), (x2, y2, _), (x3, y3, _) = chain[2::2]
    return _parts(abs((x2 - x1) * (y3 - y1) - (x3 - x1) * (y2 - y1)) / 2)


def circle_round_incircle() -> int:
    """Return m + n for the radius m/n of the circle through B and C that touches the incircle from outside."""
    a, b, c = 25.0, 17.0, 28.0
    x = (a * a + c * c - b * b) / (2 * a)  # A's foot on BC, with B = (0, 0) and C = (25, 0)
    # The incentre is the mean of the corners with the opposite sides as weights.
    incentre = (a * np.array([x, sqrt(c * c - x * x)]) + c * np.array([a, 0.0])) / (a + b + c)

    def gap(k: float) -> float:
        return hypot(a / 2 - incentre[0], k - incentre[1]) - hypot(a / 2, k) + incentre[1]

    # Centres run up and down the perpendicular bisector of BC; a scan shows that the gap changes sign once.
    ((low, high),) = [
        ends for ends in pairwise(np.linspace(-200, 200, 4001)) if (gap(ends[0]) > 0) != (gap(ends[1]) > 0)
    ]
    return _parts(hypot(a / 2, brentq(gap, low, high, xtol=1e-15, rtol=1e-14)))


def four_balls() -> int:
    """Return m + n for the squared radius m/n of the sphere through the six contact points of four touching balls."""
    radii = np.array([3.0, 4.0, 6.0, 12.0])
    apart = np.add.outer(radii, radii) - np.diag(2 * radii)
    # Gram matrix of the centres seen from the first one, then a triangular square root for coordinates.
    gram = (np.add.outer(apart[0, 1:] ** 2, apart[0, 1:] ** 2) - apart[1:, 1:] ** 2) / 2
    centres = np.vstack([np.zeros(3), np.linalg.cholesky(gram)])
    # On the segment between two centres the contact point divides the distance in the ratio of the radii.
    contacts = np.array(
        [centres[i] + (centres[j] - centres[i]) * radii[i] / apart[i, j] for i, j in combinations(range(4), 2)]
    )
    # |p|^2 = 2 p.q + t, linear in the sphere's centre q and in t = R^2 - |q|^2.
    system = np.hstack([2 * contacts, np.ones((6, 1))])
    solution = np.linalg.lstsq(system, (contacts**2).sum(axis=1), rcond=None)[0]
    squares = ((contacts - solution[:3]) ** 2).sum(axis=1)
    assert np.ptp(squares) < 1e-9, "the six contact points do not lie on one sphere"
    return _parts(float(squares.mean()))


def right_isosceles_lattice() -> int:
    """Count isosceles right triangles with corners in a 4 x 10 array of points."""
    total = 0
    for three in combinations(product(range(4), range(10)), 3):
        p, q, r = sorted((a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 for a, b in combinations(three, 2))
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
    assert (used == 2).all()  # 18 steps with at most 2 of each of the 9 pairs: every pair occurs exactly twice
    top = 3 ** (length - 1)
    digits, weights = words[:, :length].astype(np.int64), 3 ** np.arange(length - 1, -1, -1, dtype=np.int64)
    least = np.full(len(words), 3**length, dtype=np.int64)
    for code in (digits @ weights, digits[:, ::-1] @ weights):
        for _ in range(length):
            code = code % top * 3 + code // top  # turn by one bead
            least = np.minimum(least, code)
    return len(np.unique(least)) % 1000


def cube_roots_of_identity() -> int:
    """Count 3 x 3 matrices modulo 9 whose cube is 1, modulo 1000.

    All matrices modulo 3 are enumerated; (A + 3B)^3 is A^3 + 3(AAB + ABA + BAA) modulo 9, so each of them is tried with
    all lifts B modulo 3, or with none.
    """
    one = np.eye(3, dtype=np.int64)
    every = np.array(list(product(range(3), repeat=9)), dtype=np.int64).reshape(-1, 3, 3)
    total = 0
    for a in every[((every @ every @ every - one) % 3 == 0).all(axis=(1, 2))]:
        square = a @ a
        lifts = square @ every + a @ every @ a + every @ square
        total += int((lifts % 3 == (one - square @ a) // 3 % 3).all(axis=(1, 2)).sum())
    return total % 1000


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
    for size in range(1, 5):
        for chosen in combinations(range(8), size):
            poly = np.ones((len(values), 1), dtype=complex)
            for k in chosen:
                poly = np.pad(poly, ((0, 0), (0, 1))) - roots[:, [k]] * np.pad(poly, ((0, 0), (1, 0)))
            for i in np.nonzero((np.abs(poly - np.round(poly.real)) < 1e-6).all(axis=1))[0]:
                whole = [1.0, 0, 0, 0, values[i], 0, 0, 0, 1296]
                _, rest = np.polydiv(whole, np.round(poly[i].real))  # exact: whole numbers far below 2**53
                if not any(rest):
                    found.add(int(values[i]))
    return len(found)


def ant_on_tetrahedron() -> int:
    """Unroll the tetrahedron over the plane, collect the images of P, and search for the farthest point Q.

    Each unrolled face is stored by its three corners and their names. Since all faces are congruent the unrolled faces
    fit together without overlap (checked), every straight segment in the plane folds up to a path on the surface, and
    the distance to the nearest image is the distance on the surface.
    """
    pairs = ("BC", "AB", "AC", "AD", "CD", "BD")
    side = {frozenset(pair): length for pair, length in zip(pairs, (14.0, 13.0, 15.0) * 2, strict=True)}

    def third(p: complex, q: complex, to_p: float, to_q: float, away: complex) -> complex:
        """Corner at the given distances from p and q, on the other side of pq than the point away."""
        base = abs(q - p)
        along = (to_p**2 - to_q**2 + base**2) / (2 * base)
        corners = [p + (q - p) / base * complex(along, sign * (to_p**2 - along**2) ** 0.5) for sign in (1, -1)]
        return max(corners, key=lambda corner: abs(corner - away))

    first = {"B": 0j, "C": 14 + 0j}
    first["A"] = third(first["B"], first["C"], 13.0, 15.0, -100j)
    spot = 7 + 4j  # BP = CP = sqrt(65), on the same side of BC as A
    # Weights of P in the face ABC, to find it again in every image of that face.
    corners = np.array([first[k] for k in "ABC"])
    weights = np.linalg.solve(np.array([corners.real, corners.imag, np.ones(3)]), np.array([spot.real, spot.imag, 1.0]))
    assert weights.min() > 0, "P is not inside the face"

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
                assert names.setdefault(key(z), missing) == missing, "the unrolled faces do not fit together"
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
    for a, b, c in (face.values() for face in shown):
        marks = [(i / 16, j / 16) for i in range(17) for j in range(17 - i)]
        points = sorted((a + s * (b - a) + t * (c - a) for s, t in marks), key=lambda z: short([z.real, z.imag]))
        for z in points[:4]:
            options = {"xatol": 1e-10, "fatol": 1e-12, "maxiter": 2000}
            best = max(best, -float(minimize(short, [z.real, z.imag], method="Nelder-Mead", options=options).fun))
    return _parts(best**2, 200, 1e-5)
