"""Names for array types and for empty arrays, used by the whole package."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NO_FLOATS: Floats = np.empty(0)
NO_INTS: Ints = np.empty(0, np.int64)
