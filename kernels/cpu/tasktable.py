"""Every task of the backend: its name and the fields of its argument block (``abi.Task`` explains the marks).

The compiled bodies are in ``tasks``; both sides read these declarations. Arrays are C-contiguous.
"""

from __future__ import annotations

from .abi import Task

RMS_NORM = Task("rms_norm", "<x <weight >out n eps:f")
HC_SPLIT = Task("hc_split", "<mix <scale <base >pre >post >comb C iters eps:f")
HC_HEAD_WEIGHTS = Task("hc_head_weights", "<mix <scale <base >out C eps:f")
HC_REDUCE = Task("hc_reduce", "<X <w >out C D")
HC_EXPAND = Task("hc_expand", "<X <y <post <comb >out C D")

ROPE = Task("rope", "<x <cos <sin >out heads width half inverse halves")

ROUND_E4M3 = Task("round_e4m3", "<x >out width blocks")
ROUND_E2M1 = Task("round_e2m1", "<x >out")
ROUND_F16 = Task("round_f16", "<x >out")
ROUND_I8 = Task("round_i8", "<x >out group")
HADAMARD = Task("hadamard", "<x >out n factor:f")

QUANTIZE_A8 = Task("quantize_a8", "<x >codes >scales")
QUANTIZE_Q8K = Task("quantize_q8k", "<x >codes >scales >sums")
SCALE_CODES = Task("scale_codes", "<codes <scales >out block")

PACK = Task("pack_inputs", "pack <x n >packed packed_bytes")
LINEAR = Task("linear_rows", "rows <weight row_bytes n <packed packed_bytes tokens groups group_rows >out out_rows")
GROUP_PAIRS = Task("group_pairs", "<ids pairs experts >order >starts >used !error")
EXPERT_LINEAR = Task(
    "expert_linear_rows",
    "rows <weight row_bytes expert_bytes expert_rows n <packed packed_bytes K <order <starts <used block blocks >out",
)
EXPERT_SUM = Task(
    "expert_sum_rows",
    "rows <weight row_bytes expert_bytes expert_rows n <packed packed_bytes T K <order <starts <used block >out *work",
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

POOL_ROWS = Task("pool_rows", "<kv <score >out m c blocks")
POSITION_BIAS = Task("position_bias", "<gate <ape >out <at ratio width")
WINDOWS = Task("windows", "<ring <new >out <at slots tokens ratio width overlap")
STORE_ROWS = Task("store_rows", "<x =rows <at tokens width slots half")

INDEX_PACK = Task("index_pack", "<iq <w >out heads dim")
INDEX_SCORES = Task("index_scores", "<packed <rows half <count >out tokens n heads dim *work")
SELECT_ROWS = Task("select_rows", "<scores <visible >out n k")

RANK_PEAKS = Task("rank_peaks", "<x >peaks >starts n blocks")
TOP = Task("top", "<x =peaks =starts >values >ids n blocks k")

ATTENTION = Task(
    "attention",
    "<q <raw <raw_first <raw_count <comp comp_half <comp_count <selected <sinks >out"
    " raw_rows comp_rows picks heads dim group groups scale:f *work !error",
)

ATTEND = Task(
    "attend",
    "<q <keys <values <first <row_counts >out key_half value_half"
    " rows tokens shared sharing group groups tile dim scale:f *work !error",
)

READ = Task("read_lines", "<address >out")

ADD = Task("add", "<a <b >out")
SCALE = Task("scale", "<x >out factor:f")
STREAMS = Task("streams", "<x >out width count")
TAKE_ROWS = Task("take_rows", "<table <ids >out rows width !error")

ROUTE = Task("route", "<logits <bias <hash_ids >probs >ids >weights experts k floor scale:f !error")
COUNT = Task("count", "<ids =counts experts")
ADVISE = Task("advise_experts", "<used weight expert_bytes code_bytes scale_bytes page most")
GEGLU = Task("geglu", "<gate <up >out")
SWIGLU = Task("swiglu", "<gate <up <weight >out n limit:f")
