"""Float64 NumPy definitions of the operators, one function per operator name."""
