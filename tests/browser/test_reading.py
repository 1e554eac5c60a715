# SPDX-License-Identifier: Apache-2.0
"""Every page in a real browser: no complaint of the console, accessible to everyone, and from our own server alone."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from tests.browser.opening import Served, tab

PAGES = {
    "fleet": "/",
    "fleet-table": "/?as=table",
    "node": "/nodes/h100-1",
    "pending": "/pending",
    "pod": "/pending/team-a/train-h100-0",
    "use": "/use",
    "policies": "/policies",
    "decisions": "/decisions",
    "find": "/find?q=h100",
}
TIMES = r"\d\d:\d\d:\d\d|the last (\d+ )?minutes?|\d+ (min|h|s)\b"
"""What a page says of the time, which may pass between two loads."""
each_page = pytest.mark.parametrize(("name", "path"), PAGES.items(), ids=PAGES)


@each_page
def test_page_brings_no_complaint_of_the_console_and_asks_no_other_host(
    browser: Browser, demo: Served, name: str, path: str
) -> None:
    """F132: the strict Content-Security-Policy holds, since a breach of it is a complaint."""
    with tab(browser, demo.base) as opened:
        opened.open(path)
        opened.picture(f"{name}-light", full_page=True)

        assert opened.complaints == []
        assert opened.hosts == {demo.base.removeprefix("http://")}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@each_page
def test_page_has_no_accessibility_violation(browser: Browser, demo: Served, scheme: str, name: str, path: str) -> None:
    """F132: axe-core runs all its rules in both colour schemes."""
    with tab(browser, demo.base, color_scheme=scheme) as opened:
        opened.open(path)
        if scheme == "dark":
            opened.picture(f"{name}-dark", full_page=True)

        results = Axe().run(opened.page)

    assert results.violations_count == 0, results.generate_report()


@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
def test_page_reads_the_same_without_scripts(browser: Browser, demo: Served, path: str) -> None:
    """F132: reading needs no JavaScript."""
    texts = []
    for scripts in (True, False):
        with tab(browser, demo.base, java_script_enabled=scripts) as opened:
            opened.open(path)
            texts.append(re.sub(TIMES, "", opened.page.inner_text("main")))

    assert texts[0] == texts[1]
    assert len(texts[0]) > 60


@each_page
def test_page_prints_without_its_controls(browser: Browser, demo: Served, name: str, path: str) -> None:
    """F132: the print style hides them."""
    with tab(browser, demo.base) as opened:
        opened.open(path)
        opened.page.emulate_media(media="print")
        opened.picture(f"{name}-print", full_page=True)

        assert not opened.page.is_visible("nav[aria-label=Pages]")
        assert not opened.page.is_visible("button")
        assert opened.page.is_visible("h1")


def test_every_page_is_reached_by_keyboard_alone(browser: Browser, demo: Served) -> None:
    """F132: the skip link comes first, then the pages; the whole map is one stop, and arrow keys move in it."""
    with tab(browser, demo.base) as opened:
        opened.open("/")
        opened.page.wait_for_selector(".t[tabindex='0']")
        stops = []
        for _ in range(30):
            opened.page.keyboard.press("Tab")
            stops.append(opened.page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
            if stops[-1].startswith("n-"):
                break
        opened.page.keyboard.press("ArrowRight")
        beside = opened.page.evaluate("document.activeElement.id")
        visible = opened.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        opened.page.keyboard.press("Enter")
        opened.page.wait_for_url("**/nodes/*")

        assert stops[0] == "Skip to the content"
        assert stops[1:6] == ["Fleet", "Why Pending", "Use", "Policies", "Decisions"]
        assert (stops[-1], beside) == ("n-a10-0", "n-a10-1")
        assert visible == "solid"
        assert opened.page.url.endswith("/nodes/a10-1")


def test_colour_is_never_alone(browser: Browser, demo: Served) -> None:
    """F132: cells of each kind differ in their pattern, and text says the state of a node."""
    with tab(browser, demo.base) as opened:
        opened.open("/")
        patterns = opened.page.evaluate(
            "['u', 'f', 's', 'x', 'g'].map(kind => getComputedStyle(document.querySelector(`.legend i.${kind}`)))"
            ".map(style => (style.backgroundImage + style.borderStyle).replace(/(rgb|color)\\([^)]*\\)/g, ''))"
        )
        words = opened.page.get_attribute("#n-a100-upgrading-0", "title") or ""

    assert len(set(patterns)) == len(patterns)
    assert "driver upgrading" in words
