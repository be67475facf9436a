"""Small runs, made once for all workers, and a browser to open their pages in."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock
from pages import Open
from tracked_runs import train

from rankrise import watch
from rankrise.runs import ToyRun, keep_stages, open_toy
from rankrise.toy import ToySettings, run_toy

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

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


TRACKED: dict[str, dict[str, Any]] = {
    "unit": {},
    "again": {"seed": 1},
    "small": {"scale": 0.1},
    "hard": {"data": "cifar100", "symbols": 16, "seed": 2},
    "wander": {"data": None, "wander": True},
}


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def run(shared: Path) -> ToyRun:
    """A whole run, five stages long; tests that change one take a copy."""
    folder = shared / "report-run"
    with FileLock(f"{folder}.lock"):
        return run_toy(folder, SETTINGS, command="rankrise toy report-run")


@pytest.fixture(scope="session")
def tracked(shared: Path) -> dict[str, Path]:
    """Trained networks by what is special about them; tests that change one take a copy."""
    folder = shared / "tracked"
    with FileLock(f"{folder}.lock"):
        for name, settings in TRACKED.items():
            if not (folder / name / "stages.json").is_file():
                keep_stages(watch.load(train(folder / name, **settings)))
    return {name: folder / name for name in TRACKED}


@pytest.fixture
def copy_of(run: ToyRun, tmp_path: Path) -> Any:
    """copy_of(name): the run again, under another name."""

    def copy(name: str) -> ToyRun:
        return open_toy(shutil.copytree(run.folder, tmp_path / name))

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


@pytest.fixture
def open_page(browser: "Browser") -> "Iterator[Open]":
    """open_page(path, width=1360): a page, open; nothing may go wrong in it or be fetched by it."""
    complaints: list[str] = []
    contexts = []

    def opened(path: Path, width: int = 1360, **options: Any) -> "Page":
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on(
            "request",
            lambda request: complaints.append(request.url) if request.url != path.as_uri() else None,
        )
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
