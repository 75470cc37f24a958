"""Virtual environments for competitors, one each, because their dependencies conflict.

Each is created on first use from a file in `requirements/`, and again when that file changes.
"""

import subprocess
import sys
import venv
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1]
REQUIREMENTS = BENCHMARKS / "requirements"
RPC = "rpc.txt"


def python(requirements: str | None) -> str:
    """The interpreter that has these packages; without a file, the one that runs now."""
    if requirements is None:
        return sys.executable
    folder = BENCHMARKS / ".venvs" / Path(requirements).stem
    interpreter, stamp = folder / "bin" / "python", folder / "installed.txt"
    wanted = (REQUIREMENTS / requirements).read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"making an environment from {requirements}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        install = [str(interpreter), "-m", "pip", "install", "--quiet", "--requirement"]
        subprocess.run([*install, str(REQUIREMENTS / requirements)], check=True, stdout=sys.stderr)
        stamp.write_text(wanted)
    return str(interpreter)


def pinned(requirements: str | None) -> list[str]:
    """The packages of a requirements file with their versions."""
    return [] if requirements is None else (REQUIREMENTS / requirements).read_text().split()
