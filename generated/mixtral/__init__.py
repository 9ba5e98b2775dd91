"""Mistral with 8 experts, 2 per token.

mixtral@1 in f32, generated from circuits/mixtral.circuit. Do not edit: change the circuit and run
`cke build`. `manifest.json` holds every decision behind the code.
"""
