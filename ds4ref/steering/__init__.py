"""Directions for steering a model, built from pairs of prompts and measured on other prompts.

There is one direction, a vector, per layer. An engine is steered by removing or amplifying the part of a layer's output
along its direction (``ds4ref.archs.steering``). Modules in reading order: prompts, build, sidecar, metrics, measure.
"""
