"""Speed of kernels and engine against the machine's limits, and how often verdicts are right.

python -m benchmarks.cpu        every figure of the CPU table, with its bar
python -m benchmarks.gpu_check  is a GPU right, and how fast
python -m benchmarks.rows       row kernels alone, all formats and roundings
python -m benchmarks.experts    decode of a model larger than memory, against plain mapping and the disk's rate
python -m benchmarks.cluster    what it costs to have the layers on several workers
python -m benchmarks.load       many clients of the server at once
python -m benchmarks.coverage   do intervals cover what they claim
python -m benchmarks.identify   how often ds4-vectors identify is right, on drawn servers of two engines
python -m benchmarks.diagnosis  how often ds4-vectors diagnose is right; calibration, patients: its confidence
"""
