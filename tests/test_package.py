"""What a stranger installs: the wheel and the source archive have what they should, and the README runs."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import rankrise

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive."""
    folder = tmp_path_factory.mktemp("built")
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment: it has the wheel, and sees the libraries of this one."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = ["install", "--no-index", "--no-deps", "--quiet", str(*built.glob("*.whl"))]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True)
    place = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    )
    # A folder named in a .pth file comes last on the path, and its own .pth files, such as that of an
    # editable install, are not read: this environment's rankrise stays out.
    (Path(place.stdout.strip()) / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


def output(command: list[str | Path], folder: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_archives_have_the_package_and_leave_out_records(built: Path) -> None:
    names = zipfile.ZipFile(str(*built.glob("*.whl"))).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"rankrise"}
    assert {"rankrise/py.typed", "rankrise/show/report/web/page.html"} <= set(names)
    with tarfile.open(str(*built.glob("*.tar.gz"))) as archive:
        sources = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "pyproject.toml", "rankrise/py.typed"} <= sources
    assert not [name for name in sources if name.startswith(("docs/", "mkdocs.yml", "results/", "tests/"))]


def test_the_examples_of_the_readme_run_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    watching, predicting = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    where = "import rankrise; print(rankrise.__file__)"
    assert output([environment / "python", "-c", where], tmp_path).startswith(str(environment.parent))
    output([environment / "python", "-c", watching], tmp_path)
    assert (tmp_path / "runs" / "mine" / "ranks.jsonl").stat().st_size > 0
    assert output([environment / "python", "-c", predicting], tmp_path) in readme


def test_the_command_and_the_recipes_are_installed(environment: Path, tmp_path: Path) -> None:
    assert rankrise.__version__ in output([environment / "rankrise", "--version"], tmp_path)
    listed = json.loads(output([environment / "rankrise", "recipes", "--json"], tmp_path))
    shipped = {path.stem for path in (ROOT / "rankrise" / "recipes").glob("*.yaml")}
    assert {one["name"] for one in listed} == shipped
    assert all(one["path"].startswith(str(environment.parent)) for one in listed)
