"""Known machines: short name, as in file names and options -> (full name, memory bandwidth in GB/s by its maker)."""

MACHINES = {
    "m2-ultra": ("M2 Ultra", 800), "m3-max": ("M3 Max", 400), "m3-ultra": ("M3 Ultra", 819), "m4-max": ("M4 Max", 546),
    "gb10": ("DGX Spark GB10", 273), "rtx-pro-6000": ("RTX PRO 6000", 1790), "h200": ("H200", 4800),
}  # fmt: skip
