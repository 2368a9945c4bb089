"""Makes a virtual environment on top of this Python and all it has: `python3 tools/overlay.py FOLDER`.

What is installed in it goes before what this Python has. `venv --system-site-packages` is not enough: where this Python
is itself of a virtual environment, that shows the packages of the Python below.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path


def make(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
    below = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    paths = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)}, scheme="venv")
    lines = [f"import site; site.addsitedir({path!r})\n" for path in below]
    (Path(paths["purelib"]) / "overlay.pth").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
