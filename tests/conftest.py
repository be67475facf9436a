"""What the tests share: small runs, and the folders of their helpers on the path.

Test files are imported by their place (`--import-mode=importlib`), so that two folders may have files of the
same name, as the packages that they mirror do. A helper's name is unique.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(folder) for folder in (HERE, *sorted(HERE.rglob("*/"))) if any(folder.glob("[!_]*.py"))]

pytest_plugins = ["small_runs"]
