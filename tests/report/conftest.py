"""A small run, made once for all workers, and a browser to open its page in."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock

from rankrise.toy import Run, ToySettings, open_run, run_toy

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SETTINGS = ToySettings(
    dimension=3,
    tokens=4,
    samples=30,
    alphas=("1e-2", "1e-8"),
    until=8.0,
    step=0.2,
    other_steps=(0.1,),
    full_scale="1e-4",
    full_until=8.0,
    perturbed_times=2,
    duration=2.5,
)
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A whole run, five stages long; tests that change one take a copy."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "report-run"
    with FileLock(f"{folder}.lock"):
        return run_toy(folder, SETTINGS, command="rankrise toy report-run")


@pytest.fixture
def copy_of(run: Run, tmp_path: Path) -> Any:
    """copy_of(name): the run again, under another name."""

    def copy(name: str) -> Run:
        return open_run(shutil.copytree(run.folder, tmp_path / name))

    return copy


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    """Debian's chromium, headless."""
    if CHROMIUM is None:
        wanted = "the page is tested in a real browser: apt-get install chromium, or name one in CHROMIUM"
        if os.environ.get("CI") == "true":
            pytest.fail(wanted)
        pytest.skip(wanted)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium's sandbox does not work for root, as whom containers run their tests.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()
