"""Quantization of model files.

A plan of formats (``plan``, ``families``), importance (``imatrix``), its execution (``run``) into a file that survives
interruption (``part``), and layers of one file in another (``splice``).

    plan = make_plan(source, Choices(recipe="q4"))
    specs = [item.spec for item in plan.items]
    with PartFile("out.gguf", plan.metadata, specs, plan.alignment, plan.digest([source.path])) as out:
        run(plan, source, out, threads=8)
"""
