"""Llama 2/3, SmolLM2, and Mistral as GGUF: pre-norm decoder, GQA, rope, SwiGLU.

llama@1 in f32, generated from circuits/llama.circuit. Do not edit: change the circuit and run `cke
build`. `manifest.json` holds every decision behind the code.
"""
