"""Writing weights in the safetensors format, tensor by tensor.

The library's own writer takes a path only; this one writes to a file that hashes what passes.
Format: github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

import torch

_TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


class _Writable(Protocol):
    def write(self, data: memoryview, /) -> int: ...


def write_safetensors(file: _Writable, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write named tensors of any device. One at a time is copied to the host where it is not there or not contiguous.

    Raises OSError, and KeyError for a type that the format does not have.
    """
    # The widest types first, so that every tensor is aligned.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(memoryview(len(text).to_bytes(8, "little") + text))
    for _, tensor in ordered:
        data = tensor.detach().cpu().contiguous().reshape(-1)
        if data.numel():
            file.write(data.view(torch.uint8).numpy().data)
