# SPDX-License-Identifier: Apache-2.0
"""The page while things change: filters, tiles, waiting pods and decisions are updated in place without a reload."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from app.server.service import Service
from tests.browser.opening import WAIT_MS, Served, served, tab
from tests.builders import CONTRACT, gpus, make_service, node_document, pod, review
from tests.usage.polls import with_demo_usage


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Served]:
    """Serve a demo fleet that the test may change."""
    with served(make_service(tmp_path)) as fleet_served:
        yield fleet_served


def bound(service: Service, name: str, node: str, amount: int, namespace: str = "default") -> None:
    """Bind a pod to a node."""
    made = pod(gpus(amount), nodeName=node)
    made["metadata"] |= {"uid": name, "name": name, "namespace": namespace}
    service.state.put_pod({**made, "status": {"phase": "Running"}})


def test_filter_shows_what_it_says_with_and_without_scripts(browser: Browser, demo: Served) -> None:
    """F132: filters are GET parameters; scripts apply them in place, and change the address."""
    for scripts in (True, False):
        with tab(browser, demo.base, java_script_enabled=scripts) as opened:
            opened.open("/")
            opened.page.select_option("select[name=product]", "H100-80GB-HBM3")
            if not scripts:
                opened.page.click("form.filter button")
            opened.page.wait_for_url("**/?product=H100-80GB-HBM3*", timeout=WAIT_MS)
            expect(opened.page.locator(".tiles .t")).to_have_count(6, timeout=WAIT_MS)

            names = opened.page.eval_on_selector_all(".tiles .t b", "all => all.map(element => element.textContent)")

            assert set(names) == {"h100-0", "h100-1", "h100-ghost-0", "h100-mig-failed", "h100-mig-pending",
                                  "h100-mig-success"}  # fmt: skip
            assert opened.complaints == []


@pytest.mark.parametrize(
    ("query", "nodes"),
    [
        ("driver=470.57.02", {"a100-old-0"}),
        ("state=driver+upgrading", {"a100-upgrading-0"}),
        ("product=A10&namespace=team-b", {"a10-0", "a10-shared-0"}),
        ("product=%3Cscript%3E", set()),
    ],
    ids=["driver", "state", "product and namespace", "nothing"],
)
def test_each_filter_is_an_address(browser: Browser, demo: Served, query: str, nodes: set[str]) -> None:
    """F132: an address that is kept, or sent to another person, shows the same."""
    with tab(browser, demo.base) as opened:
        opened.open(f"/?{query}")

        shown = opened.page.eval_on_selector_all(".tiles .t", "all => all.map(element => element.id.slice(2))")

        assert set(shown) == nodes


def test_tile_changes_as_its_node_does(browser: Browser, own: Served) -> None:
    """F132: by itself, within seconds; the focus stays where it was."""
    with tab(browser, own.base) as opened:
        opened.open("/")
        opened.page.focus("#n-h200-0")
        own.change(lambda: bound(own.service, "new", "h200-0", 5))
        opened.page.wait_for_selector("#n-h200-0[title*='5 of 8 used']")
        cells = opened.page.eval_on_selector_all("#n-h200-0 i", "all => all.map(element => element.className)")

        assert cells == ["u n5 w8", "f n3 w8"]
        assert opened.page.evaluate("document.activeElement.id") == "n-h200-0"
        assert opened.page.locator(".t[tabindex='0']").count() == 1
        assert opened.complaints == []


def test_node_that_comes_and_goes_is_drawn_and_removed(browser: Browser, own: Served) -> None:
    """F132."""
    with tab(browser, own.base) as opened:
        opened.open("/")
        own.change(lambda: own.service.state.put_node(node_document("brand-new-0")))
        opened.ask_again()
        opened.page.wait_for_selector("#n-brand-new-0")
        own.change(lambda: own.service.state.drop_node("brand-new-0"))
        opened.ask_again()
        opened.page.wait_for_selector("#n-brand-new-0", state="detached")

        assert opened.page.is_visible("#n-h100-0")
        assert opened.complaints == []


def test_totals_follow_the_fleet(browser: Browser, own: Served) -> None:
    """F132."""
    with tab(browser, own.base) as opened:
        opened.open("/")
        own.change(lambda: bound(own.service, "big", "h200-0", 8))
        opened.ask_again()
        row = opened.page.locator("#totals tr", has=opened.page.get_by_role("rowheader", name="H200"))
        row.get_by_text("100 %").wait_for()

        assert "0" in row.inner_text()


def test_page_that_is_paused_shows_nothing_new_until_it_goes_on(browser: Browser, own: Served) -> None:
    """F132: by WCAG 2.2.2, what moves by itself can be stopped."""
    with tab(browser, own.base) as opened:
        opened.open("/")
        opened.page.click("#pause")
        own.change(lambda: bound(own.service, "one", "h200-0", 1))
        opened.ask_again()
        before = opened.page.get_attribute("#n-h200-0", "title")
        opened.page.click("#pause")
        opened.page.wait_for_selector("#n-h200-0[title*='1 of 8 used']")

        assert before is not None
        assert "0 of 8 used" in before


def test_decision_comes_in_while_one_looks_and_others_are_filtered(browser: Browser, own: Served) -> None:
    """F132: new decisions come by themselves, filtered by reason."""
    body = json.loads((CONTRACT / "extender-filter-nodecachecapable-true.request.json").read_text("utf-8"))
    with tab(browser, own.base) as opened:
        opened.open("/decisions?reason=QuantityFractional")
        own.clients.tls.post("/scheduler/filter", json=body)
        own.clients.tls.post("/mutate", json=review(pod(gpus("500m"))))
        opened.ask_again()
        opened.page.wait_for_selector("tbody tr")

        rows = opened.page.eval_on_selector_all("tbody tr", "all => all.map(element => element.innerText)")

        assert len(rows) == 1
        assert "QuantityFractional" in rows[0]
        assert "team-a" in rows[0]
        assert opened.complaints == []


def test_cause_of_a_waiting_pod_comes_by_itself(browser: Browser, own: Served) -> None:
    """F132: nothing waits for it; the page shows that it is being computed."""
    with tab(browser, own.base) as opened:
        opened.open("/pending")
        opened.page.get_by_text("RequestExceedsNode, the main reason").wait_for()
        opened.page.locator("select[name=cause] option", has_text="RequestExceedsNode").wait_for(state="attached")
        opened.page.get_by_role("link", name="team-a/train-large-0").click()
        opened.page.wait_for_url("**/pending/team-a/train-large-0")

        assert "ask for 8 nvidia.com/gpu instead of 16" in opened.page.inner_text("main")


def test_page_that_another_process_answers_is_loaded_anew(browser: Browser, own: Served) -> None:
    """F132: its script and style may be of another release."""
    with tab(browser, own.base) as opened:
        opened.open("/")
        opened.page.evaluate("document.body.dataset.tag = 'another-1-1'; window.old = true")
        with opened.page.expect_navigation():
            opened.ask_again()

        assert opened.page.evaluate("window.old") is None


def test_pasted_pod_is_tried_in_place(browser: Browser, demo: Served) -> None:
    """F132: this is the playground, and only /dry-run is posted to."""
    manifest = "spec:\n  containers:\n  - name: m\n    resources: {requests: {nvidia.com/gpu: 1}}\n"
    for scripts in (True, False):
        with tab(browser, demo.base, java_script_enabled=scripts) as opened:
            opened.open("/policies")
            opened.page.fill("#pod", manifest)
            opened.page.click("#playground button")
            opened.page.wait_for_selector("#result pre .added")

            assert "+      limits:" in opened.page.inner_text("#result pre")
            assert opened.complaints == []


def test_answer_that_comes_after_a_later_one_is_not_shown(browser: Browser, own: Served) -> None:
    """F132, F148: the one that was asked for first is older than the change."""
    with_demo_usage(own.service)
    with tab(browser, own.base) as opened:
        opened.open("/use")
        poll(own)
        held: list[Route] = []
        opened.page.route("**/use", lambda route: route.continue_() if held else held.append(route))
        with opened.page.expect_request("**/use"):
            opened.ask_again()
        for _ in range(1000):  # each turn dispatches what the browser has told
            if not held:
                opened.page.evaluate("1")
        older = held[0].fetch()
        own.change(lambda: bound(own.service, "new", "h200-0", 3, "brand-new"))
        poll(own)
        opened.ask_again()
        opened.page.get_by_role("rowheader", name="brand-new", exact=True).wait_for()
        held[0].fulfill(response=older)
        opened.ask_again()

        assert "brand-new" not in older.text()
        assert opened.page.get_by_role("rowheader", name="brand-new", exact=True).is_visible()
        assert opened.complaints == []


def poll(own: Served) -> None:
    """Poll the use of GPUs once, on the event loop of the service."""
    usage = own.service.usage
    assert usage is not None
    asyncio.run_coroutine_threadsafe(usage.poll(), own.clients.loop).result(WAIT_MS / 1000)
