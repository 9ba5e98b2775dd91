"""Learned positions, LayerNorm with bias, fused Conv1D qkv, tanh GELU.

gpt2@1 in f32, generated from circuits/gpt2.circuit. Do not edit: change the circuit and run `cke
build`. `manifest.json` holds every decision behind the code.
"""
