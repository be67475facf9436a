"""A browser to open pages in, and the pages that several tests open."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from pages import write_report

from rankrise.runs import ToyRun, open

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="session")
def browser():
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
def open_page(browser):
    """open_page(path, width=1360): an open page; it may log nothing, fail in nothing and fetch nothing."""
    complaints: list[str] = []
    contexts = []

    def opened(path: Path, width: int = 1360, **options: Any):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        context.set_default_timeout(120_000)
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
        # Plots are drawn in the frame after the one in which their place gets a size.
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="session")
def toy_page(run: ToyRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([run], tmp_path_factory.mktemp("page") / "page.html")


@pytest.fixture(scope="session")
def tracked_page(tracked: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of one run."""
    return write_report(open(tracked["unit"]), tmp_path_factory.mktemp("page") / "page.html")


@pytest.fixture(scope="session")
def page_of_all(tracked: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of every run, of three studies."""
    return write_report(open(list(tracked.values())), tmp_path_factory.mktemp("page") / "all.html")
