"""Names of Python 3.11 that this package also needs on Python 3.10, the oldest one on devices."""

import sys

if sys.version_info >= (3, 11):
    from asyncio import timeout
    from enum import StrEnum

    import tomllib

    # Do not import modules from the current folder.
    RUN_MODULE = ("-P", "-m")
else:
    import asyncio
    from collections.abc import AsyncIterator
    from contextlib import asynccontextmanager
    from enum import Enum

    import async_timeout
    import tomli as tomllib

    # Without -P, the first entry of sys.path is the current folder.
    RUN_MODULE = (
        "-c",
        """import sys; sys.path.pop(0); from runpy import run_module
run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)""",
    )

    @asynccontextmanager
    async def timeout(delay_s: float | None) -> AsyncIterator[None]:
        """Raise `TimeoutError` if the context takes longer than `delay_s`."""
        try:
            async with async_timeout.timeout(delay_s):
                yield
        except asyncio.TimeoutError:
            # Another class than TimeoutError before Python 3.11.
            raise TimeoutError from None

    class StrEnum(str, Enum):
        """An enumeration whose members are strings, also when they are formatted."""

        __str__ = str.__str__


__all__ = ["RUN_MODULE", "StrEnum", "timeout", "tomllib"]
