"""The state of a cycle machine as bytes, so that a run resumes without replaying all its events."""

from dataclasses import fields
from typing import Any, TypedDict, get_args, get_type_hints

import msgspec
import numpy as np

from melisma.allocation.schemes import get_scheme
from melisma.cycle.state import CycleState
from melisma.errors import DataError

# The scheme follows from the task.
_HINTS = {name: hint for name, hint in get_type_hints(CycleState).items() if name != "scheme"}
_SavedState = TypedDict("_SavedState", _HINTS)  # type: ignore[misc] # the fields of a dataclass


def encode_state(state: CycleState) -> bytes:
    """Encode the whole state."""
    saved = {field.name: getattr(state, field.name) for field in fields(state)}
    del saved["scheme"]
    return msgspec.msgpack.encode(saved, enc_hook=encode_array)


def decode_state(content: bytes) -> CycleState:
    """Decode a state; `DataError` if it was not encoded by this version."""
    try:
        saved: dict[str, Any] = msgspec.msgpack.decode(
            content, type=_SavedState, dec_hook=decode_array
        )
    except msgspec.MsgspecError as error:
        raise DataError(f"the snapshot cannot be read: {error}") from None
    return CycleState(scheme=get_scheme(saved["task"].scheme), **saved)


def encode_array(value: Any) -> Any:
    """Return an array as its shape and its bytes, a number of NumPy as one of Python."""
    if isinstance(value, np.generic):
        return value.item()
    return value.shape, np.ascontiguousarray(value).data


def decode_array(kind: Any, value: Any) -> Any:
    """Return the array that `encode_array` encoded."""
    _, dtype = get_args(kind)
    shape, content = value
    return np.frombuffer(content, get_args(dtype)[0]).reshape(shape).copy()
