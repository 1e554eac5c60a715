# SPDX-License-Identifier: Apache-2.0
"""Open pages in a browser tab that records every complaint of the console; all waits are bounded."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Response, sync_playwright

from app.server.service import Service
from tests.chromium import environment
from tests.running import Running, running

WAIT_MS = 20_000
"""Milliseconds for each wait for the browser, which takes a second at most, and ten on a busy machine."""
PICTURES = Path(__file__).parent.parent.parent / ".pytest_cache" / "screenshots"
"""The folder of the last run's pictures, which CI can keep."""
WIDTH, HEIGHT = 1280, 900


@contextmanager
def chromium(program: Path) -> Iterator[Browser]:
    """Run the browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(program), env={**os.environ, **environment(program)}, timeout=WAIT_MS
        )
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Tab:
    """One tab; `complaints` holds messages of its console and scripts, `hosts` those that it sent requests to."""

    page: Page
    base: str
    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def open(self, path: str) -> Response:
        """Go to a path of the service."""
        response = self.page.goto(self.base + path, wait_until="load")
        assert response is not None
        return response

    def ask_again(self) -> None:
        """Let the page ask at once whether anything has changed, as it does when it comes into sight."""
        self.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    def picture(self, name: str, **options: Any) -> Path:
        """Write a screenshot."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        path = PICTURES / f"{name}.png"
        self.page.screenshot(path=path, **options)
        return path


@contextmanager
def tab(browser: Browser, base: str, **options: Any) -> Iterator[Tab]:
    """Open a tab, with settings such as color_scheme."""
    context = browser.new_context(**{"viewport": {"width": WIDTH, "height": HEIGHT}, **options})
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    opened = Tab(page, base)
    page.on("console", lambda message: _note(opened, message.type, message.text))
    page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    page.on("request", lambda request: opened.hosts.add(request.url.split("/")[2]))
    try:
        yield opened
    finally:
        context.close()


def _note(opened: Tab, kind: str, text: str) -> None:
    if kind in ("error", "warning"):
        opened.complaints.append(f"{kind}: {text}")


@dataclass(frozen=True, slots=True)
class Served:
    """A running service and its clients."""

    service: Service
    clients: Running

    @property
    def base(self) -> str:
        """The address of the web UI listener."""
        return str(self.clients.people.base_url).rstrip("/")

    def change(self, call: Callable[[], object]) -> None:
        """Change the state on the event loop of the service, which is the only place where that is allowed."""
        done = threading.Event()

        def once() -> None:
            call()
            done.set()

        self.clients.loop.call_soon_threadsafe(once)
        assert done.wait(WAIT_MS / 1000)


@contextmanager
def served(service: Service) -> Iterator[Served]:
    """Run a service."""
    with running(service) as clients:
        yield Served(service, clients)
