"""Names of stressors: work that competes with training for a device in an operating state.

`training` multiplies matrices and `downloading` downloads one, as in section 4.3.1 of Mays' thesis;
others are functions of the user.
"""

from typing import Final

import numpy as np

from melisma.user_code import IMPORT_PATH

TRAINING: Final = "training"
DOWNLOADING: Final = "downloading"
MATRIX_SIDE: Final = 900
"""Rows and columns of the matrices that the built-in stressors multiply and download."""


def check_stressor(name: str) -> None:
    """Raise ValueError unless this is a built-in stressor, `module:function`, or empty for none."""
    if name in ("", TRAINING, DOWNLOADING) or IMPORT_PATH.fullmatch(name):
        return
    raise ValueError(
        f"stress {name!r} is unknown; expected {TRAINING!r}, {DOWNLOADING!r}, or a function of "
        "yours as package.module:name"
    )


def stress_matrix() -> bytes:
    """Return the matrix that is downloaded: random float64 numbers, always the same ones."""
    return np.random.default_rng(0).random((MATRIX_SIDE, MATRIX_SIDE)).astype("<f8").tobytes()
