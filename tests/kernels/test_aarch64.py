"""Features of AArch64 processors, asked of systems that are not here."""

import pytest

from ds4ref.kernels.cpu import aarch64, numba_internals

PRESENT, OLD = dict.fromkeys(aarch64.FEATURES, True), dict.fromkeys(aarch64.FEATURES, False)


def test_each_system_tells_in_its_own_way():
    other_bits = 0x119FFF & ~(1 << 20) & ~(1 << 10)  # a Cortex-A72 with every other bit of a Neoverse N1
    for words, expected in (
        ({16: other_bits}, OLD),
        ({16: 1 << 20 | 1 << 10}, PRESENT),
        ({26: 1 << 20 | 1 << 10}, OLD),
    ):
        assert aarch64.of_linux(lambda key, words=words: words.get(key, 0)) == expected
    known = {"hw.optional.arm.FEAT_DotProd": 1}
    assert aarch64.of_macos(known.get) == {"dotprod": True, "fullfp16": False}
    for name, expected in (("apple-m1", PRESENT), ("neoverse-v2", PRESENT), ("cortex-a72", OLD), ("new", OLD)):
        assert aarch64.of_processor(name) == expected
    assert aarch64.flags({"dotprod": True, "fullfp16": False}) == "+dotprod,-fullfp16"


@pytest.mark.parametrize("system, asked", [("linux", "_getauxval"), ("darwin", "sysctl_number")])
def test_where_the_system_cannot_be_asked_the_name_decides(monkeypatch, system, asked):
    def missing(key):
        raise AttributeError(key)

    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.setattr(aarch64.sys, "platform", system)
    monkeypatch.setattr(aarch64, asked, lambda key: 0xFFFFFFFF)
    assert aarch64.of_this_machine("cortex-a72") == PRESENT
    monkeypatch.setattr(aarch64, asked, missing)
    assert aarch64.of_this_machine("apple-m1") == PRESENT
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert aarch64.of_this_machine("apple-m1") == {}


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
