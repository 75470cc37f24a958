"""Parameters of a model as named arrays, laid one behind the other in one stretch of bytes.

The layout (names, types, shapes) is the model's; what travels, lies on disk or is averaged is the
stretch. Nothing in it is executed, and its size is checked before it is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Field:
    """One array of a model: its name, type and shape, and where it begins."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def end(self) -> int:
        """The byte after its last."""
        return self.start + self.size * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """The arrays of a model in their order."""

    fields: tuple[Field, ...]

    @classmethod
    def of(cls, arrays: Arrays) -> "Layout":
        """The layout of these arrays, in their order."""
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
        """Bytes of all arrays together."""
        return self.fields[-1].end if self.fields else 0

    def pack(self, arrays: Arrays) -> bytearray:
        """All arrays in one stretch; `DataError` if they are not of this layout."""
        self.check(arrays)
        whole = bytearray(self.size_bytes)
        for field, array in zip(self.unpack(whole).items(), arrays.values(), strict=True):
            field[1][...] = array
        return whole

    def unpack(self, whole: bytes | bytearray | memoryview) -> dict[str, NDArray[Any]]:
        """Arrays that look into the stretch, without a copy."""
        if len(whole) != self.size_bytes:
            raise DataError(f"parameters of {len(whole)} bytes; expected {self.size_bytes}")
        return {
            field.name: np.frombuffer(
                whole, field.dtype, count=field.size, offset=field.start
            ).reshape(field.shape)
            for field in self.fields
        }

    def check(self, arrays: Arrays) -> None:
        """`DataError` that names the first array which is missing, new, or of another form."""
        known = {field.name: field for field in self.fields}
        for name in [*(known.keys() - arrays.keys()), *(arrays.keys() - known.keys())]:
            raise DataError(f"{name} is {'missing' if name in known else 'not of this model'}")
        for name, field in known.items():
            found = arrays[name]
            if found.shape != field.shape or found.dtype != field.dtype:
                raise DataError(
                    f"{name} is {found.dtype}{list(found.shape)}; "
                    f"expected {field.dtype}{list(field.shape)}"
                )
