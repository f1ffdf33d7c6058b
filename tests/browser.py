"""A page in a real browser."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def browser() -> Iterator[Any]:
    """Start Chromium without a display; the test is skipped where there is none."""
    sync = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium here; `.ci/run` installs it")
    with sync.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


class Opened:
    """An opened page, with all that it said, asked for, and did."""

    def __init__(self, chromium: Any, path: Path, width: int = 1280, theme: str = "light") -> None:
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        self.page = context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.on("dialog", lambda d: (self.dialogs.append(d.message), d.dismiss()))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]", timeout=20_000)

    @property
    def elsewhere(self) -> list[str]:
        """Whatever was not the page itself or a part of it."""
        return [url for url in self.requests[1:] if not url.startswith(("data:", "blob:"))]
