"""Features of AArch64 processors, asked of systems that are not here."""

import pytest

from ds4ref.kernels.cpu import aarch64

M1, M4, OLD = "dotprod fullfp16".split(), "dotprod i8mm fullfp16".split(), []


def present(features):
    assert set(features) == set(aarch64.FEATURES)
    return sorted(name for name, there in features.items() if there)


@pytest.mark.parametrize(
    "words, expected",
    [
        ({16: 0x119FFF & ~(1 << 20) & ~(1 << 10), 26: 0}, OLD),  # Cortex-A72 with every other bit of a Neoverse N1
        ({16: 1 << 20 | 1 << 10}, M1),
        ({16: 1 << 20 | 1 << 10, 26: 1 << 13}, M4),
        ({16: 1 << 13, 26: 1 << 20 | 1 << 10}, OLD),  # bits of the other word
    ],
)
def test_linux_tells_by_the_auxiliary_vector(words, expected):
    assert present(aarch64.of_linux(lambda key: words.get(key, 0))) == sorted(expected)


@pytest.mark.parametrize(
    "names, expected",
    [
        (["FEAT_DotProd", "FEAT_FP16"], M1),
        (["FEAT_DotProd", "FEAT_FP16", "FEAT_I8MM"], M4),
        ([], OLD),
    ],
)
def test_macos_tells_by_sysctl(names, expected):
    known = {f"hw.optional.arm.{name}": 1 for name in names}
    assert present(aarch64.of_macos(lambda name: known.get(name))) == sorted(expected)


@pytest.mark.parametrize(
    "name, expected",
    [("apple-m1", M1), ("apple-m4", M4), ("neoverse-n1", M1), ("neoverse-v2", M4), ("cortex-a72", OLD), ("new", OLD)],
)
def test_a_foreign_processor_is_known_by_name(name, expected):
    assert present(aarch64.of_processor(name)) == sorted(expected)


def test_other_machines_are_not_asked(monkeypatch):
    monkeypatch.setattr(aarch64, "_getauxval", None)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert aarch64.of_this_machine("apple-m1") == {}


@pytest.mark.parametrize("system, asked", [("linux", "_getauxval"), ("darwin", "sysctl_number")])
def test_where_the_system_cannot_be_asked_the_name_decides(monkeypatch, system, asked):
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.setattr(aarch64.sys, "platform", system)
    monkeypatch.setattr(aarch64, asked, lambda key: 0xFFFFFFFF)
    assert present(aarch64.of_this_machine("cortex-a72")) == sorted(M4)

    def missing(key):
        raise AttributeError(key)

    monkeypatch.setattr(aarch64, asked, missing)
    assert present(aarch64.of_this_machine("apple-m1")) == sorted(M1)


def test_flags_are_those_of_llvm():
    assert aarch64.flags({"dotprod": True, "i8mm": False}) == "+dotprod,-i8mm"
    assert aarch64.flags({}) == ""


@pytest.mark.parametrize(
    "target, reason",
    [
        ("x86_64-unknown-linux-gnu:znver4", "only AArch64 is known by its processor's name"),
        ("arm64-apple-macosx:appel-m1", "unknown processor; known: apple-a13, "),
        ("apple-m1", "expected TRIPLE:CPU"),
    ],
)
def test_a_foreign_processor_that_is_not_known_is_refused(monkeypatch, target, reason):
    from ds4ref.kernels.cpu import numba_internals

    monkeypatch.setenv("DS4_CROSS_TARGET", target)
    with pytest.raises(ValueError, match=reason):
        numba_internals.target_features()
