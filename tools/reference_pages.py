"""Write every reference page that comes from a table: ``make docs``.

Runs the page writers beside it (``*_reference.py``), each a script of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Run each writer; return the first failure's status."""
    for script in sorted(Path(__file__).resolve().parent.glob("*_reference.py")):
        print(script.name)
        status = subprocess.run([sys.executable, str(script)], check=False).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
