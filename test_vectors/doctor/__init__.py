"""``ds4-vectors doctor``: is this engine right? One command, eight stages, a page to attach to a bug report.

findings   what a check says, what a stage adds up to, what the whole examination may claim
case       what is known about the target so far, shared by the stages
preflight  can it be reached, what does it do, are its log probabilities log probabilities
prompts    tokenizer and template, by ids, echoed bytes or counts of tokens
numbers    elicited prompts and their diagnosis
yardstick  how far two runs of a right engine lie apart, which is what differences are held against
repeat     the same request again, prompt against continuation, one against many, chunk edges
depth      recall of facts by depth
run        order, budgets, Ctrl-C
page       HTML, Markdown, JSON
"""
