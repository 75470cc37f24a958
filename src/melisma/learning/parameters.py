"""Parameters of a model as named arrays, one after the other in one block of bytes.

The model defines the layout (names, dtypes, shapes); the block is sent, stored and
averaged. Its size is checked before it is read, and nothing in it is executed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError, SettingError

Arrays = Mapping[str, NDArray[Any]]


def state_arrays(state: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the tensors of a state as arrays, which share the memory of tensors on the CPU.

    Raise `SettingError` for a dtype that NumPy does not have, such as bfloat16.
    """
    arrays = dict[str, NDArray[Any]]()
    for name, tensor in state.items():
        try:
            arrays[name] = tensor.detach().cpu().numpy()
        except TypeError as error:
            raise SettingError(
                f"model: {name} is {tensor.dtype}, which NumPy arrays cannot hold; use float32, "
                "as in model.float()"
            ) from error
    return arrays


@dataclass(frozen=True)
class Field:
    """One array of a model: its name, dtype, shape and first byte."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def end(self) -> int:
        """The index after its last byte."""
        return self.start + self.size * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """The arrays of a model, in order."""

    fields: tuple[Field, ...]

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> "Layout":
        """Return the layout of these arrays, in order."""
        sizes = [array.nbytes for array in arrays.values()]
        starts = [0, *accumulate(sizes)][:-1]
        return cls(
            tuple(
                Field(name, array.dtype.newbyteorder("<"), array.shape, start)
                for (name, array), start in zip(arrays.items(), starts, strict=True)
            )
        )

    @property
    def size_bytes(self) -> int:
        """Total bytes of all arrays."""
        return self.fields[-1].end if self.fields else 0

    def pack(self, arrays: Arrays) -> bytearray:
        """Copy the arrays into one block; raise `DataError` if they do not have this layout."""
        self.check(arrays)
        block = bytearray(self.size_bytes)
        for view, array in zip(self.unpack(block).values(), arrays.values(), strict=True):
            view[...] = array
        return block

    def unpack(self, block: bytes | bytearray | memoryview) -> dict[str, NDArray[Any]]:
        """Return the arrays as views of the block, without a copy."""
        if len(block) != self.size_bytes:
            raise DataError(f"parameters of {len(block)} bytes; expected {self.size_bytes}")
        return {
            field.name: np.frombuffer(
                block, field.dtype, count=field.size, offset=field.start
            ).reshape(field.shape)
            for field in self.fields
        }

    def check(self, arrays: Arrays) -> None:
        """Raise `DataError` for an array that is missing, unknown, or of another dtype or shape."""
        known = {field.name: field for field in self.fields}
        for name in [*(known.keys() - arrays.keys()), *(arrays.keys() - known.keys())]:
            raise DataError(f"{name} is {'missing' if name in known else 'not of this model'}")
        for name, field in known.items():
            array = arrays[name]
            if array.shape != field.shape or array.dtype != field.dtype:
                raise DataError(
                    f"{name} is {array.dtype}{list(array.shape)}; "
                    f"expected {field.dtype}{list(field.shape)}"
                )
