"""Verifiers for biology and earth science: each function returns the index of one question's right choice."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from scipy.integrate import quad, solve_ivp
from scipy.optimize import brentq

from .choices import nearest, with_words


def fly_repulsion_third_generation(choices: Sequence[str]) -> int:
    """Enumerate gametes and zygotes over two generations with recombination in females only."""
    r = Fraction(1, 5)
    Haplotype = tuple[int, int]  # 1 = dominant allele

    def gametes(pair: tuple[Haplotype, Haplotype], female: bool) -> dict[Haplotype, Fraction]:
        out: dict[Haplotype, Fraction] = {}
        rec = r if female else Fraction(0)
        for (one, two), share in (((0, 1), Fraction(1, 2)), ((1, 0), Fraction(1, 2))):
            for swap, chance in ((False, 1 - rec), (True, rec)):
                hap = (pair[one][0], pair[two if swap else one][1])
                out[hap] = out.get(hap, Fraction(0)) + share * chance
        return out

    def offspring(mothers: dict, fathers: dict) -> dict:
        out: dict = {}
        for mum, dad in itertools.product(mothers, fathers):
            for (g, x), (h, y) in itertools.product(gametes(mum, True).items(), gametes(dad, False).items()):
                out[(g, h)] = out.get((g, h), Fraction(0)) + mothers[mum] * fathers[dad] * x * y
        return out

    def wild(zygote: tuple[Haplotype, Haplotype]) -> bool:
        return all(zygote[0][i] or zygote[1][i] for i in (0, 1))

    f1 = {((1, 0), (0, 1)): Fraction(1)}
    f2 = {z: x for z, x in offspring(f1, f1).items() if wild(z)}
    total = sum(f2.values())
    f2 = {z: x / total for z, x in f2.items()}
    f3 = offspring(f2, f2)
    return nearest(choices, float(sum(x for z, x in f3.items() if wild(z))))


def introgression_d_statistic(choices: Sequence[str]) -> int:
    """Integrate expected internal branch lengths of the three gene trees over coalescence times."""

    def branch(first: float) -> tuple[float, float]:
        """Expected internal branch of the tree joining the pair that shares a population for a time first, and of
        each of the two other trees."""

        def remaining(t: float) -> float:
            # After an early meeting the pair waits for the population split and then for the last meeting.
            last = quad(lambda u: u * math.exp(-u), 0, 60)[0]
            return math.exp(-t) * (first - t + last)

        early = quad(remaining, 0, first)[0]
        # Three lineages enter the common ancestor: rate 3 to the first meeting, then rate 1 for the inner branch.
        late = math.exp(-first) * quad(lambda u: u * math.exp(-u), 0, 60)[0] / 3
        return early + late, late

    f = 0.10
    _, discordant = branch(1.5 - 0.5)
    joined, other = branch(1.5 - 0.2)
    abba = (1 - f) * discordant + f * joined
    baba = (1 - f) * discordant + f * other
    return nearest(choices, (abba - baba) / (abba + baba))


def tight_binder_with_rival(choices: Sequence[str]) -> int:
    """Find the inhibition constant from the half-rate point by solving the binding balance, then add the rival."""

    def rate(ki: float, inhibitor: float, rival: float) -> float:
        """Share of the enzyme that carries substrate; concentrations in nM, substrate at three Km."""
        enzyme = 80.0

        def excess(free: float) -> float:
            unbound = enzyme / (1 + 3 + rival + free / ki)
            return free + unbound * free / ki - inhibitor

        free = brentq(excess, 0, inhibitor)
        return 3 / (1 + 3 + rival + free / ki)

    ki = brentq(lambda k: rate(k, 50.0, 0.0) / 0.75 - 0.5, 0.01, 500)
    return nearest(choices, rate(ki, 50.0, 8.0) / 0.75)


def two_variants_library_size(choices: Sequence[str]) -> int:
    """Translate every codon of the library and solve for the number of colonies that shows both variants."""
    bases = "TCAG"
    amino = "FFLLSSSSYY**CC*WLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG"
    table = {"".join(c): a for c, a in zip(itertools.product(bases, repeat=3), amino, strict=True)}
    sets = {"N": "ACGT", "K": "GT", "D": "AGT", "V": "ACG", "H": "ACT", "T": "T", "G": "G"}

    def expand(code: str) -> list[str]:
        return [table["".join(c)] for c in itertools.product(*(sets[b] for b in code))]

    def share(pool: list[str], residue: str) -> Fraction:
        sense = [a for a in pool if a != "*"]  # colonies with a stop codon never appear
        return Fraction(sense.count(residue), len(sense))

    nnk, small = expand("NNK"), expand("NDT") + expand("VHG") + expand("TGG")
    keep = Fraction(3, 4)
    p = float(keep * share(nnk, "R") * share(nnk, "M") * share(small, "S"))
    q = float(keep * share(nnk, "L") * share(nnk, "W") * share(small, "T"))

    def both(n: float) -> float:
        return 1 - (1 - p) ** n - (1 - q) ** n + (1 - p - q) ** n

    return nearest(choices, brentq(lambda n: both(n) - 0.95, 1e3, 1e6))


def dendrite_tip_to_soma(choices: Sequence[str]) -> int:
    """Cut the tree into small compartments and solve the steady state for a current at one tip."""
    rm, ri, step = 20000.0, 150.0, 1e-4  # ohm cm^2, ohm cm, cm
    sections = [(4e-4, 600), (2e-4, 500), (2e-4, 500)]  # diameter in cm, number of compartments
    size = 1 + sum(n for _, n in sections)
    a = np.zeros((size, size))
    a[0, 0] = math.pi * (30e-4) ** 2 / rm

    def join(i: int, j: int, g: float) -> None:
        a[i, i] += g
        a[j, j] += g
        a[i, j] -= g
        a[j, i] -= g

    def half(d: float) -> float:
        return math.pi * d * d / 4 / (ri * step / 2)

    start = 1
    ends: list[int] = []
    for number, (d, n) in enumerate(sections):
        for i in range(start, start + n):
            a[i, i] += math.pi * d * step / rm
            if i > start:
                join(i, i - 1, half(d) / 2)
        if number == 0:
            join(0, start, half(d))
        else:
            trunk = half(sections[0][0])
            # The branch point lies half a compartment beyond the middle of the last trunk compartment.
            join(ends[0], start, 1 / (1 / trunk + 1 / half(d)))
        ends.append(start + n - 1)
        start += n
    current = np.zeros(size)
    current[ends[1]] = 1.0
    voltage = np.linalg.solve(a, current)
    return nearest(choices, voltage[0] / voltage[ends[1]])


def essential_resources_window(choices: Sequence[str]) -> int:
    """Simulate the chemostat from both starting orders over a range of phosphorus supplies."""
    d, nitrogen = 0.25, 12.0
    species: list[dict[str, Any]] = [
        {"mu": 1.0, "k": (3.0, 9.0), "quota": (2.0, 0.8)},
        {"mu": 0.75, "k": (4.0, 2.0), "quota": (0.5, 1.0)},
    ]

    def growth(s: dict, n: float, p: float) -> float:
        return s["mu"] * min(n / (s["k"][0] + n), p / (s["k"][1] + p))

    def run(supply: float, start: tuple[float, float]) -> str:
        def rates(_t: float, y: np.ndarray) -> list[float]:
            n, p, *x = np.maximum(y, 0.0)
            g = [growth(s, n, p) for s in species]
            eat = [sum(g[i] * species[i]["quota"][r] * x[i] for i in (0, 1)) for r in (0, 1)]
            return [d * (nitrogen - n) - eat[0], d * (supply - p) - eat[1], *((g[i] - d) * x[i] for i in (0, 1))]

        end = solve_ivp(rates, (0, 1500), [nitrogen, supply, *start], method="LSODA", rtol=1e-8, atol=1e-10).y[:, -1]
        return "".join(name for name, x in zip("12", end[2:], strict=True) if x > 1e-3)

    def outcome(supply: float) -> str:
        runs = {run(supply, (3.0, 0.01)), run(supply, (0.01, 3.0))}
        return "founder" if runs == {"1", "2"} else "/".join(sorted(runs))

    seen = {supply: outcome(supply) for supply in (6.0, 8.0, 15.0, 21.5, 24.5)}
    inside = {seen[8.0], seen[15.0], seen[21.5]}
    if inside == {"founder"} and "founder" not in (seen[6.0], seen[24.5]):
        return with_words(choices, "7 and 23", "excludes")
    raise ValueError(f"unexpected outcomes {seen}")


def zircon_two_losses_gap(choices: Sequence[str]) -> int:
    """Follow both lead isotopes through the two losses and solve for the two dates."""
    l238, l235 = 1.55125e-4, 9.8485e-4  # per million years

    def lead(rate: float) -> float:
        """Radiogenic lead per atom of its uranium parent left today."""
        stages = [(2700.0, 1100.0, 0.40), (1100.0, 0.0, 0.25)]
        held = 0.0
        for old, young, lost in stages:
            held += quad(lambda t: rate * math.exp(rate * t), young, old)[0]
            held *= 1 - lost
        return held

    six, seven = lead(l238), lead(l235)
    date_68 = math.log1p(six) / l238
    date_76 = brentq(lambda t: math.expm1(l235 * t) / math.expm1(l238 * t) - seven / six, 100, 4500)
    return nearest(choices, date_76 - date_68)
