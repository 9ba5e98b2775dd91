"""Gemma 2 with qk-norm, five sliding layers to one full, two rope bases, no soft caps.

gemma3@1 in f32, generated from circuits/gemma3.circuit. Do not edit: change the circuit and run
`cke build`. `manifest.json` holds every decision behind the code.
"""
