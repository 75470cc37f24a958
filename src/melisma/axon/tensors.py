"""Torch tensors as raw memory: every dtype, strided and sparse.

Payload: ``[layout, dtype, shape, part, …]``. A strided tensor has one part, the number of its
frame; a sparse one has its parts as tensors: indices and values, or compressed indices, plain
indices and values. Tensors arrive on the CPU and without their graph.

Torch is never imported here: whoever works with tensors has imported it.
"""

import sys
from collections.abc import Callable
from typing import Any

from melisma.errors import MalformedError

_COMPRESSED = {
    "sparse_csr": ("crow_indices", "col_indices"),
    "sparse_bsr": ("crow_indices", "col_indices"),
    "sparse_csc": ("ccol_indices", "row_indices"),
    "sparse_bsc": ("ccol_indices", "row_indices"),
}


def pack_tensor(tensor: Any, add_frame: Callable[[memoryview], int]) -> list[Any]:
    """The payload of a tensor."""
    torch = sys.modules["torch"]
    if tensor.is_quantized or tensor.is_nested or tensor.is_meta:
        raise TypeError("quantized, nested and meta tensors have no plain memory; convert it")
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    layout, dtype = _name(tensor.layout), _name(tensor.dtype)
    head = [layout, dtype, list(tensor.shape)]
    if layout == "strided":
        flat = tensor.reshape(-1)
        if not flat.numel():
            return [*head, add_frame(memoryview(b""))]
        return [*head, add_frame(memoryview(flat.view(torch.uint8).numpy()).cast("B"))]
    if layout == "sparse_coo":
        tensor = tensor.coalesce()
        return [*head, tensor.indices(), tensor.values()]
    if names := _COMPRESSED.get(layout):
        return [*head, *(getattr(tensor, name)() for name in names), tensor.values()]
    raise TypeError(f"a tensor of layout {tensor.layout}; send tensor.to_dense()")


def unpack_tensor(parts: Any, get_frame: Callable[[int], memoryview]) -> Any:
    """The tensor, on the memory of its frame."""
    torch = sys.modules.get("torch")
    if torch is None:
        raise MalformedError(
            "a torch tensor arrived where torch is not imported: import torch before the call, "
            "or send tensor.numpy()"
        )
    layout, dtype_name, shape, *rest = parts
    dtype = getattr(torch, str(dtype_name), None)
    if not isinstance(dtype, torch.dtype):
        raise MalformedError(f"{dtype_name!r} is not a dtype of torch {torch.__version__}")
    try:
        if layout == "strided":
            return _strided(torch, dtype, shape, get_frame(*rest))
        return _sparse(torch, layout, dtype, shape, rest)
    except RuntimeError as error:
        raise MalformedError(f"a tensor that contradicts itself: {error}") from error


def _strided(torch: Any, dtype: Any, shape: Any, frame: memoryview) -> Any:
    from melisma.axon.arrays import check_size

    check_size(shape, dtype.itemsize, frame.nbytes, f"tensor of {dtype}")
    if frame.nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(frame, dtype=torch.uint8).view(dtype).reshape(shape)


def _sparse(torch: Any, layout: Any, dtype: Any, shape: Any, parts: list[Any]) -> Any:
    # The indices come from outside: unchecked ones would read beyond the tensor.
    options = {"dtype": dtype, "check_invariants": True}
    if layout == "sparse_coo":
        indices, values = parts
        return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, **options)
    if layout in _COMPRESSED:
        compressed, plain, values = parts
        kind = getattr(torch, layout)
        return torch.sparse_compressed_tensor(
            compressed, plain, values, shape, layout=kind, **options
        )
    raise MalformedError(f"{layout!r} is not a layout of format version 1")


def _name(torch_constant: Any) -> str:
    return str(torch_constant).removeprefix("torch.")
