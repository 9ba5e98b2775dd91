"""Llama + q/k/v bias; optional sliding window on the upper layers.

qwen2@1 in f32, generated from circuits/qwen2.circuit. Do not edit: change the circuit and run `cke
build`. `manifest.json` holds every decision behind the code.
"""
