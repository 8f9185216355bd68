"""The graph of points (named intermediates): complete, in the order of the pass, with headings that exist."""

from pathlib import Path

from ds4ref.archs.deepseek4.hooks import LATER, NAMES
from ds4ref.test_vectors.trace.ops import LATER as OPS41
from ds4ref.test_vectors.trace.ops import OPS, Graph, anchor

ROOT = Path(__file__).resolve().parents[2]


def test_every_point_of_the_pass_is_an_op():
    assert set(OPS) == set(OPS41) == {*NAMES, *LATER}


def test_every_section_exists():
    for op in (*OPS.values(), *OPS41.values()):
        text = (ROOT / "docs" / "explanation" / op.page).read_text()
        assert op.section in {line.lstrip("#").strip() for line in text.splitlines() if line.startswith("#")}
    text = (ROOT / "docs" / "explanation" / "model.md").read_text()
    assert anchor(OPS["hc_attn_pre"]) == "docs/explanation/model.md#3-hyper-connections"
    assert "(#3-hyper-connections)" in text, "the anchors are those the page itself uses"


def _point(name):
    parts = name.split(".")
    return parts[0], int(parts[1]) if len(parts) > 1 else -1


def test_span_stops_at_what_was_dumped():
    span = Graph(6).span
    start, bridged = span(("Qcur", 2), {("attn_norm", 2), ("KVnorm", 2)}, None)
    assert start == [("attn_norm", 2)]
    assert {name for name, _ in bridged} == {"q_lora", "q_lora_norm", "Qraw", "Qnorm", "rope_tables", "Qcur"}
    start, bridged = span(("hc_attn_in", 3), {("hc_ffn_post", 2)})
    assert (start, bridged) == ([("hc_ffn_post", 2)], [("hc_attn_in", 3)])
    start, _ = span(("result_hc", -1), {("hc_ffn_post", 5)})
    assert start == [("hc_ffn_post", 5)]


def test_the_page_lists_every_point():
    text = (ROOT / "docs" / "reference" / "trace.md").read_text()
    for name, op in OPS.items():
        line = next(line for line in text.splitlines() if line.startswith(f"| `{name}`"))
        assert op.formula in line and f"| {op.axes} |" in line
