"""Small real runs of every kind of recipe, and a browser to look at their reports with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from families import FAMILIES

from coevolve import cli
from coevolve.report.page.build import write_page
from coevolve.report.runs import find

RECIPES = Path(__file__).parents[2] / "recipes"
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
)


@pytest.fixture(scope="session")
def run_of(tmp_path_factory):
    """family -> its run directory, trained when first asked for."""
    made: dict[str, Path] = {}

    def one(family: str) -> Path:
        if family not in made:
            recipe, own = FAMILIES[family]
            made[family] = tmp_path_factory.mktemp("runs") / f"{family}-0"
            overrides = ["steps=2", "batch_size=2", "samples=2", f"output_dir={made[family]}", *own]
            assert cli.main(["train", str(RECIPES / f"{recipe}.yaml"), *overrides]) == 0
        return made[family]

    return one


@pytest.fixture(scope="session")
def page_of(run_of, tmp_path_factory):
    """family -> the report of its run."""
    made: dict[str, Path] = {}

    def one(family: str) -> Path:
        if family not in made:
            made[family] = write_page(find([run_of(family)]), tmp_path_factory.mktemp("pages") / f"{family}.html")
        return made[family]

    return one


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium."""
    driver = pytest.importorskip("playwright.sync_api", reason="needs playwright (coevolve[dev])")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on this machine")
    with driver.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def visit(browser):
    """visit(page or address, part, **settings of the context) -> a tab that has drawn; no error may have been seen."""
    contexts, wrong = [], []

    def one(page, part="findings", width=1300, height=900, **settings):
        contexts.append(browser.new_context(viewport={"width": width, "height": height}, **settings))
        tab = contexts[-1].new_page()
        tab.set_default_timeout(60_000)
        tab.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        tab.on("pageerror", lambda error: wrong.append(error.message))
        tab.on("requestfailed", lambda request: wrong.append(request.url))
        tab.goto(f"{page if isinstance(page, str) else page.as_uri()}#{part}")
        tab.wait_for_selector("html[data-ready]")
        return tab

    yield one
    for context in contexts:
        context.close()
    assert wrong == []
