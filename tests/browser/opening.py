# SPDX-License-Identifier: Apache-2.0
"""Opening pages: a browser tab that remembers every complaint of the console, and waits that are bounded."""

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
"""Bound on anything the browser is waited for; all of it takes a second at most, on a busy machine ten."""
KEPT = Path(__file__).parent.parent.parent / ".pytest_cache" / "screenshots"
"""Where pictures of the last run are, for who runs the tests elsewhere to keep."""
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
    """One tab. `complaints`: what its console and its scripts said; `asked`: the hosts it wanted anything of."""

    page: Page
    base: str
    complaints: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    def open(self, path: str) -> Response:
        """Go to a path of the service."""
        found = self.page.goto(self.base + path, wait_until="load")
        assert found is not None
        return found

    def live(self, path: str) -> None:
        """Go to a path, and wait until its events come."""
        self.open(path)
        self.page.wait_for_selector("body[data-connected]", timeout=WAIT_MS)

    def picture(self, name: str, **how: Any) -> Path:
        """Keep a picture of what is on the screen."""
        KEPT.mkdir(parents=True, exist_ok=True)
        path = KEPT / f"{name}.png"
        self.page.screenshot(path=path, **how)
        return path


@contextmanager
def tab(browser: Browser, base: str, **how: Any) -> Iterator[Tab]:
    """Open a tab, with settings of its own such as color_scheme."""
    context = browser.new_context(**{"viewport": {"width": WIDTH, "height": HEIGHT}, **how})
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    found = Tab(page, base)
    page.on("console", lambda message: _note(found, message.type, message.text))
    page.on("pageerror", lambda error: found.complaints.append(str(error)))
    page.on("request", lambda request: found.asked.add(request.url.split("/")[2]))
    try:
        yield found
    finally:
        context.close()


def _note(found: Tab, kind: str, text: str) -> None:
    if kind in ("error", "warning"):
        found.complaints.append(f"{kind}: {text}")


@dataclass(frozen=True, slots=True)
class Served:
    """A service that runs, with its clients."""

    service: Service
    clients: Running

    @property
    def base(self) -> str:
        """Give the address of the web UI listener."""
        return str(self.clients.people.base_url).rstrip("/")

    def change(self, call: Callable[[], object]) -> None:
        """Change the state where alone that may be done: on the loop of the service."""
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
