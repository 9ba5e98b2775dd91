"""Llama with LayerNorm and bias everywhere, and a plain MLP with tanh GELU.

starcoder2@1 in f32, generated from circuits/starcoder2.circuit. Do not edit: change the circuit and
run `cke build`. `manifest.json` holds every decision behind the code.
"""
