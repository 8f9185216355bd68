"""Compute the answers of the maths questions, each from the text of its question.

Small cases are enumerated; where a theorem makes it short, the docstring says which. Fractions that are asked for are
told from numbers within 1e-9.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from fractions import Fraction
from itertools import combinations, permutations, product
from math import factorial, sqrt
from typing import TypeVar

import numpy as np
from scipy.spatial import Voronoi, cKDTree

S = TypeVar("S", bound=Hashable)


def _hitting_time(start: S, moves: Callable[[S], list[S]], done: Callable[[S], bool]) -> int:
    """Return m + n for the expected steps m/n of a chain, all listed moves equally likely, from start until done."""
    states = [start]
    for state in states:  # the list grows while it is walked: breadth-first search
        states += [target for target in moves(state) if not done(target) and target not in states]
    matrix = np.eye(len(states))
    for i, state in enumerate(states):
        for target in moves(state):
            if not done(target):
                matrix[i, states.index(target)] -= 1 / len(moves(state))
    return _parts(np.linalg.solve(matrix, np.ones(len(states)))[0])


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
    halves = Counter(tuple(np.add(first, second)) for first, second in product(rows, repeat=2))
    return sum(ways * halves[tuple(np.negative(sums))] for sums, ways in halves.items()) % 1000


def paths_two_meetings() -> int:
    """Count ordered pairs of right/up paths from (0,0) to (5,3) that share exactly two points besides the ends."""
    paths = []
    for rights in combinations(range(8), 5):
        steps = [sum(r < n for r in rights) for n in range(9)]
        paths.append({(x, n - x) for n, x in enumerate(steps)})
    return sum(len(p & q) == 4 for p in paths for q in paths)


def lockers_two_colours() -> int:
    """Count circular colourings of 15 lockers in three colours, any three in a row showing exactly two, modulo 1000."""
    pairs = list(product(range(3), repeat=2))
    follows = [[a[1] == b[0] and len({*a, *b}) == 2 for b in pairs] for a in pairs]
    return int(np.trace(np.linalg.matrix_power(np.array(follows, dtype=int), 15))) % 1000


def disjoint_pairs_walk() -> int:
    """Count twelve-step closed walks on the 2-subsets of {1..5}, by steps to disjoint subsets, never straight back."""
    steps = [(a, b) for a, b in product(map(frozenset, combinations(range(5), 2)), repeat=2) if not a & b]
    follows = np.array([[a[1] == b[0] and a[0] != b[1] for b in steps] for a in steps], dtype=int)
    walks = np.linalg.matrix_power(follows, 11)  # from a first step to a twelfth one
    start = steps[0][0]
    return sum(walks[i, k] for i, a in enumerate(steps) for k, b in enumerate(steps) if a[0] == b[1] == start)


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
    matrix = 2 * np.eye(len(orbit)) + np.roll(np.eye(len(orbit)), 1, axis=1)
    return _parts(np.linalg.solve(matrix, [2 / float(x) for x in orbit])[0])


def arbelos_chain_triangle() -> int:
    """Return m + n for the area m/n of the triangle of the 2nd, 4th and 6th centres of the chain in the arbelos.

    An inversion about A carries the n-th circle to one of radius 1/120 and centre (1/24, n/60), and back.
    """
    back = [1 / (1 / 24**2 + (n / 60) ** 2 - 1 / 120**2) for n in (2, 4, 6)]
    corners = [[scale / 24, scale * n / 60, 1] for scale, n in zip(back, (2, 4, 6), strict=True)]
    return _parts(abs(np.linalg.det(corners)) / 2)


def circle_round_incircle() -> int:
    """Return m + n for the radius m/n of the circle through B and C that touches the incircle from outside.

    With B = (0, 0) and C = (25, 0) the incircle has centre (18, 6). For the centre (12.5, k) of the other circle,
    R^2 = k^2 + 12.5^2 and (R - 6)^2 = (k - 6)^2 + 5.5^2, so R - k is known.
    """
    ahead = Fraction(25**2 - 11**2, 4 * 12)
    radius = (ahead + Fraction(25**2, 4) / ahead) / 2
    return radius.numerator + radius.denominator


def four_balls() -> int:
    """Return m + n for the squared radius m/n of the sphere through the six contact points of four touching balls.

    The centres' vectors from the sphere's centre have products R^2 - r r' (R^2 + r^2 with themselves); in space four
    vectors are dependent, so the determinant, which is linear in R^2, is 0.
    """
    radii = np.array([3.0, 4.0, 6.0, 12.0])
    at_zero, at_one = (np.linalg.det(s - np.outer(radii, radii) + 2 * np.diag(radii**2)) for s in (0.0, 1.0))
    return _parts(at_zero / (at_zero - at_one))


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

    return _hitting_time(("", False, False), moves, lambda s: s[1] and s[2])


def octahedron_tour() -> int:
    """Return m + n for the expected moves m/n until a random walk on an octahedron's edges has visited all vertices."""

    def moves(state: tuple[int, frozenset[int]]) -> list[tuple[int, frozenset[int]]]:
        here, seen = state
        # Vertices 0/1, 2/3, 4/5 are opposite; every other pair is joined by an edge.
        return [(v, seen | {v}) for v in range(6) if v // 2 != here // 2]

    return _hitting_time((0, frozenset({0})), moves, lambda s: len(s[1]) == 6)


def bracelet_every_pair_twice() -> int:
    """Count circular words in which each ordered colour pair occurs twice, up to rotation and reflection, modulo 1000.

    By Burnside over the 36 symmetries. Readings are the Eulerian circuits of a graph with two arcs for each pair: by
    the BEST theorem 3 * 2^2 trees times 5!^3, each read from 18 places, 2^9 arcs being alike. A half turn keeps words
    of two equal halves, which have each pair once. A reflection through two beads keeps walks twice along each side of
    the triangle with three loops put in at 3 * 2 * 2 places; one through two gaps those with two loops at 2 * 2.
    """
    words = 3 * 2**2 * factorial(5) ** 3 * 18 // 2**9
    halves = 3 * factorial(2) ** 3 * 9
    sides = sorted([*combinations(range(3), 2)] * 2)
    rounds = product(range(3), repeat=6)
    walks = sum(sorted(tuple(sorted(side)) for side in zip(w, (*w[1:], w[0]), strict=True)) == sides for w in rounds)
    return (words + halves + 9 * walks * 3 * 2 * 2 + 9 * walks * 2 * 2) // 36 % 1000


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

    With y a root of y^2 + a y + 1296: y is whole, or a square (norm 36 or -36, trace t), or -4 y is a fourth power
    (norm 12 or -12, trace 2 s); nothing else makes x^4 - y reducible.
    """
    wholes = {sign * (d + 1296 // d) for d in range(1, 37) if 1296 % d == 0 for sign in (1, -1)}
    squares = {sign * 72 - t**2 for t in range(50) for sign in (1, -1)}
    fourths = {4 * s**4 + sign * 48 * s**2 + 72 for s in range(10) for sign in (1, -1)}
    return sum(abs(a) <= 2000 for a in wholes | squares | fourths)


def ant_on_tetrahedron() -> int:
    """Unroll the tetrahedron over the plane and find the point that is farthest from all images of P.

    All faces are congruent, so half turns about the images of the corners carry P = (7, 4) to its images. The farthest
    point is a corner of the images' Voronoi cells.
    """
    turns = product((1, -1), range(-5, 6), range(-5, 6))
    images = [(sign * 7 + 28 * i + 10 * j, sign * 4 + 24 * j) for sign, i, j in turns]
    corners = Voronoi(images).vertices
    inner = corners[np.abs(corners).max(axis=1) < 40]
    return _parts(float(cKDTree(images).query(inner)[0].max()) ** 2)
