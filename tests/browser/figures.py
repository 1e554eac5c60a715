# SPDX-License-Identifier: Apache-2.0
"""Figures of the web UI with a large fleet: paint, update and scrolling, written as a table."""

import os
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser

from tests.bench.fleet import node_name
from tests.browser.opening import Served, Tab, tab
from tests.builders import gpus, pod

RESULTS = Path(__file__).parent.parent / "results" / "page.md"
OPENED, UPDATED = 7, 20
PAINT = """new Promise(done => new PerformanceObserver(list => {
  const paint = list.getEntries().find(entry => entry.name === 'first-contentful-paint');
  if (paint) done(paint.startTime);
}).observe({type: 'paint', buffered: true}))"""
"""It may come after the load event, on a busy machine."""
LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"
SIZE = "performance.getEntriesByType('navigation')[0].encodedBodySize"
ELEMENTS = "document.getElementsByTagName('*').length"
SCROLL = """new Promise(done => {
  const took = []; let last = performance.now();
  const step = now => { took.push(now - last); last = now; scrollBy(0, 400);
    if (took.length < 40) requestAnimationFrame(step); else done(took.slice(2)); };
  requestAnimationFrame(step);
})"""
"""Frames while the page scrolls by 400 pixels each; the first two are of the beginning."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The measurements: lists of milliseconds, the number of elements, and the size of the HTML in bytes."""

    paints: list[float]
    loads: list[float]
    updates: list[float]
    frames: list[float]
    elements: int
    size_bytes: int


def measure(browser: Browser, served: Served) -> Figures:
    """Open the map several times, each time in a tab without a cache, then change nodes, then scroll."""
    paints, loads, updates = [], [], []
    for _ in range(OPENED):
        with tab(browser, served.base) as opened:
            opened.open("/")
            paints.append(opened.page.evaluate(PAINT))
            loads.append(opened.page.evaluate(LOADED))
            elements, size = opened.page.evaluate(ELEMENTS), opened.page.evaluate(SIZE)
    with tab(browser, served.base) as opened:
        opened.open("/")
        for index in range(UPDATED):
            updates.append(_update(opened, served, index))
        frames = opened.page.evaluate(SCROLL)
    return Figures(paints, loads, updates, frames, elements, size)


def _update(opened: Tab, served: Served, index: int) -> float:
    """Bind a pod, let the page ask, and return the milliseconds until its node's tile changed."""
    name = node_name(8 * index)
    before = opened.page.get_attribute(f"[id='n-{name}']", "title")
    made = pod(gpus(1), nodeName=name)
    made["metadata"] |= {"uid": f"more-{index}", "name": f"more-{index}"}
    at = time.time() * 1000
    served.change(lambda: served.service.state.put_pod({**made, "status": {"phase": "Running"}}))
    opened.ask_again()
    opened.page.wait_for_function(
        "([id, before]) => document.getElementById(id).title !== before", arg=[f"n-{name}", before]
    )
    mark = "performance.timeOrigin + performance.getEntriesByName('shown totals').at(-1).startTime"
    drawn_at: float = opened.page.evaluate(mark)
    return drawn_at - at


def write(figures: Figures, nodes: int, pods: int, version: str) -> None:
    """Write the table."""
    rows = (
        ("first contentful paint, median of several", statistics.median(figures.paints), 1000),
        ("  the slowest of those", max(figures.paints), 1000),
        ("all loaded, median", statistics.median(figures.loads), None),
        ("from a question after a change of a node to its tile, median", statistics.median(figures.updates), None),
        ("  the slowest of those", max(figures.updates), None),
        ("a frame while scrolling, median", statistics.median(figures.frames), None),
        ("  the slowest of those", max(figures.frames), None),
    )
    lines = [
        "# The page with a large fleet",
        "",
        f"`pytest tests/browser/test_large.py` wrote this: {nodes:,} nodes, {pods:,} pods, over loopback;"
        f" Chromium {version} without a GPU,",
        f"{os.cpu_count()} cores shared with the service, {platform.machine()}, Python {platform.python_version()}."
        f" {figures.elements:,} elements, {figures.size_bytes / 1e6:.1f} MB of HTML.",
        "",
        "| what | ms | wanted at most |",
        "| --- | ---: | ---: |",
        *(f"| {what} | {value:.0f} | {most or ''} |" for what, value, most in rows),
    ]
    lines += ["", "![5,000 nodes on one page](page-large.png)", ""]
    lines += ["![Every page at 390, 820 and 1,440 pixels, light and dark](page-widths.jpg)"]
    RESULTS.write_text("\n".join(lines) + "\n", "utf-8")
