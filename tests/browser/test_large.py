# SPDX-License-Identifier: Apache-2.0
"""The fleet map of 5,000 nodes in a real browser: its elements, and its times (tests/results/page.md)."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from app.demo.sample_fleets import demo_fleet
from app.web.routes import DENSE_FROM
from tests.bench.fleet import node_name, nodes, pods
from tests.browser.figures import RESULTS, UPDATED, measure, write
from tests.browser.opening import Served, served, tab
from tests.builders import make_service

NODES, PODS = 5_000, 20_000
LARGEST_PICTURE = 200_000
"""Largest size in bytes of a picture, since every clone of the repository has it."""
MOST_ELEMENTS = 25_000
"""Most elements of the page: about three per node; one per GPU would add 36,000."""


SKIPPED = """[...document.querySelectorAll('.tiles')]
  .filter(tiles => !tiles.firstElementChild.checkVisibility({contentVisibilityAuto: true})).length"""
"""The parts of the map that the browser does not draw before one scrolls to them: pictures would lack them."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve 5,000 nodes."""
    service = make_service(tmp_path_factory.mktemp("certs"), [])
    for document in nodes(NODES):
        service.state.put_node(document)
    for document in pods(PODS, NODES):
        service.state.put_pod(document)
    with served(service) as fleet_served:
        yield fleet_served


def test_whole_fleet_is_on_one_page_of_few_elements(browser: Browser, large: Served) -> None:
    """F132: 5,000 nodes stay smooth."""
    with tab(browser, large.base) as opened:
        opened.open("/")

        assert opened.page.evaluate("document.querySelectorAll('.tiles .t').length") == NODES
        assert opened.page.evaluate("document.getElementsByTagName('*').length") < MOST_ELEMENTS
        assert opened.complaints == []


def test_map_of_hundreds_of_nodes_is_drawn_whole(browser: Browser, large: Served) -> None:
    """F132: a picture of the whole page has all of it; only thousands of nodes are drawn as one scrolls."""
    with tab(browser, large.base) as opened:
        opened.open("/?namespace=&product=Tesla-T4")
        few = opened.page.evaluate("document.querySelectorAll('.dense .t').length"), opened.page.evaluate(SKIPPED)
        opened.open("/")

        assert few[0] > DENSE_FROM
        assert few[1] == 0
        assert opened.page.evaluate(SKIPPED) > 0


def test_change_of_one_node_of_many_is_shown(browser: Browser, large: Served) -> None:
    """F132."""
    with tab(browser, large.base) as opened:
        opened.open("/")
        large.change(lambda: large.service.state.drop_node(node_name(7)))
        opened.ask_again()
        opened.page.wait_for_selector(f"[id='n-{node_name(7)}']", state="detached")

        assert opened.complaints == []


@pytest.mark.long
def test_figures_of_a_large_fleet_are_kept(browser: Browser, large: Served) -> None:
    """F132: first paint and update as the browser measures them; no limit is asserted."""
    figures = measure(browser, large)

    write(figures, NODES, PODS, browser.version)
    assert len(figures.updates) == UPDATED


@pytest.fixture(scope="module")
def weekday(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve the sample fleet of a working day."""
    with served(make_service(tmp_path_factory.mktemp("weekday"), demo_fleet("weekday"))) as fleet_served:
        yield fleet_served


@pytest.mark.long
def test_pictures_of_the_front_page_are_kept(browser: Browser, large: Served, weekday: Served) -> None:
    """F132: README and the tour show what is served, and no picture is larger than a page may be."""
    pictures = (
        (weekday, "/", "fleet", "light"),
        (large, "/", "large", "dark"),
        (weekday, "/pending/language/distill", "pod", "light"),
    )
    for served_by, path, name, scheme in pictures:
        with tab(browser, served_by.base, color_scheme=scheme, viewport={"width": 1200, "height": 760}) as opened:
            opened.open(path)
            opened.page.screenshot(path=RESULTS.with_name(f"page-{name}.png"))

    sizes = [RESULTS.with_name(f"page-{name}.png").stat().st_size for _, _, name, _ in pictures]
    assert max(sizes) < LARGEST_PICTURE
