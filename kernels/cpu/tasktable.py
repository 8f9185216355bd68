"""Every task (compiled function) of the CPU backend: its name, the fields of its argument block and, if an op consists
of just this task, the number of items and the operations per item. ``abi.Task`` explains the notation.

The compiled bodies are in ``tasks``; both sides read these declarations. Arrays are C-contiguous.
"""

from __future__ import annotations

from .abi import Task
from .sizes import A8_BLOCK, E2M1_BLOCK, NVFP4_BLOCK, POOL_CHANNELS, Q8K_BLOCK

RMS_NORM = Task("rms_norm", "<x[4*n] <weight >out[4*n] n eps:f", "x.size // n if n else 0", "n")
HC_SPLIT = Task(
    "hc_split", "<mix[4*C*(2+C)] <scale <base >pre[4*C] >post[4*C] >comb[4*C*C] C iters eps:f", "T", "4 * iters * C * C"
)
HC_HEAD_WEIGHTS = Task("hc_head_weights", "<mix[4*C] <scale <base >out[4*C] C eps:f", "T", "16 * C")
HC_REDUCE = Task("hc_reduce", "<X[4*C*D] <w[4*C] >out[4*D] C D", "T", "C * D")
HC_EXPAND = Task("hc_expand", "<X[4*C*D:C] <y[4*D:C] <post[4*C:C] <comb[4*C*C:C] >out[4*D] C D", "T * C", "C * D")

ENGRAM_GATE = Task("engram_gate", "<X[4*D] <joined[4*(C*D+D):C] <weight >out[4*D] C D eps:f", "T * C", "4 * D")

ROPE = Task(
    "rope",
    "<x[4*width] <cos <sin >out[4*width] heads=H width=2*r+p half=r inverse=int(inverse) halves=int(halves)",
    "T * H",
    "2 * r + p",
)

ROUND_E4M3 = Task(
    "round_e4m3",
    "<x[4*width:blocks] >out[4*width:blocks] width=n blocks=(channels or n)//block block",
    "x.size // n * ((channels or n) // block) if n else 0",
    "4 * block",
)
ROUND_E2M1 = Task(
    "round_e2m1", f"<x[{4 * E2M1_BLOCK}] >out[{4 * E2M1_BLOCK}]", f"x.size // {E2M1_BLOCK}", f"4 * {E2M1_BLOCK}"
)
ROUND_NVFP4 = Task(
    "round_nvfp4", f"<x[{4 * NVFP4_BLOCK}] >out[{4 * NVFP4_BLOCK}]", f"x.size // {NVFP4_BLOCK}", f"4 * {NVFP4_BLOCK}"
)
ROUND_F16 = Task("round_f16", "<x[4] >out[4]", "x.size", "1")
ROUND_I8 = Task("round_i8", "<x[4*group] >out[4*group] group", "x.size // group", "4 * group")
HADAMARD = Task("hadamard", "<x[4*n] >out[4*n] n=1<<b factor:f=(1<<b)**-0.5", "x.size >> b", "8 << b")

QUANTIZE_A8 = Task("quantize_a8", f"<x[{4 * A8_BLOCK}] >codes[{A8_BLOCK}] >scales[4]", "scales.size", "64")
QUANTIZE_Q8K = Task("quantize_q8k", f"<x[{4 * Q8K_BLOCK}] >codes[{Q8K_BLOCK}] >scales[4] >sums", "scales.size", "512")
SCALE_CODES = Task("scale_codes", "<codes[block] <scales[4] >out[4*block] block")

PACK = Task("pack_inputs", "pack <x[4*n] n >packed[packed_bytes] packed_bytes")
LINEAR = Task("linear_rows", "rows <weight row_bytes n <packed packed_bytes tokens groups group_rows >out out_rows")
GROUP_PAIRS = Task("group_pairs", "<ids pairs experts >order >starts >used !error")
EXPERT_LINEAR = Task(
    "expert_linear_rows",
    "rows <weight row_bytes expert_bytes expert_rows n <packed packed_bytes K <order <starts <used block blocks >out",
)
EXPERT_SUM = Task(
    "expert_sum_rows",
    "rows <weight row_bytes expert_bytes expert_rows n <packed packed_bytes T K <order <starts <used block"
    " >out[4*block*(T<2)] *work",
)

GEMM_PACK = Task("gemm_pack", "pack <x n >panel panel_bytes groups")
GEMM = Task("gemm", "parts <weight row_bytes n <panel panel_bytes tokens group_rows >out out_rows *work")
GEMM_PACK_PAIRS = Task("gemm_pack_pairs", "pack <x n >panel group_bytes divisor <order <starts <used")
EXPERT_GEMM = Task(
    "expert_gemm",
    "parts <weight row_bytes expert_bytes expert_rows n <panel group_bytes <order <starts <used"
    " block blocks >out part_offset *work",
)
SUM_SLOTS = Task("sum_slots", "<x >out K n")

POOL = Task(
    "pool",
    f"<kv <score >out m c blocks=-(-c//{POOL_CHANNELS})",
    f"n * -(-c // {POOL_CHANNELS})",
    f"4 * m * {POOL_CHANNELS}",
)
POSITION_BIAS = Task("position_bias", "<gate[4*width] <ape >out[4*width] <at ratio=r width=c", "T", "c")
WINDOWS = Task(
    "windows",
    "<ring <new >out <at slots=N tokens=T ratio width=c overlap=int(overlap)",
    "count * ratio * (1 + overlap)",
    "c",
)
STORE_ROWS = Task("store_rows", "<x =rows <at tokens=T width=w slots=N half=is_half(rows)", "min(T, N)", "w")

INDEX_PACK = Task("index_pack", "<iq[4*heads*dim] <w[4*heads] >out heads dim")
INDEX_SCORES = Task("index_scores", "<packed <rows half <count >out tokens n heads dim *work")
SELECT_ROWS = Task("select_rows", "<scores <visible >out n k", "T", "8 * n")
BLOCK_MAXIMA = Task("block_maxima", "<scores <visible >out[4] n size count", "T * count", "size")
BLOCK_SCORES = Task("block_scores", "<packed <rows half <blocks >out[4*size] n heads dim size count *work")
BLOCK_ROWS = Task("block_rows", "<picks[4] <blocks >out[4] k count=b size", "T * k", "4")

RANK_PEAKS = Task("rank_peaks", "<x >peaks >starts n blocks")
TOP = Task("top", "<x =peaks =starts >values >ids n blocks k")

ATTENTION = Task(
    "attention",
    "<q[4*dim*group*(heads%group<1)] <raw <raw_first <raw_count <comp comp_half <comp_count <selected <sinks"
    " >out[4*dim*group*(heads%group<1)]"
    " raw_rows comp_rows picks heads dim group groups scale:f *work !error",
)

ATTEND = Task(
    "attend",
    "<q <keys <values <first <row_counts >out key_half value_half"
    " rows tokens shared sharing group groups tile dim scale:f *work !error",
)

READ = Task("read_lines", "<address >out")

ADD = Task("add", "<a[4] <b[4] >out[4]", "out.size", "4")
SCALE = Task("scale", "<x[4] >out[4] factor:f", "out.size", "4")
REMOVE_ALONG = Task("remove_along", "<x[4*n] <direction >out[4*n] n factor:f", "T", "2 * n")
STREAMS = Task("streams", "<x[4*width:count] >out[4*width] width=D count", "T * count", "D")
TAKE_ROWS = Task("take_rows", "<table <ids >out rows=V width=K !error", "T", "256")

ROUTE = Task(
    "route",
    "<logits <bias <hash_ids >probs >ids >weights experts=E k floor=int(floor) scale:f !error",
    "T",
    "(k + 16) * E",
)
COUNT = Task("count", "<ids =counts experts")
CALL = Task("call_python", "function <ids rows width <first <second =table =other")
ADVISE = Task("advise_experts", "<used weight expert_bytes code_bytes scale_bytes page most")
GEGLU = Task("geglu", "<gate[4] <up[4] >out[4]", "out.size", "16")
SWIGLU = Task("swiglu", "<gate[4*n] <up[4*n] <weight[4] >out[4*n] n limit:f", "gate.size // n if n else 0", "8 * n")
