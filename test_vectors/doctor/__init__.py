"""``ds4-vectors doctor``: examine an engine in eight stages, and write a page to attach to a bug report.

examination  results of stages, and the verdict they allow
case         what is known about the target so far, shared by the stages
preflight    is the target reachable, what can it do, are its log probabilities valid
prompts      tokenizer and chat template, by ids, echoed bytes or token counts
numbers      diagnosis of the target's log probabilities or logits
yardstick    how far two runs of a right engine may differ
repeat       repeated requests, alone against concurrent, prompt against continuation, chunk edges
depth        recall of facts by depth
run, limits  order of stages, time budgets, Ctrl-C
page         the report as HTML and JSON
"""
