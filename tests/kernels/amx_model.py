"""Run the GEMM of tier X where there is no AMX, and compare it with tier A's, to the bit: ``python -m
tests.kernels.amx_model``, which prints the number of products compared.

The processor refuses each tile instruction, with SIGILL; a handler decodes it, does its work on NumPy arrays, as
Intel's manual defines it, and goes on after it. All other code is compiled for AVX2: the intrinsics of AVX-512 in the
decoders and in tier A's tiles are replaced by plain vector operations.
"""

import ctypes
import os
import signal
import sys
import threading

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

HAS_AMX = bool(llvm.get_host_cpu_features().get("amx-int8"))
# before the kernels are imported
AVX2 = "+sse4.2,+popcnt,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe,+amx-tile,+amx-int8"
os.environ |= {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": AVX2, "DS4_SIMD_TIER": "B"}

from ds4ref.kernels.cpu.simd import x86  # noqa: E402
from ds4ref.kernels.cpu.simd.vec import I8x64, I64x8, Vec  # noqa: E402

# -- tile instructions
SLOTS = {0: 13, 1: 14, 2: 12, 3: 11, 4: 15, 5: 10, 6: 9, 7: 8, **{i: i - 8 for i in range(8, 16)}}
"""Place in ``gregs`` of a Linux ucontext, by number of a general register: RAX is 13, RCX 14, R8 0."""
RIP, GREGS, CHUNK = 16, 40, 512


class Tiles(threading.local):
    """The tile registers of a thread: rows of bytes, by number."""

    def __init__(self):
        self.rows: dict[int, np.ndarray] = {}


TILES, RAN = Tiles(), dict.fromkeys(("ldtilecfg", "tilerelease", "tdp", "tilezero", "tileloadd", "tilestored"), 0)


def memory(address: int, size: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def load_shapes(address: int) -> None:
    table = memory(address, 64)
    assert table[0] == 1 and not table[1:16].any()
    widths, rows = table[16:48].view(np.uint16), table[48:64]
    assert widths.max() <= 64 and rows.max() <= 16 and not widths[8:].any() and not rows[8:].any()
    TILES.rows = {i: np.zeros((rows[i], widths[i]), np.uint8) for i in range(8) if rows[i]}


def dot(out: np.ndarray, a: np.ndarray, b: np.ndarray, signs: int) -> None:
    """out (M, 4 N bytes) += a (M, 4 K) times b (K, 4 N): dwords of four bytes each, sums modulo 2^32."""
    assert len(out) == len(a) and a.shape[1] == 4 * len(b) and b.shape[1] == out.shape[1]
    kinds = [np.int8 if signs & 2 else np.uint8, np.int8 if signs & 1 else np.uint8]
    left = a.view(kinds[0]).astype(np.int64)
    right = b.view(kinds[1]).reshape(len(b), -1, 4).transpose(0, 2, 1).reshape(4 * len(b), -1).astype(np.int64)
    out.view(np.uint32)[:] += (left @ right).astype(np.uint32)


def step(registers) -> int:
    """Do the instruction at RIP and return its length: VEX.128 of map 0F38, W0."""
    code = [int(byte) for byte in memory(registers[RIP], 16)]
    assert code[0] == 0xC4 and code[1] & 0x1F == 2 and code[2] & 0x84 == 0, f"no tile instruction: {bytes(code[:8])!r}"
    prefix, modrm = code[2] & 3, code[4]  # prefix 0 none, 1 66, 2 F3, 3 F2
    mode, register, place = modrm >> 6, modrm >> 3 & 7, modrm & 7
    rows = TILES.rows
    if mode == 3:
        name = {(0x49, 0): "tilerelease", (0x49, 3): "tilezero"}.get((code[3], prefix), "tdp")
        RAN[name] += 1
        if name == "tilerelease":
            rows.clear()
        elif name == "tilezero":
            rows[register][:] = 0
        else:
            assert code[3] == 0x5E
            dot(rows[register], rows[place], rows[~code[2] >> 3 & 15], prefix)
        return 5
    length, offset = 5, 0
    base, index = place + 8 * (not code[1] & 0x20), None
    if place == 4:
        length, index = 6, (code[5] >> 3 & 7) + 8 * (not code[1] & 0x40)
        base = (code[5] & 7) + 8 * (not code[1] & 0x20)
        assert mode or code[5] & 7 != 5, "no base"
    if mode:
        size = {1: 1, 2: 4}[mode]
        offset, length = int.from_bytes(bytes(code[length : length + size]), "little", signed=True), length + size
    address = registers[SLOTS[base]] + offset
    name = {(0x49, 0): "ldtilecfg", (0x4B, 3): "tileloadd", (0x4B, 2): "tilestored"}[code[3], prefix]
    RAN[name] += 1
    if name == "ldtilecfg":
        load_shapes(address)
        return length
    stride = registers[SLOTS[index]] << (code[5] >> 6)
    for i, row in enumerate(rows[register]):
        line = memory(address + stride * i, len(row))
        source, target = (line, row) if name == "tileloadd" else (row, line)
        target[:] = source
    return length


class Action(ctypes.Structure):
    """Linux's struct sigaction of glibc."""

    _fields_ = [
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restore", ctypes.c_void_p),
    ]


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
def handle(number, info, context):
    registers = (ctypes.c_longlong * 23).from_address(context + GREGS)
    try:
        registers[RIP] += step(registers)
    except BaseException as e:
        print(f"amx_model: {e!r}", flush=True)
        os._exit(1)


def install() -> None:
    """Let ``handle`` do what the processor refuses."""
    action = Action(ctypes.cast(handle, ctypes.c_void_p).value, flags=4)  # SA_SIGINFO
    assert ctypes.CDLL(None).sigaction(signal.SIGILL, ctypes.byref(action), None) == 0


# -- AVX-512 in plain operations
def chosen(table, index, mask):
    """table[index & mask], byte by byte."""
    lanes, k = index.ir.type.count, index.emit
    out, picks = k.zero(Vec("i8", lanes)), index & mask
    for i in range(lanes):
        byte = k.builder.extract_element(table.ir, picks.lane(i).ir)
        out = type(out)(k, k.builder.insert_element(out.ir, byte, ir.Constant(ir.IntType(32), i)))
    return out


def dpbusd(k, total, unsigned, signed):
    wide = Vec("i32", 64)
    products = unsigned.bits(I8x64).zext(wide) * signed.bits(I8x64).sext(wide)
    return total + sum((products.shuffle(range(i, 64, 4)) for i in range(1, 4)), products.shuffle(range(0, 64, 4)))


def bit_matrix(k, data, rows, flip=0):
    out = k.const(I8x64, flip)
    for bit, sources in enumerate(rows):
        for source in sources:
            out = out ^ (((data >> source) & 1) << bit)
    return out


def multishift(k, starts, data):
    data, wide = data.bits(I64x8), Vec("i64", 64)
    lanes, by = data.shuffle([i // 8 for i in range(64)]), (starts & 63).zext(wide)
    turned = (lanes >> by) | (lanes << ((k.zero(wide) - by) & 63))
    return turned.trunc(I8x64)


def blend_bits(k, mask, yes, no):
    return (mask & yes) | ((mask ^ -1) & no)


def permute_2(k, low, high, index):
    return chosen(low.bits(I8x64).cat(high.bits(I8x64)), index, 127)


PLAIN = {
    "dpbusd_512": dpbusd,
    "permute_bytes": lambda k, table, index: chosen(table.bits(I8x64), index, 63),
    "permute_bytes_2": permute_2,
    "multishift": multishift,
    "bit_matrix": bit_matrix,
    "blend_bits": blend_bits,
}


def shuffle_bytes(k, table, index):
    """Within each 16 bytes; zero where the index has its top bit."""
    places = (index & 15) + [i // 16 * 16 for i in range(64)]
    return k.select(index.compare("<", 0), k.zero(I8x64), chosen(table, places, 63))


def main() -> None:
    for name, function in (PLAIN | {"shuffle_bytes_512": shuffle_bytes}).items():
        setattr(x86, name, function)
    from ds4ref.kernels.cpu.gemm import amx_permitted
    from ds4ref.kernels.cpu.simd import gemm, gemm_amx
    from ds4ref.kernels.formats import FORMATS

    from .test_cpu_ops import matrix
    from .test_gemm import product

    if HAS_AMX:
        amx_permitted()
    else:
        install()
    gemm_amx.hold = lambda k, value: value  # of 512 bits
    gemm.configure, gemm.release = gemm_amx.configure, gemm_amx.release
    compared, rng = 0, np.random.default_rng(5)
    for name in sys.argv[1:] or ("Q8_0", "Q4_K", "Q2_K", "IQ2_XXS"):
        fmt = FORMATS[name]
        plain, tiles = gemm._tile_gemm(fmt, fmt.activation), gemm.amx_gemm(fmt, fmt.activation)
        for chunks, tokens, rows in ((1, 1, 1), (1, 4, 16), (2, 21, 17), (3, 37, 33), (2, 8, 48), (1, 135, 5)):
            w = matrix(name, rows, CHUNK * chunks)
            x = (rng.standard_normal((tokens, w.cols)) * rng.choice([0.01, 1, 30], w.cols)).astype(np.float32)
            first, last = min(1, rows - 1), rows
            a, b = (product(parts, w.data, x, first, last) for parts in (plain, tiles))
            assert a[:, first:].view(np.int32).tolist() == b[:, first:].view(np.int32).tolist(), (name, chunks, tokens)
            compared += a[:, first:].size
    ran = ", ".join(f"{name} {count}" for name, count in RAN.items())
    print(f"{compared} products; tile instructions: {'natively' if HAS_AMX else ran}")


if __name__ == "__main__":
    main()
