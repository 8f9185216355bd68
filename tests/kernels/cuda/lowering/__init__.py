"""CUDA kernels without a GPU: the PTX that the compiler emitted, translated to this processor and run.

A kernel is compiled for a real architecture (``numba-cuda`` with NVIDIA's NVVM, no driver), and the PTX text
is run: every instruction becomes LLVM IR, every thread of a block a fiber, every barrier, shuffle, vote and matrix
instruction a meeting of fibers, with checks that a GPU does not make (``lowered.py`` lists them).

    ptx.py        PTX text -> variables, functions, instructions
    translate.py  functions -> LLVM IR; scalar.py, converting.py, memory.py and meetings.py hold the instructions
    fibers.py     switching between fibers, the scheduler of a block, what a warp computes together
    checking.py   is this access inside an array, aligned, initialised, and ordered after the others?
    lowered.py    compile a kernel, launch it on NumPy arrays

Left out: what ptxas makes of the PTX, races in global memory,
the error of approximate instructions (they are computed to float32's last bit), and time.
"""
