"""Sandwich norms with weight + 1, soft caps, sliding on even layers.

gemma2@1 in f32, generated from circuits/gemma2.circuit. Do not edit: change the circuit and run
`cke build`. `manifest.json` holds every decision behind the code.
"""
