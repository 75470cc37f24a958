"""Description of the machine: processor, kernel, Python and package versions."""

import os
import platform
from importlib import metadata
from pathlib import Path


def describe(packages: list[str]) -> dict[str, object]:
    """Return the machine as a record for the JSON file, with the versions of `packages`."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory_gb": round(int(_field("/proc/meminfo", "MemTotal").split()[0]) / 1e6, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in packages},
    }


def summary(machine: dict[str, object]) -> str:
    """Return the description as one line of text."""
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, "
        f"Linux {machine['kernel']}, Python {machine['python']}"
    )


def _field(path: str, name: str) -> str:
    lines = Path(path).read_text().splitlines()
    return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(name))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
