"""Directions for steering, built from pairs of prompts and measured on prompts that they were not built from.

In reading order: prompts, build, sidecar, metrics, measure, plot. How an engine is steered: ``ds4ref.archs.steering``.
"""
