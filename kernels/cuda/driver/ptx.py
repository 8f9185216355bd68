"""Inline PTX: every line of it that compiled kernels contain, for whoever runs or counts what was compiled."""

from __future__ import annotations

PTX = {
    "dp4a": ("dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r"),
    "dp4a_codes": ("dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r"),
    "dp2a_low": ("dp2a.lo.s32.s32 $0, $1, $2, $3;", "=r,r,r,r"),
    "dp2a_codes": ("dp2a.lo.s32.u32 $0, $1, $2, $3;", "=r,r,r,r"),
    "permute_bytes": ("prmt.b32 $0, $1, $2, $3;", "=r,r,r,r"),
    "funnel_right": ("shf.r.clamp.b32 $0, $1, $2, $3;", "=r,r,r,r"),
    "half_to_float": ("{ .reg .b16 h; cvt.u16.u32 h, $1; cvt.f32.f16 $0, h; }", "=f,r"),
    "float_to_half": ("{ .reg .b16 h; cvt.rn.f16.f32 h, $1; cvt.u32.u16 $0, h; }", "=r,f"),
    "halves_of_ints": (
        "{ .reg .b16 l, h; mov.b32 {l, h}, $1; cvt.rn.f16.s16 l, l; cvt.rn.f16.s16 h, h; mov.b32 $0, {l, h}; }",
        "=r,r",
    ),
    "add_halves": ("add.rn.f16x2 $0, $1, $2;", "=r,r,r"),
    "stream4": ("ld.global.nc.L1::no_allocate.v4.b32 {$0,$1,$2,$3}, [$4];", "=r,=r,=r,=r,l"),
    "read4": ("ld.global.nc.v4.b32 {$0,$1,$2,$3}, [$4];", "=r,=r,=r,=r,l"),
    "read2": ("ld.global.nc.v2.b32 {$0,$1}, [$2];", "=r,=r,l"),
    "copy16": ("cp.async.cg.shared.global [$0], [$1], 16;", "l,l,~{memory}"),
    "copy4": ("cp.async.ca.shared.global [$0], [$1], 4;", "l,l,~{memory}"),
    "copy_commit": ("cp.async.commit_group;", "~{memory}"),
    "copy_wait0": ("cp.async.wait_group 0;", "~{memory}"),
    "copy_wait1": ("cp.async.wait_group 1;", "~{memory}"),
    "copy_wait2": ("cp.async.wait_group 2;", "~{memory}"),
    "matrices4": ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0,$1,$2,$3}, [$4];", "=r,=r,=r,=r,l,~{memory}"),
    "matrices4_turned": (
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0,$1,$2,$3}, [$4];",
        "=r,=r,=r,=r,l,~{memory}",
    ),
    "mma_s8": (
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};",
        "=r,=r,=r,=r,r,r,r,r,r,r,r,r,r,r",
    ),
    "mma_s8_half": (
        "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {$0,$1,$2,$3}, {$4,$5}, {$6}, {$7,$8,$9,$10};",
        "=r,=r,=r,=r,r,r,r,r,r,r,r",
    ),
    "mma_f16": (
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};",
        "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f",
    ),
    "mma_bf16": (
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};",
        "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f",
    ),
}
"""Inline PTX by the name of the function that emits it: text and constraints. Addresses are 64 bits; the first of
``copy16`` and ``copy4``, and that of ``matrices4``, is one of shared memory."""
