"""Quantization of model files.

``plan`` and ``families`` choose a format per tensor, ``imatrix`` reads importance, ``run`` executes a plan into a file
that survives interruption (``part``), and ``splice`` replaces layers of one file by those of another.

    plan = make_plan(source, Choices(recipe="q4"))
    specs = [item.spec for item in plan.items]
    with PartFile("out.gguf", plan.metadata, specs, plan.alignment, plan.digest([source.path])) as out:
        run(plan, source, out, threads=8)
"""
