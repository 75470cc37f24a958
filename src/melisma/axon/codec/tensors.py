"""Torch tensors are sent as raw memory, in every dtype and layout.

The payload is ``[layout, dtype, shape, *parts]``, with layout and dtype named as in torch:

==========  =================================================================
layout      parts
==========  =================================================================
strided     frame number
sparse_coo  indices, values (both tensors), whether they are coalesced
others      compressed indices, plain indices, values (all tensors)
==========  =================================================================

Tensors arrive on the CPU and without their autograd graph. The receiver must have imported torch;
Axon never imports it.
"""

import sys
from collections.abc import Callable
from typing import Any

from melisma.axon.codec.message import describe_part
from melisma.errors import MalformedError

_COMPRESSED = {
    "sparse_csr": ("crow_indices", "col_indices"),
    "sparse_bsr": ("crow_indices", "col_indices"),
    "sparse_csc": ("ccol_indices", "row_indices"),
    "sparse_bsc": ("ccol_indices", "row_indices"),
}
_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64", 16: "complex128"}
"""A dtype of each item size that torch can copy; it cannot copy all dtypes."""


def pack_tensor(tensor: Any, add_frame: Callable[[memoryview], int]) -> list[Any]:
    """Return the payload of a tensor."""
    torch = sys.modules["torch"]
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(
            f"{type(tensor)} is a subclass of Tensor; send tensor.as_subclass(torch.Tensor)"
        )
    if tensor.is_quantized or tensor.is_nested or tensor.is_meta:
        raise TypeError(
            "a quantized, nested or meta tensor has no plain memory; send tensor.dequantize(), "
            "tensor.unbind(), or a tensor with data"
        )
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    layout, dtype = _name(tensor.layout), _name(tensor.dtype)
    head = [layout, dtype, list(tensor.shape)]
    if layout == "strided":
        return [*head, add_frame(_memory(torch, tensor))]
    if layout == "sparse_coo":
        return [*head, tensor._indices(), tensor._values(), tensor.is_coalesced()]
    if names := _COMPRESSED.get(layout):
        return [*head, *(getattr(tensor, name)() for name in names), tensor.values()]
    raise TypeError(f"layout {tensor.layout} is not supported; send tensor.to_dense()")


def unpack_tensor(parts: Any, get_frame: Callable[[int], memoryview]) -> Any:
    """Return the tensor; a strided one is a view of its frame."""
    torch = sys.modules.get("torch")
    if torch is None:
        raise MalformedError(
            "a torch tensor arrived, but torch is not imported: import torch before the call, "
            "or send tensor.numpy()"
        )
    layout, dtype_name, shape, *data = parts
    dtype = getattr(torch, dtype_name, None) if isinstance(dtype_name, str) else None
    if not isinstance(dtype, torch.dtype) or dtype_name.startswith("q"):
        raise MalformedError(
            f"{describe_part(dtype_name)} is not a dtype of torch {torch.__version__}"
        )
    try:
        if layout == "strided":
            return _unpack_strided(torch, dtype, shape, get_frame(*data))
        return _unpack_sparse(torch, layout, dtype, shape, data)
    except RuntimeError as error:
        raise MalformedError(f"the parts of the tensor are inconsistent: {error}") from error


def _unpack_strided(torch: Any, dtype: Any, shape: Any, frame: memoryview) -> Any:
    from melisma.axon.codec.arrays import check_size

    check_size(shape, dtype.itemsize, frame.nbytes, f"tensor of {dtype}")
    if frame.nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    # Torch does not respect read-only memory.
    memory = bytearray(frame) if frame.readonly else frame
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).reshape(shape)


def _unpack_sparse(torch: Any, layout: Any, dtype: Any, shape: Any, parts: list[Any]) -> Any:
    # Unchecked indices from a peer could read beyond the memory of the tensor.
    options = {"dtype": dtype, "check_invariants": True}
    if layout == "sparse_coo":
        indices, values, coalesced = parts
        return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=coalesced, **options)
    if layout in _COMPRESSED:
        compressed, plain, values = parts
        kind = getattr(torch, layout)
        return torch.sparse_compressed_tensor(
            compressed, plain, values, shape, layout=kind, **options
        )
    raise MalformedError(f"{describe_part(layout)} is not a layout in format version 1")


def _memory(torch: Any, tensor: Any) -> memoryview:
    if not tensor.numel():
        return memoryview(b"")
    bits = tensor.view(getattr(torch, _BITS[tensor.itemsize])).contiguous()
    # A tensor of one item counts as contiguous for any stride.
    flat = bits.as_strided((bits.numel(),), (1,))
    return memoryview(flat.view(torch.uint8).numpy()).cast("B")


def _name(torch_constant: Any) -> str:
    return str(torch_constant).removeprefix("torch.")
