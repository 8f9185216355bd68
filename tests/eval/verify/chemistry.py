"""Verifiers for chemistry: each function returns the index of one question's right choice."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import brentq, fsolve
from scipy.special import lpmv

from .choices import nearest, with_words
from .ode import rk


def methylenecyclopropene_anion(choices: Sequence[str]) -> int:
    """Diagonalize the Hueckel matrix, put five electrons in and read one bond order and one density."""
    bonds = [(0, 1), (1, 2), (0, 2), (0, 3)]  # 0 carries the exocyclic carbon 3
    matrix = np.zeros((4, 4))
    for i, j in bonds:
        matrix[i, j] = matrix[j, i] = 1.0  # energies in units of beta, so the largest lies lowest
    values, vectors = np.linalg.eigh(matrix)
    order = np.argsort(-values)
    occupation = np.array([2, 2, 1, 0])
    c = vectors[:, order]
    bond = float((occupation * c[1] * c[2]).sum())
    density = float((occupation * c[3] ** 2).sum())
    return with_words(choices, f"{bond:.3f}", f"{density:.3f}")


def tetraene_cascade_fractions(choices: Sequence[str]) -> int:
    """Enumerate both rotations of each ring closure and count products that are neither equal nor mirror images."""
    # A product is (group and face at C7, group and face at C8, face of the two bridgehead hydrogens). Turning the
    # molecule over swaps all faces and the order of the two carbons; a mirror in the mean plane swaps only the faces.
    Product = tuple[tuple[str, int], tuple[str, int], int]

    def turned(m: Product) -> Product:
        (g, x), (k, y), h = m
        return (k, -y), (g, -x), -h

    def mirrored(m: Product) -> Product:
        (g, x), (k, y), h = m
        return (g, -x), (k, -y), -h

    def fractions(groups: tuple[str, str], outward: tuple[bool, bool], light: bool) -> int:
        seen = set()
        for sense, bridge in itertools.product((1, -1), repeat=2):
            # Conrotation sends an outward group at one end up and at the other down; disrotation sends both alike.
            turns = (sense, sense if light else -sense)
            faces = tuple(t if out else -t for t, out in zip(turns, outward, strict=True))
            m: Product = ((groups[0], faces[0]), (groups[1], faces[1]), bridge)
            seen.add(frozenset({m, turned(m), mirrored(m), mirrored(turned(m))}))
        return len(seen)

    counts = (
        fractions(("Me", "Me"), (True, True), False),
        fractions(("Me", "Me"), (True, True), True),
        fractions(("Me", "Me"), (True, False), False),
        fractions(("Ph", "Me"), (True, True), False),
    )
    return with_words(choices, ", ".join(str(n) for n in counts))


def cyclononane_azido_alcohols(choices: Sequence[str]) -> int:
    """Enumerate three ring units with a direction and a face each and sort them into racemic and meso fractions."""
    Unit = tuple[int, int]  # direction of O -> N round the ring, face of O (N has the other face)

    def copies(m: tuple[Unit, ...]) -> set[tuple[Unit, ...]]:
        found = set()
        for shift in range(3):
            turn = m[shift:] + m[:shift]
            found.add(turn)
            found.add(tuple((-d, -f) for d, f in reversed(turn)))  # ring turned over
        return found

    units: list[Unit] = [(d, f) for d in (1, -1) for f in (1, -1)]
    products = {frozenset(copies(m)) for m in itertools.product(units, repeat=3)}
    racemic, meso = set(), 0
    for group in products:
        member = next(iter(group))
        mirror = frozenset(copies(tuple((d, -f) for d, f in member)))
        if mirror == group:
            meso += 1
        else:
            racemic.add(frozenset({group, mirror}))
    return with_words(choices, f"{len(racemic) + meso} fractions", f"{meso} of them" if meso else "none of them")


def _three_j_zero(a: int, b: int, c: int) -> float:
    """Square of the 3j symbol with all projections zero, from the integral over three Legendre polynomials."""
    x, w = np.polynomial.legendre.leggauss(40)
    product = np.ones_like(x)
    for degree in (a, b, c):
        product = product * np.polynomial.legendre.Legendre.basis(degree)(x)
    return 0.5 * float((w * product).sum())


def dideuteroacetylene_raman_pair(choices: Sequence[str]) -> int:
    """Count spin functions of each exchange sign by a trace and weigh them with populations and 3j symbols."""
    swap_sign = (+1) * (-1)  # two deuterons (bosons) and two carbon-13 nuclei (fermions) trade places together
    states = list(itertools.product(range(3), range(3), range(2), range(2)))
    fixed = sum(1 for d1, d2, c1, c2 in states if d1 == d2 and c1 == c2)
    symmetric, antisymmetric = (len(states) + fixed) // 2, (len(states) - fixed) // 2

    def weight(j: int) -> int:
        return symmetric if (-1) ** j == swap_sign else antisymmetric

    def intensity(j: int) -> float:
        boltzmann = math.exp(-1.4387769 * 0.80 * j * (j + 1) / 250.0)
        return weight(j) * boltzmann * (2 * j + 1) * (2 * j + 5) * _three_j_zero(j, 2, j + 2)

    return nearest(choices, intensity(7) / intensity(8))


def _gaunt(k: int, m1: int, m2: int) -> float:
    """Angular integral c^k(2 m1, 2 m2) from Legendre functions on a grid."""
    x, w = np.polynomial.legendre.leggauss(20)

    def theta(degree: int, m: int) -> np.ndarray:
        a = abs(m)
        if a > degree:
            return np.zeros_like(x)
        norm = math.sqrt((2 * degree + 1) / 2 * math.factorial(degree - a) / math.factorial(degree + a))
        # lpmv carries the Condon-Shortley sign for m >= 0; negative m gets (-1)**m on top.
        return norm * lpmv(a, degree, x) * ((-1) ** a if m < 0 else 1)

    return math.sqrt(2 / (2 * k + 1)) * float((w * theta(2, m1) * theta(k, m1 - m2) * theta(2, m2)).sum())


def octahedral_cobalt_ground_mixing(choices: Sequence[str]) -> int:
    """Fit both bands with the full repulsion of the two minority electrons, then project the ground level.

    The quartets of d7 with the highest spin projection are a filled majority shell and two minority electrons, so the
    ten antisymmetric pair functions of two equal spins hold everything that is needed.
    """
    ms = range(-2, 3)
    gaunt = {(k, a, b): _gaunt(k, a, b) for k in (2, 4) for a in ms for b in ms}

    def coulomb(k: int, a: int, b: int, c: int, d: int) -> float:
        return gaunt[k, a, c] * gaunt[k, d, b] if a + b == c + d else 0.0

    # B = F^2/49 - 5 F^4/441. Gaps between states of highest spin depend on B alone, so F^4/F^2 may be set freely.
    pairs = list(itertools.combinations(ms, 2))
    ratio = 0.65

    def repulsion(b: float) -> np.ndarray:
        f2 = b / (1 / 49 - 5 * ratio / 441)
        strength = {2: f2, 4: ratio * f2}
        out = np.zeros((10, 10))
        for i, (p, q) in enumerate(pairs):
            for j, (r, s) in enumerate(pairs):
                out[i, j] = sum(f * (coulomb(k, p, q, r, s) - coulomb(k, p, q, s, r)) for k, f in strength.items())
        return out

    # Cubic field for one particle in the m basis: e = z^2 and x^2-y^2, t2 = the rest.
    e_states = np.zeros((5, 2))
    e_states[2, 0] = 1.0
    e_states[0, 1] = e_states[4, 1] = math.sqrt(0.5)
    e_projector = e_states @ e_states.T

    def field(delta: float) -> np.ndarray:
        single = delta * (e_projector - 0.4 * np.eye(5))
        out = np.zeros((10, 10))
        for i, (p, q) in enumerate(pairs):
            for j, (r, s) in enumerate(pairs):
                h = [[single[a + 2, b + 2] for b in (r, s)] for a in (p, q)]
                out[i, j] = h[0][0] * (q == s) + h[1][1] * (p == r) - h[0][1] * (q == r) - h[1][0] * (p == s)
        return out

    unit_b, unit_delta = repulsion(1.0), field(1.0)

    def levels(delta: float, b: float) -> tuple[np.ndarray, np.ndarray]:
        return np.linalg.eigh(b * unit_b + delta * unit_delta)

    def bands(v: np.ndarray) -> np.ndarray:
        # Ground 4T1 (three states), then 4T2 (three); the top three of the ten are 4T1(P), above the single 4A2.
        values = levels(*v)[0]
        return np.array([values[3] - values[0], values[9] - values[0]])

    delta, b = fsolve(lambda v: bands(v) - np.array([8100.0, 19600.0]), [9000.0, 850.0])
    ground = levels(delta, b)[1][:, 0]
    # The field alone counts the e electrons: -0.8, +0.2 and +1.2 delta for none, one and two of them.
    split, shapes = np.linalg.eigh(unit_delta)
    one_e = shapes[:, np.abs(split - 0.2) < 1e-6]
    return nearest(choices, float(((one_e.T @ ground) ** 2).sum()))


def galvanic_couple_factor(choices: Sequence[str]) -> int:
    """Find the mixed potential of the bare metal and of the couple and compare the dissolution currents."""

    def anodic(e: float) -> float:
        return 2.0e-7 * 10 ** ((e + 0.60) / 0.060)

    def hydrogen(exchange: float, e: float) -> float:
        return exchange * 10 ** (-(e + 0.24) / 0.120)

    oxygen = 15e-6
    alone = brentq(lambda e: anodic(e) - hydrogen(1e-8, e) - oxygen, -0.6, -0.2)
    couple = brentq(lambda e: anodic(e) - hydrogen(1e-8, e) - 20 * hydrogen(1e-6, e) - 21 * oxygen, -0.6, -0.2)
    return nearest(choices, anodic(couple) / anodic(alone))


def competing_isotopologues_commitment(choices: Sequence[str]) -> int:
    """Step the full set of rate equations to a low conversion and read the deuterium left in the product."""
    k_off, k_h, k_d, k_on = 1.0, 3.0, 0.5, 0.05
    transfers = [2 * k_h, k_h + k_d, 2 * k_d]

    def rates(_t: float, y: np.ndarray) -> list[float]:
        free = 1e-3 - y[3:6].sum()
        bind = [k_on * free * y[i] for i in range(3)]
        substrates = [k_off * y[3 + i] - bind[i] for i in range(3)]
        complexes = [bind[i] - (k_off + transfers[i]) * y[3 + i] for i in range(3)]
        with_h = 2 * k_h * y[3] + k_d * y[4]  # the atom that stays behind is H
        with_d = k_h * y[4] + 2 * k_d * y[5]
        return [*substrates, *complexes, with_h, with_d]

    end = rk(rates, [1.0] * 3 + [0.0] * 5, 150.0)
    assert end[6] + end[7] <= 0.02, "the conversion is not low"
    return nearest(choices, end[7] / (end[6] + end[7]))


def two_salts_one_ligand(choices: Sequence[str]) -> int:
    """Solve all mass and charge-type balances of the two solids in the buffered ligand numerically."""
    k_x, k_y, beta, total = 2.0e-10, 1.0e-12, 1.7e7, 0.20
    proton = 10 ** (9.30 - 9.00)

    def balance(log: np.ndarray) -> list[float]:
        m, free = np.exp(log)
        complexed = beta * m * free**2
        return [
            math.log((m + complexed) / (k_x / m + k_y / m)),
            math.log((free * (1 + proton) + 2 * complexed) / total),
        ]

    m, _ = np.exp(fsolve(balance, np.log([1e-7, 0.05]), xtol=1e-13))
    return nearest(choices, k_y / m)


def gel_point_b_conversion(choices: Sequence[str]) -> int:
    """Find the conversion at which the branching matrix over bond directions reaches the eigenvalue one."""
    a_units, b_units = {3: 2.0, 2: 3.0}, {2: 6.0, 1: 2.0}  # functionality -> moles
    groups_a = sum(f * n for f, n in a_units.items())
    groups_b = sum(f * n for f, n in b_units.items())
    types = [("a", f) for f in a_units] + [("b", f) for f in b_units]

    def radius(p_b: float) -> float:
        p_a = p_b * groups_b / groups_a
        matrix = np.zeros((len(types), len(types)))
        for i, (side, f) in enumerate(types):
            reacted, pool, total = (p_a, b_units, groups_b) if side == "a" else (p_b, a_units, groups_a)
            for j, (other, g) in enumerate(types):
                if other != side:
                    matrix[i, j] = (f - 1) * reacted * g * pool[g] / total
        return max(abs(np.linalg.eigvals(matrix)))

    return nearest(choices, brentq(lambda p: radius(p) - 1, 0.3, 1.0))
