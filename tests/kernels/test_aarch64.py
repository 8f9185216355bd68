"""Dot products of AArch64 processors, asked of systems that are not here."""

import pytest

from ds4ref.kernels.cpu import aarch64, numba_internals


@pytest.mark.parametrize(
    ("system", "asked", "answer", "present"),
    [
        ("linux", "_getauxval", {16: 1 << 20}, True),
        ("linux", "_getauxval", {16: 0xFFFFFFFF & ~(1 << 20), 26: 1 << 20}, False),
        ("darwin", "sysctl_number", {"hw.optional.arm.FEAT_DotProd": 1}, True),
        ("darwin", "sysctl_number", {}, False),
        ("linux", "_getauxval", None, True),  # a system that cannot be asked: the name decides
        ("darwin", "sysctl_number", None, True),
    ],
)
def test_each_system_tells_in_its_own_way(monkeypatch, system, asked, answer, present):
    def ask(key):
        if answer is None:
            raise AttributeError(key)
        return answer.get(key, 0)

    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.setattr(aarch64.sys, "platform", system)
    monkeypatch.setattr(aarch64, asked, ask)
    assert aarch64.of_this_machine("apple-m1") == {"dotprod": present}
    assert aarch64.of_this_machine("cortex-a72") == {"dotprod": present and answer is not None}
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert aarch64.of_this_machine("apple-m1") == {}


def test_features_are_written_as_llvm_reads_them():
    assert aarch64.flags(aarch64.of_processor("apple-m1")) == "+dotprod"
    assert aarch64.flags(aarch64.of_processor("cortex-a72")) == "-dotprod"


@pytest.mark.parametrize(
    "target, reason",
    [
        ("x86_64-unknown-linux-gnu:znver4", "only AArch64 is known by its processor's name"),
        ("arm64-apple-macosx:appel-m1", "unknown processor; known: apple-a13, "),
        ("apple-m1", "expected TRIPLE:CPU"),
    ],
)
def test_a_foreign_processor_that_is_not_known_is_refused(monkeypatch, target, reason):
    monkeypatch.setenv("DS4_CROSS_TARGET", target)
    with pytest.raises(ValueError, match=reason):
        numba_internals.target_features()
