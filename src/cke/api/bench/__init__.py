"""`cke bench`: what a model costs here, side by side with transformers and llama.cpp."""
