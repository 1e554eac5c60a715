# SPDX-License-Identifier: Apache-2.0
"""Every page at the widths of a phone, a tablet and a desktop: nothing is cut off, and causes are in sight."""

import json
from base64 import b64encode
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.figures import RESULTS
from tests.browser.opening import WAIT_MS, Served, served, tab
from tests.browser.test_reading import PAGES
from tests.builders import CONTRACT, gpus, make_service, pod, review
from tests.usage.polls import with_demo_usage

PHONE, TABLET, DESKTOP = 390, 820, 1440
SHEET = RESULTS.with_name("page-widths.jpg")
LARGEST_SHEET = 500_000
"""Bytes of the picture of all pages, which every clone of the repository has."""
NARROWEST = 40
"""Pixels that a cell with words may be narrow; a column of one letter a line has 10."""
NARROW_CELLS = f"""[...document.querySelectorAll('main tbody td, main tbody th')]
  .filter(cell => /\\w{{4}}/.test(cell.innerText) && cell.getClientRects().length && cell.clientWidth < {NARROWEST})
  .map(cell => cell.innerText)"""
HIDDEN_COLUMNS = """[...document.querySelectorAll('main .wide')]
  .filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.innerText.slice(0, 60))"""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve the demo fleet after a scheduler has asked about a pod again and again, and pods have been reviewed."""
    body = json.loads((CONTRACT / "extender-filter-nodecachecapable-true.request.json").read_text("utf-8"))
    with served(with_demo_usage(make_service(tmp_path_factory.mktemp("asked")))) as fleet_served:
        for _ in range(30):
            fleet_served.clients.tls.post("/scheduler/filter", json=body)
        for amount in ("500m", 1):
            fleet_served.clients.tls.post("/mutate", json=review(pod(gpus(amount))))
        yield fleet_served


def overflow(page: Page) -> int:
    """Return the pixels by which a page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@pytest.mark.parametrize("width", [PHONE, TABLET, DESKTOP])
@pytest.mark.parametrize(("name", "path"), PAGES.items(), ids=PAGES)
def test_page_is_as_wide_as_its_window_and_so_are_its_tables(
    browser: Browser, asked: Served, name: str, path: str, width: int
) -> None:
    """F132: on a phone each row is a card; no column has a letter a line, and none is out of sight."""
    for scheme in ("light", "dark"):
        with tab(browser, asked.base, color_scheme=scheme, viewport={"width": width, "height": 844}) as opened:
            opened.open(path)
            opened.picture(f"{name}-{width}-{scheme}", full_page=True)

            assert overflow(opened.page) == 0
            assert opened.page.evaluate(NARROW_CELLS) == []
            assert opened.page.evaluate(HIDDEN_COLUMNS) == []


def test_cause_and_what_helps_are_in_sight_on_a_phone(browser: Browser, asked: Served) -> None:
    """F132, F139: without scrolling sideways, and before the pods that have it."""
    with tab(browser, asked.base, viewport={"width": PHONE, "height": 844}) as opened:
        opened.open("/pending?cause=GPUMemoryTooSmall")
        expect(opened.page.locator("#shown section")).to_have_count(1, timeout=WAIT_MS)
        helps = opened.page.get_by_text("What would help:")
        helps.wait_for()

        box = helps.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= PHONE
        assert box["y"] + box["height"] <= 844
        assert "team-b/serve-0" in opened.page.inner_text("#shown section")


def test_equal_decisions_are_one_row_that_is_renewed(browser: Browser, asked: Served) -> None:
    """F132: it says how many they are, and since when."""
    body = json.loads((CONTRACT / "extender-filter-nodecachecapable-true.request.json").read_text("utf-8"))
    with tab(browser, asked.base) as opened:
        opened.open("/decisions?verb=filter")
        before = opened.page.locator("tbody tr").count()
        asked.clients.tls.post("/scheduler/filter", json=body)
        opened.ask_again()
        opened.page.get_by_text("31 times since").wait_for()

        assert (before, opened.page.locator("tbody tr").count()) == (1, 1)
        assert opened.complaints == []


def test_decisions_are_filtered_in_place(browser: Browser, asked: Served) -> None:
    """F132: by outcome; a filter that selects nothing shows no head of a table."""
    with tab(browser, asked.base) as opened:
        opened.open("/decisions")
        opened.page.select_option("select[name=outcome]", "denied")
        opened.page.wait_for_url("**/decisions?outcome=denied")
        expect(opened.page.locator("tbody tr")).to_have_count(1, timeout=WAIT_MS)
        opened.page.select_option("select[name=verb]", "filter")
        opened.page.get_by_text("No decision that is kept is selected by this filter.").wait_for()

        assert not opened.page.is_visible("thead")


def test_pod_is_found_by_a_part_of_its_name(browser: Browser, asked: Served) -> None:
    """F132: by the field that every page has, with scripts and without."""
    for scripts in (True, False):
        with tab(browser, asked.base, java_script_enabled=scripts) as opened:
            opened.open("/policies")
            opened.page.fill("input[name=q]", "train-large")
            opened.page.press("input[name=q]", "Enter")
            opened.page.wait_for_url("**/pending/team-a/train-large-0")

            assert opened.complaints == []


@pytest.mark.long
def test_all_pages_at_three_widths_are_kept_as_one_picture(browser: Browser, asked: Served) -> None:
    """F132: a row for each width, light on top of dark."""
    rows = []
    with tab(browser, asked.base) as opened:
        opened.open("/pending")
        expect(opened.page.locator("main")).not_to_contain_text("worked out", timeout=WAIT_MS)  # nor can it be chosen
    for width, height in ((PHONE, 844), (TABLET, 1100), (DESKTOP, 900)):
        for scheme in ("light", "dark"):
            with tab(browser, asked.base, color_scheme=scheme, viewport={"width": width, "height": height}) as opened:
                rows.append(
                    "".join(f'<img width="200" src="{_picture(opened.page, asked, path)}"> ' for path in PAGES.values())
                )
    with tab(browser, asked.base, viewport={"width": 208 * len(PAGES), "height": 100}) as opened:
        opened.page.set_content(f"<body style='margin: 4px'>{'<br>'.join(rows)}")
        opened.page.screenshot(path=SHEET, full_page=True, type="jpeg", quality=45)

    assert SHEET.stat().st_size < LARGEST_SHEET


def _picture(page: Page, asked: Served, path: str) -> str:
    """Return the first screen of a page as a data URL."""
    page.goto(asked.base + path)
    return "data:image/jpeg;base64," + b64encode(page.screenshot(type="jpeg", quality=85)).decode()
