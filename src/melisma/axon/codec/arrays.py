"""NumPy arrays and scalars as raw memory: every dtype except those that hold Python objects."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy

from melisma.axon.codec.message import describe_part
from melisma.errors import MalformedError

_DTYPE_NAME: Final = re.compile(r"[<>|][biufcmMSUV]\d{1,10}(\[\d{0,10}[A-Za-z]{1,2}\])?", re.ASCII)
_BYTE_ORDERS: Final = {"<": "le", ">": "be"}

AddFrame = Callable[[memoryview], int]
GetFrame = Callable[[int], memoryview]
MAX_DIMENSIONS: Final = 64


def pack_array(array: "np.ndarray[Any, Any]", add_frame: AddFrame) -> list[Any]:
    """Return [dtype, shape, order, frame]; contiguous memory is referenced, not copied."""
    dtype = _dtype_name(array.dtype)
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    if array.dtype.names is not None and array.dtype.itemsize:
        # A field-by-field copy would leave stale memory in the padding between the fields.
        array = array.view(f"V{array.dtype.itemsize}")
    flat = np.ascontiguousarray(array.T if order == "F" else array).reshape(-1)
    return [dtype, list(array.shape), order, add_frame(_memory(flat))]


def unpack_array(parts: Any, get_frame: GetFrame) -> "np.ndarray[Any, Any]":
    """Return the array as a view of its frame."""
    name, shape, order, frame_number = parts
    if order not in ("C", "F"):
        raise MalformedError(f"array order {describe_part(order)} is neither 'C' nor 'F'")
    dtype, frame = _dtype(name), get_frame(frame_number)
    check_size(shape, dtype.itemsize, frame.nbytes, f"array of {dtype}")
    buffer = frame if frame.nbytes else None
    array: np.ndarray[Any, Any] = np.ndarray(tuple(shape), dtype, buffer, order=order)
    return array


def pack_scalar(scalar: "np.generic[Any]", _add_frame: AddFrame) -> list[Any]:
    """Return [dtype, bytes]."""
    # NumPy stores the empty str as one character.
    return [_dtype_name(scalar.dtype), scalar.tobytes()[: scalar.dtype.itemsize]]


def unpack_scalar(parts: Any, _get_frame: GetFrame) -> Any:
    """Return the NumPy scalar."""
    name, data = parts
    dtype = _dtype(name)
    check_size([], dtype.itemsize, len(data), f"scalar of {dtype}")
    # Reading these from an array would drop trailing zeros.
    if dtype.kind == "S":
        return np.bytes_(data)
    if dtype.kind == "U":
        return np.str_(data.decode("utf-32-" + _BYTE_ORDERS[name[0]], "surrogatepass"))
    return np.frombuffer(data, dtype, 1).copy()[0] if data else np.zeros((), dtype)[()]


def check_size(shape: Any, item_bytes: int, frame_bytes: int, label: str) -> None:
    """Raise `MalformedError` if ``shape`` does not match the size of its frame."""
    if len(shape) > MAX_DIMENSIONS:
        raise MalformedError(
            f"{label}: {len(shape)} dimensions exceed the limit of {MAX_DIMENSIONS}"
        )
    count = 1
    for extent in shape:
        if type(extent) is not int or not 0 <= extent < 1 << 63:
            raise MalformedError(f"{label}: {describe_part(extent)} is not a valid dimension")
        count *= extent
    if count * item_bytes != frame_bytes:
        raise MalformedError(
            f"{label} with shape {tuple(shape)} takes {count * item_bytes} bytes, "
            f"its frame has {frame_bytes}"
        )


def allocate_frame(frame_bytes: int) -> memoryview:
    """Allocate aligned, uninitialized memory for one frame."""
    return np.empty(frame_bytes, np.uint8).data.cast("B")


def _memory(flat: "np.ndarray[Any, Any]") -> memoryview:
    if flat.nbytes == 0:
        return memoryview(b"")
    return flat.view(np.uint8).data.cast("B")


def _dtype_name(dtype: "np.dtype[Any]") -> Any:
    if dtype.hasobject:
        raise TypeError(f"an array of dtype {dtype} holds Python objects; send array.tolist()")
    if dtype.kind == "V" and dtype.type is not np.void:
        raise TypeError(
            f"dtype {dtype} is not built into NumPy; send a view, such as array.view('uint16')"
        )
    try:
        return dtype.str if dtype.names is None else dtype.descr
    except ValueError as error:
        raise TypeError(f"{error}; send numpy.lib.recfunctions.repack_fields(array)") from error


def _dtype(name: Any) -> "np.dtype[Any]":
    try:
        if isinstance(name, str):
            return _plain_dtype(name)
        _check_dtype_name(name)
        return npy.descr_to_dtype(name)
    except (ValueError, TypeError, LookupError) as error:
        raise MalformedError(
            f"{describe_part(name)} is not a dtype of NumPy on this machine ({error})"
        ) from error


@lru_cache(maxsize=256)
def _plain_dtype(name: str) -> "np.dtype[Any]":
    _check_dtype_name(name)
    return np.dtype(name)


def _check_dtype_name(name: Any) -> None:
    """Raise TypeError for dtypes that are never sent; NumPy parses more, also Python objects."""
    if isinstance(name, list):
        for field in name:
            _check_dtype_name(field[1])
    elif not _DTYPE_NAME.fullmatch(name):
        raise TypeError("only dtypes without Python objects are allowed")
