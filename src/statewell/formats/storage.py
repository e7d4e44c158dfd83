"""The dtype names of three worlds: config.json's, safetensors' and ours."""

from __future__ import annotations

from statewell.config.layers import Storage
from statewell.formats.fields import Fields

# ours -> as config.json writes it, as safetensors writes it
CONFIG_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
FILE_NAMES = {"fp32": "F32", "bf16": "BF16", "fp16": "F16", "fp64": "F64"}
_OURS = {theirs: ours for ours, theirs in CONFIG_NAMES.items()}


def storage(fields: Fields, fp32: tuple[str, ...] = ()) -> Storage:
    """How the config says its weights are stored (fp32 where it does not). fp32: what its family keeps in fp32."""
    name = fields.text("dtype", "torch_dtype", default="float32")
    if name not in _OURS:
        fields.refuse("dtype", f"is {name!r}; statewell stores {', '.join(_OURS)}")
    dtype = _OURS[name]
    return Storage(dtype=dtype, fp32=fp32 if dtype in ("bf16", "fp16") else ())
