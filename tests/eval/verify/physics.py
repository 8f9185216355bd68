"""Verifiers for physics: each function returns the index of one question's right choice, from first principles.

The numbers of the question are repeated here, and the method avoids the closed form of the explanation wherever
possible: levels are diagonalized, fields are integrated over angles, populations are enumerated, differential equations
are stepped.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.integrate import quad
from scipy.optimize import brentq

from .choices import nearest
from .ode import rk


def fermion_pair_ring_return(choices: Sequence[str]) -> int:
    """Diagonalize two fermions on six sites in the pair basis and average the return probability over all times."""
    sites = 6
    pairs = list(itertools.combinations(range(sites), 2))
    index = {pair: i for i, pair in enumerate(pairs)}
    energy = np.zeros((len(pairs), len(pairs)))
    for pair in pairs:
        for slot, step in itertools.product((0, 1), (1, -1)):
            moved = list(pair)
            moved[slot] = (moved[slot] + step) % sites
            if moved[0] == moved[1]:
                continue
            # Putting the two labels back in order costs a minus sign when they swap.
            sign = 1.0 if moved[0] < moved[1] else -1.0
            energy[index[min(moved), max(moved)], index[pair]] -= sign
    values, vectors = np.linalg.eigh(energy)
    weight = vectors[index[(0, 1)]] ** 2
    # Equal energies never dephase, so their weights add before they are squared.
    levels = np.round(values, 6)
    value = sum(weight[levels == level].sum() ** 2 for level in np.unique(levels))
    return nearest(choices, value)


def bose_trap_adiabatic_condensate(choices: Sequence[str]) -> int:
    """Integrate the Bose gas over phase space in both traps and match the entropy per atom."""

    def per_atom_entropy(volume_power: float) -> float:
        """Entropy per excited atom with the chemical potential at the bottom, states counted as E**volume_power."""

        # g(E) is the derivative of the phase-space volume below E.
        def states(e: float) -> float:
            return e ** (volume_power - 1)

        def entropy(e: float) -> float:
            n = 1.0 / math.expm1(e)
            return states(e) * ((1 + n) * math.log1p(n) - n * math.log(n))

        total = quad(entropy, 0, 200, limit=400)[0]
        number = quad(lambda e: states(e) / math.expm1(e), 0, 200, limit=400)[0]
        return total / number

    def volume_exponent(potential: Callable[[float], float], reach: Callable[[float], float]) -> float:
        """Exponent of the phase-space volume below E, measured numerically."""

        def volume(e: float) -> float:
            return quad(lambda r: r * r * max(e - potential(r), 0.0) ** 1.5, 0, reach(e))[0]

        return math.log(volume(2.0) / volume(1.0)) / math.log(2.0)

    harmonic = per_atom_entropy(volume_exponent(lambda r: r * r, math.sqrt))
    linear = per_atom_entropy(volume_exponent(lambda r: r, lambda e: e))
    return nearest(choices, 1 - 0.90 * harmonic / linear)


def counter_orbit_light_shift(choices: Sequence[str]) -> int:
    """Build the emitter's rest frame in the Schwarzschild metric and contract the photon with both four-velocities."""

    def metric(r: float) -> np.ndarray:
        f = 1 - 2 / r
        return np.diag([-f, 1 / f, r * r])

    def orbit(r: float, sense: int) -> np.ndarray:
        rate = sense * r**-1.5
        u = np.array([1.0, 0.0, rate])
        return u / math.sqrt(-(u @ metric(r) @ u))

    emitter, receiver = orbit(8.0, +1), orbit(18.0, -1)
    g_emit = metric(8.0)
    radial = np.array([0.0, 1 / math.sqrt(g_emit[1, 1]), 0.0])
    photon = emitter + radial  # unit frequency, leaves along the radial leg of the rest frame
    covector = g_emit @ photon
    energy, spin = -covector[0], covector[2]  # conserved on the way out
    f = 1 - 2 / 18.0
    arrive = np.array([energy / f, math.sqrt(energy**2 - f * (spin / 18.0) ** 2), spin / 18.0**2])
    return nearest(choices, -(arrive @ metric(18.0) @ receiver))


def rotating_dipole_over_mirror(choices: Sequence[str]) -> int:
    """Add the far fields of the dipole and its image and integrate the flux over the upper half space."""
    height = 2 * math.pi * 0.15
    theta, wt = np.polynomial.legendre.leggauss(80)
    cos = 0.5 * (theta + 1)  # nodes for cos(theta) in 0..1
    phi = np.arange(64) * 2 * math.pi / 64
    c, p = np.meshgrid(cos, phi, indexing="ij")
    s = np.sqrt(1 - c**2)
    direction = np.stack([s * np.cos(p), s * np.sin(p), c])
    dipole = np.array([1.0, 0.0, 1.0j])  # turns in the x-z plane, z is the normal
    image = dipole * np.array([-1.0, -1.0, 1.0])

    def flux(moment: np.ndarray) -> np.ndarray:
        along = np.einsum("i...,i...->...", direction, moment)
        field = moment - direction * along
        return (np.abs(field) ** 2).sum(axis=0)

    phase = np.exp(-1j * height * c)
    moment = dipole[:, None, None] * phase + image[:, None, None] * phase.conj()
    solid = (0.5 * wt)[:, None] * (2 * math.pi / 64)
    with_mirror = (flux(moment) * solid).sum()
    free = 2 * (flux(np.broadcast_to(dipole[:, None, None], moment.shape)) * solid).sum()
    return nearest(choices, with_mirror / free)


def three_slit_polarised_visibility(choices: Sequence[str]) -> int:
    """Add intensities over source points and two independent polarisations, then scan the screen."""
    tilt = math.radians(60)
    axes = np.array([[1, 0], [math.cos(tilt), math.sin(tilt)], [1, 0]])
    source = (np.arange(2000) + 0.5) / 2000 * 0.7 - 0.35  # angle in units of lambda/d
    delta = np.linspace(-math.pi, math.pi, 2001)
    total = np.zeros_like(delta)
    for polarisation in np.eye(2):
        passed = axes * (axes @ polarisation)[:, None]
        for left, right in itertools.product(range(3), repeat=2):
            coherence = np.exp(2j * math.pi * source * (left - right)).mean()
            total += (passed[left] @ passed[right]) * (coherence * np.exp(1j * delta * (left - right))).real
    return nearest(choices, (total.max() - total.min()) / (total.max() + total.min()))


def kane_landau_tilted_field(choices: Sequence[str]) -> int:
    """Diagonalize the squared kinetic momentum, fill the levels of the nonparabolic band and take the next step up."""
    e, h, me = 1.602176634e-19, 6.62607015e-34, 9.1093837e-31
    normal = 8.28 * math.cos(math.radians(60))
    hbar = h / (2 * math.pi)
    size = 40
    # pi = (X, Y) with [X, Y] ~ i e hbar B: X**2 + Y**2 in the oscillator basis.
    lower = np.diag(np.sqrt(np.arange(1, size)), 1)
    x, y = (lower + lower.T) / math.sqrt(2), (lower - lower.T) / (1j * math.sqrt(2))
    square = np.linalg.eigvalsh(x @ x + y @ y)[: size // 2].real * e * hbar * normal
    square = np.unique(np.round(square / (e * hbar * normal), 6)) * e * hbar * normal
    kinetic = square / (2 * 0.05 * me) / e
    levels = [brentq(lambda level, k=k: level * (1 + 5.0 * level) - k, 0, 5) for k in kinetic]
    filled = 1.45e16 / (4 * e * normal / h)  # spin times two valleys
    top = math.ceil(filled) - 1
    steps = [levels[top + 1] - levels[top]]  # out of the highest level that holds electrons
    if filled < math.ceil(filled):
        steps.append(levels[top] - levels[top - 1])  # into its empty places
    return nearest(choices, 1000 * min(steps))


def opening_angle_at_widest_heavy(choices: Sequence[str]) -> int:
    """Scan the decay angle in the parent's rest frame, find the widest heavy track, add the angle of its partner."""
    parent, heavy, light, momentum = 2.0, 1.2, 0.5, 3.0
    energy = math.hypot(parent, momentum)
    gamma, boost = energy / parent, momentum / parent
    p = brentq(lambda q: math.hypot(q, heavy) + math.hypot(q, light) - parent, 1e-6, 2.0)
    angle = np.linspace(0, math.pi, 400001)

    def lab(mass: float, sign: int) -> np.ndarray:
        along = gamma * sign * p * np.cos(angle) + boost * math.hypot(p, mass)
        return np.degrees(np.arctan2(p * np.sin(angle), along))

    first, second = lab(heavy, 1), lab(light, -1)
    best = int(first.argmax())
    return nearest(choices, first[best] + second[best])


def mass_transfer_period_ratio(choices: Sequence[str]) -> int:
    """Step the angular momentum of the binary while mass leaves with the accretor's own angular momentum."""

    def separation(j: float, donor: float, accretor: float) -> float:
        return j**2 * (donor + accretor) / (donor * accretor) ** 2

    def spin_loss(moved: float, state: np.ndarray) -> list[float]:
        donor, accretor = 1.2 - moved, 1.4 + 0.4 * moved
        a = separation(state[0], donor, accretor)
        rate = math.sqrt((donor + accretor) / a**3)
        arm = a * donor / (donor + accretor)  # distance of the accretor from the centre of mass
        return [-0.6 * rate * arm**2]

    def period(j: float, donor: float, accretor: float) -> float:
        return math.sqrt(separation(j, donor, accretor) ** 3 / (donor + accretor))

    end = rk(spin_loss, [1.0], 0.4)[0]
    return nearest(choices, period(end, 0.8, 1.56) / period(1.0, 1.2, 1.4))


def closed_tank_two_layers(choices: Sequence[str]) -> int:
    """Solve the two layers on a grid, each with its own pressure gradient so that it carries no net flow."""
    lower_h, upper_h, lower_mu, upper_mu, lid = 3.0, 2.0, 4.0, 6.0, 10.0
    n = 400  # cells in each layer
    dl, du = lower_h / n, upper_h / n
    unknowns = 2 * n + 1 + 2  # nodes from the floor to the lid, then two gradients
    a, b = np.zeros((unknowns, unknowns)), np.zeros(unknowns)
    for i in range(2 * n + 1):
        if i in (0, 2 * n):
            a[i, i], b[i] = 1.0, (lid if i else 0.0)
        elif i == n:
            # Balance of a thin slab around the interface: stresses differ only by the pressure force on the two halves.
            a[i, i - 1], a[i, i], a[i, i + 1] = lower_mu / dl, -lower_mu / dl - upper_mu / du, upper_mu / du
            a[i, -2], a[i, -1] = -dl / 2, -du / 2
        else:
            mu, d, column = (lower_mu, dl, -2) if i < n else (upper_mu, du, -1)
            a[i, i - 1 : i + 2] = np.array([1.0, -2.0, 1.0]) * mu / d**2
            a[i, column] = -1.0
    for row, start in ((-2, 0), (-1, n)):
        weights = np.ones(n + 1)
        weights[[0, -1]] = 0.5
        a[row, start : start + n + 1] = weights
    speed = np.linalg.solve(a, b)
    return nearest(choices, speed[n])
