"""Virtual environments for competitors, one each, because their dependencies conflict.

Each is created on first use from a file in `requirements/`, and recreated when that file changes.
"""

import subprocess
import sys
import venv
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1]
REQUIREMENTS = BENCHMARKS / "requirements"
RPC = "rpc.txt"


def python(requirements: str | None) -> str:
    """Return the interpreter with these packages; without a file, the current interpreter."""
    if requirements is None:
        return sys.executable
    folder = BENCHMARKS / ".venvs" / Path(requirements).stem
    interpreter, stamp = folder / "bin" / "python", folder / "installed.txt"
    required = (REQUIREMENTS / requirements).read_text()
    if not stamp.exists() or stamp.read_text() != required:
        print(f"creating an environment from {requirements}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        install = [str(interpreter), "-m", "pip", "install", "--quiet", "--requirement"]
        subprocess.run([*install, str(REQUIREMENTS / requirements)], check=True, stdout=sys.stderr)
        stamp.write_text(required)
    return str(interpreter)


def pinned_packages(requirements: str | None) -> list[str]:
    """Return the packages of a requirements file with their versions."""
    return [] if requirements is None else (REQUIREMENTS / requirements).read_text().split()
