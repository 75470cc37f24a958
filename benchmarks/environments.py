"""Virtual environments for the peers, so that none has to agree with another on versions.

Each is made on first use from a requirements file beside this module, and again when that file
changes.
"""

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
PEERS = "requirements.txt"


def python(requirements: str | None) -> str:
    """The interpreter that has these packages; without a file, the one that runs now."""
    if requirements is None:
        return sys.executable
    folder = HERE / ".venvs" / Path(requirements).stem
    interpreter, stamp = folder / "bin" / "python", folder / "installed.txt"
    wanted = (HERE / requirements).read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"making an environment from {requirements}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        install = [str(interpreter), "-m", "pip", "install", "--quiet", "--requirement"]
        subprocess.run([*install, str(HERE / requirements)], check=True, stdout=sys.stderr)
        stamp.write_text(wanted)
    return str(interpreter)


def pinned(requirements: str | None) -> list[str]:
    """The packages of a requirements file with their versions."""
    return [] if requirements is None else (HERE / requirements).read_text().split()
