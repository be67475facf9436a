"""What a stranger installs: the wheel and the source archive have what they should, and the README runs."""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

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
def installed(built: Path) -> Path:
    """A folder with the wheel's content, which Python finds before this repository."""
    zipfile.ZipFile(str(*built.glob("*.whl"))).extractall(built / "site")
    return built / "site"


def output(installed: Path, *words: str, folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
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


def test_the_examples_of_the_readme_run_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    watching, predicting = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    where = "import rankrise; print(rankrise.__file__)"
    assert output(installed, "-c", where, folder=tmp_path).startswith(str(installed))
    output(installed, "-c", watching, folder=tmp_path)
    assert (tmp_path / "runs" / "mine" / "ranks.jsonl").stat().st_size > 0
    assert output(installed, "-c", predicting, folder=tmp_path) in readme


def test_the_command_and_the_recipes_are_installed(installed: Path, tmp_path: Path) -> None:
    (entry_points,) = installed.glob("*.dist-info/entry_points.txt")
    assert "rankrise = rankrise.commands:main" in entry_points.read_text()
    listed = json.loads(output(installed, "-m", "rankrise", "recipes", "--json", folder=tmp_path))
    shipped = {path.stem for path in (ROOT / "rankrise" / "recipes").glob("*.yaml")}
    assert {one["name"] for one in listed} == shipped
    assert all(one["path"].startswith(str(installed)) for one in listed)
