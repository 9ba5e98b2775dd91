"""Llama with a sliding window on every layer; the GGUF form is a plain llama.

mistral@1 in f32, generated from circuits/mistral.circuit. Do not edit: change the circuit and run
`cke build`. `manifest.json` holds every decision behind the code.
"""
