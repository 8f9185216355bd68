"""``ds4-vectors doctor``: examine an engine in eight stages, and write a page to attach to a bug report.

examination  findings of the stages, and the verdict that follows from them
case         context that the stages share: the target, and what earlier stages learned about it
served       what the target was identified as: template, effort, BOS, ... each with its probability
preflight    is the target reachable, what can it do, are its log probabilities valid
prompts      tokenizer and chat template, by ids, echoed bytes or token counts
numbers      diagnosis of the target's log probabilities or logits
yardstick    how far two runs of a correct engine may differ
repeat       the engine against itself: repeated requests, prefill or decode
load         requests alone, after cached prefixes, several at once, beside streams that are cut off
registers    prompts with codes to repeat, by which content of other requests shows
altered      whether an answer was altered, and with whose content
lengths      prompts of many lengths: items to repeat, and log probabilities, by residue, depth and distance
probes       the prompts of that stage, and their answers
patterns     what their failures depend on, as probabilities of known patterns
run, limits  order of stages, time budgets, Ctrl-C
page         the report as HTML and JSON
"""
