"""Tables of TOML files: unknown keys are errors, and numbers have ranges."""

from typing import Annotated

import msgspec
from msgspec import Meta

from melisma.fleet.arguments import RecordType

# Within these limits no product or quotient of a few numbers overflows double precision.
MIN_POSITIVE, MAX_NUMBER = 1e-30, 1e30
# Counts stay exact in double precision.
MAX_COUNT = 2**53

Positive = Annotated[float, Meta(ge=MIN_POSITIVE, le=MAX_NUMBER)]
NonNegative = Annotated[float, Meta(ge=0, le=MAX_NUMBER)]
PositiveInt = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
NonNegativeInt = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Seed = Annotated[int, Meta(ge=0)]
OpenFraction = Annotated[float, Meta(gt=0, lt=1)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
Port = Annotated[int, Meta(ge=0, le=65535)]


class Table(
    msgspec.Struct, metaclass=RecordType, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A table of a TOML file, or of settings in Python; unknown keys are errors."""
