"""Quantization of model files.

``plan`` and ``families`` choose a storage format for each tensor, ``imatrix`` reads and writes importance matrices,
``run`` writes the planned file, which can be resumed after an interruption (``part``), and ``splice`` replaces layers
of one file by those of another.

    plan = make_plan(source, Choices(recipe="q4"))
    specs = [item.spec for item in plan.items]
    with PartFile("out.gguf", plan.metadata, specs, plan.alignment, plan.digest([source.path])) as out:
        run(plan, source, out, threads=8)
"""
