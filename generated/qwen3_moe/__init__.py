"""Qwen3 with routed experts in every decoder_sparse_step-th layer.

qwen3_moe@1 in f32, generated from circuits/qwen3_moe.circuit. Do not edit: change the circuit and
run `cke build`. `manifest.json` holds every decision behind the code.
"""
