"""Qwen2 without bias, plus RMSNorm on each q and k head.

qwen3@1 in f32, generated from circuits/qwen3.circuit. Do not edit: change the circuit and run `cke
build`. `manifest.json` holds every decision behind the code.
"""
