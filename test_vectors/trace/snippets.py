"""Code that dumps intermediates of other engines, for the step after an unknown (``plan``).

Words in capitals are replaced: LAYERS, NAMES, OTHERS, IDS, COUNT, WIDTH, MODEL.
"""

from __future__ import annotations

C = """\
static void dump(const char *op, int layer, const float *x, int rows, int columns) {   /* mkdir dump first */
    static int count;
    char path[64];
    snprintf(path, sizeof path, "dump/%d.f32", count);
    FILE *out = fopen(path, "wb"), *list = fopen("dump/manifest.jsonl", count ? "a" : "w");
    fwrite(x, sizeof *x, (size_t)rows * columns, out);
    fprintf(list, "{\\"name\\": \\"%s\\", \\"layer\\": %d, \\"shape\\": [%d, %d], \\"file\\": \\"%d.f32\\"}\\n",
            op, layer, rows, columns, count++);
    fclose(out), fclose(list);
}
/* where each of these ops has just been computed, all tokens in one batch; the head's layer is -1: */
if (LAYERS) dump("attn_norm", layer, x, COUNT, WIDTH);"""

DS4 = """\
mkdir -p dump
export DS4_METAL_GRAPH_DUMP_PREFIX=dump/x DS4_METAL_GRAPH_DUMP_POS=0 DS4_METAL_GRAPH_DUMP_NAME=NAMES
for layer in LAYERS; do
    DS4_METAL_GRAPH_DUMP_LAYER=$layer MODEL --prompt-file PROMPT -n 1     # the prompt in one chunk
done
# a build without graph dumps: the C of docs/reference/trace.md 6"""

LLAMA = """\
import ctypes, json, os, numpy as np, llama_cpp.llama_cpp as api
from llama_cpp import Llama
ids, taken = json.load(open("IDS"))[:COUNT], {}
names = {f"{name}-{layer}" for layer in LAYERS for name in "NAMES".split()} | {*"OTHERS".split()}
ggml = ctypes.CDLL(os.path.join(os.path.dirname(api.__file__), "lib", "libggml-base.so"))
ggml.ggml_get_name.restype, ggml.ggml_get_data.restype = ctypes.c_char_p, ctypes.c_void_p
def tap(t, ask, _):
    name = ggml.ggml_get_name(ctypes.c_void_p(t)).decode(errors="replace")
    if not ask and name in names:
        sizes, steps = ((of * 4).from_address(t + at)[::-1] for of, at in ((ctypes.c_int64, 16), (ctypes.c_size_t, 48)))
        kind = np.dtype({0: "f4", 1: "f2", 26: "i4"}[ctypes.c_int32.from_address(t).value])
        length = sum((n - 1) * step for n, step in zip(sizes, steps)) + kind.itemsize
        raw = (ctypes.c_uint8 * length).from_address(ggml.ggml_get_data(ctypes.c_void_p(t)))
        count = 1 + sum(key.partition("#")[0] == name for key in taken)
        taken[name if count == 1 else f"{name}#{count}"] = np.ndarray(sizes, kind, raw, strides=steps).squeeze().copy()
    return name in names or not ask
params, call = api.llama_context_default_params(), api.ggml_backend_sched_eval_callback(tap)
params.cb_eval = call
api.llama_context_default_params = lambda: params
size = dict.fromkeys(("n_ctx", "n_batch", "n_ubatch"), len(ids))
Llama("MODEL", **size, logits_all=True, flash_attn=True, n_gpu_layers=0, verbose=False).eval(ids)
np.savez("dump.npz", ids=ids, **taken)"""
