"""NumPy arrays and scalars as raw memory: every dtype but those that hold Python objects."""

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
    """[dtype, shape, order, frame]; memory is referenced unless it has gaps."""
    dtype = _dtype_name(array.dtype)
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    if array.dtype.names is not None and array.dtype.itemsize:
        # A copy field by field would send what the memory held before, in the gaps between them.
        array = array.view(f"V{array.dtype.itemsize}")
    flat = np.ascontiguousarray(array.T if order == "F" else array).reshape(-1)
    return [dtype, list(array.shape), order, add_frame(_memory(flat))]


def unpack_array(parts: Any, get_frame: GetFrame) -> "np.ndarray[Any, Any]":
    """The array, on the memory of its frame."""
    name, shape, order, number = parts
    if order not in ("C", "F"):
        raise MalformedError(f"array order {describe_part(order)} is neither 'C' nor 'F'")
    dtype, frame = _dtype(name), get_frame(number)
    check_size(shape, dtype.itemsize, frame.nbytes, f"array of {dtype}")
    return np.ndarray(tuple(shape), dtype, frame if frame.nbytes else None, order=order)


def pack_scalar(scalar: "np.generic[Any]", _add_frame: AddFrame) -> list[Any]:
    """[dtype, bytes]."""
    # NumPy gives the empty str a character.
    return [_dtype_name(scalar.dtype), scalar.tobytes()[: scalar.dtype.itemsize]]


def unpack_scalar(parts: Any, _get_frame: GetFrame) -> Any:
    """The NumPy scalar."""
    name, data = parts
    dtype = _dtype(name)
    check_size([], dtype.itemsize, len(data), f"scalar of {dtype}")
    # Reading from an array would cut trailing zeros off.
    if dtype.kind == "S":
        return np.bytes_(data)
    if dtype.kind == "U":
        return np.str_(data.decode("utf-32-" + _BYTE_ORDERS[name[0]], "surrogatepass"))
    return np.frombuffer(data, dtype, 1).copy()[0] if data else np.zeros((), dtype)[()]


def check_size(shape: Any, item_bytes: int, frame_bytes: int, what: str) -> None:
    """Refuse a shape that its frame cannot fill, before anything is built on it."""
    if len(shape) > MAX_DIMENSIONS:
        raise MalformedError(f"{what}: {len(shape)} dimensions; the most is {MAX_DIMENSIONS}")
    count = 1
    for extent in shape:
        if type(extent) is not int or not 0 <= extent < 1 << 63:
            raise MalformedError(
                f"{what}: {describe_part(extent)} is not the extent of a dimension"
            )
        count *= extent
    if count * item_bytes != frame_bytes:
        raise MalformedError(
            f"{what} with shape {tuple(shape)} takes {count * item_bytes} bytes, "
            f"its frame has {frame_bytes}"
        )


def allocate_frame(frame_bytes: int) -> memoryview:
    """Memory for one frame: aligned, and not touched before bytes arrive."""
    return np.empty(frame_bytes, np.uint8).data.cast("B")


def _memory(flat: "np.ndarray[Any, Any]") -> memoryview:
    if flat.nbytes == 0:
        return memoryview(b"")
    return flat.view(np.uint8).data.cast("B")


def _dtype_name(dtype: "np.dtype[Any]") -> Any:
    if dtype.hasobject:
        raise TypeError(f"an array of dtype {dtype} holds Python objects; send it as a list")
    if dtype.kind == "V" and dtype.type is not np.void:
        raise TypeError(f"dtype {dtype} is not NumPy's own; send a view of it, such as uint16")
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
            f"{describe_part(name)} is not a dtype of this machine ({error})"
        ) from error


@lru_cache(maxsize=256)
def _plain_dtype(name: str) -> "np.dtype[Any]":
    _check_dtype_name(name)
    return np.dtype(name)


def _check_dtype_name(name: Any) -> None:
    """NumPy reads much more than it writes, Python objects among it."""
    if isinstance(name, list):
        for field in name:
            _check_dtype_name(field[1])
    elif not _DTYPE_NAME.fullmatch(name):
        raise TypeError("a dtype that holds Python objects, or none at all")
