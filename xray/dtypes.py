"""The spellings of a dtype: of runs (f32), of traces (fp32)."""

WIRE_DTYPE_OF = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "f64": "fp64"}
