# SPDX-License-Identifier: Apache-2.0
"""The page Use: what namespaces and workloads hold and use, sorted and filtered, or why nobody knows."""

import asyncio
from pathlib import Path

import pytest

from app.cluster.usage_polling import FORGET_SECONDS
from app.demo.sample_fleets import demo_fleet
from app.server.service import Service
from app.usage.table import MOST_WORKLOADS, Hold
from app.web.api import create_web_app
from app.web.use_page import COLUMNS, MOST_ROWS
from tests.api.conftest import Ask
from tests.builders import make_service
from tests.usage.polls import Source, hold, poller_of, with_demo_usage
from tests.web.html import Reader
from tests.web.test_web_routes import read

HOLDS = (
    hold("train-0", active=0.9),
    hold("train-1", idle=2, node="h100-1"),
    hold("web-5f6d8c9b7-x2x4z", active=0.9, namespace="team-b"),
    hold("lost-0", active=None, namespace="team-c", node="gone"),
    hold("slice", hours=1, idle=1, namespace="team-b", device=("GPU-slice", "1"), profile="1g.10gb"),
)


class Polled:
    """A service whose source has these holds, with a clock of its own."""

    def __init__(self, folder: Path, *holds: Hold) -> None:
        self.seconds = 0.0
        self.service: Service = make_service(folder)
        self.source = Source(*holds)
        self.service.usage = poller_of(self.source, now=lambda: self.seconds)

    def poll(self) -> None:
        """Poll once."""
        asyncio.run(self.service.usage.poll())

    def page(self, ask: Ask, path: str = "/use") -> Reader:
        """Read the page as it is now."""
        return read(ask(create_web_app(self.service), "GET", path))


@pytest.fixture
def polled(tmp_path: Path) -> Polled:
    """Make a service that has polled HOLDS once."""
    made = Polled(tmp_path, *HOLDS)
    made.poll()
    return made


def table(page: Reader, number: int) -> list[list[str]]:
    """Read the rows of a table of the page: namespaces are the first, workloads the second."""
    starts = [index for index, element in enumerate(page.elements) if element.tag == "table"]
    start, end = [*starts, len(page.elements)][number : number + 2]
    rows: list[list[str]] = []
    for element in page.elements[start:end]:
        if element.tag == "tr":
            rows.append([])
        elif element.tag in ("td", "th"):
            rows[-1].append(element.text)
    return rows[1:]


def test_each_namespace_has_what_it_holds_uses_and_leaves_idle(polled: Polled, ask: Ask) -> None:
    """F148: units apart, those with idle ones first, and what is unknown is said to be unknown."""
    page = polled.page(ask)

    assert table(page, 0) == [
        ["team-a", "GPU", "4.0 h", "45 % 45 %", "100 %", "1.0 GiB", "2", "1", "2.0 h"],
        ["team-b", "MIG slice", "1.0 h", "0 % 0 %", "100 %", "1.0 GiB", "1", "1", "1.0 h"],
        ["team-b", "GPU", "2.0 h", "90 % 90 %", "100 %", "1.0 GiB", "1", "", ""],
        ["team-c", "GPU", "2.0 h", "unknown", "0 %", "1.0 GiB", "1", "", ""],
    ]
    assert "1 of 4 GPUs held now is idle; 1 of 1 MIG slices held now is idle" in page.one("main").text


def test_workloads_with_idle_units_come_first_with_their_nodes(polled: Polled, ask: Ask) -> None:
    """F148: a node that is known is a link, and of the nodes that with idle units comes first."""
    page = polled.page(ask)

    assert [(row[0], row[-1]) for row in table(page, 1)] == [
        ("team-a/train", "h100-1, n"), ("team-b/slice", "n"), ("team-b/web", "n"), ("team-c/lost", "gone")
    ]  # fmt: skip
    assert [link.attributes["href"] for link in page.all("a") if link.attributes["href"].startswith("/nodes/")] == [
        "/nodes/h100-1"
    ]


@pytest.mark.parametrize(
    ("sort", "first"),
    [("held", "team-a"), ("active", "team-b"), ("known", "team-a"), ("memory", "team-a"), ("now", "team-a"),
     ("idle", "team-a"), ("for", "team-a"), ("odd", "team-a")],
)  # fmt: skip
def test_tables_are_sorted_by_the_column_of_the_address(polled: Polled, ask: Ask, sort: str, first: str) -> None:
    """F148: links in the heads do it, without a script."""
    page = polled.page(ask, f"/use?sort={sort}")
    (column, *_) = {element.text for element in page.all("th", aria_sort="descending")}

    assert table(page, 0)[0][0] == first
    assert column == f"{COLUMNS.get(sort, COLUMNS['idle'])[0]} ↓"
    assert {f"/use?sort={name}" for name in COLUMNS if name not in (sort, "idle")} <= {
        link.attributes["href"] for link in page.all("a")
    }


def test_namespace_of_the_address_is_shown_alone(polled: Polled, ask: Ask) -> None:
    """F148: also while it is sorted by another column."""
    page = polled.page(ask, "/use?namespace=team-b&sort=held")

    assert {row[0] for row in table(page, 0)} == {"team-b"}
    assert {row[0] for row in table(page, 1)} == {"team-b/slice", "team-b/web"}
    assert page.one("input", name="sort").attributes["value"] == "held"
    assert "/use?namespace=team-b" in {link.attributes["href"] for link in page.all("a")}


def test_figures_are_there_as_json_for_programs(tmp_path: Path, ask: Ask) -> None:
    """F148: the rows of the page unrounded; what nobody knows is null, and a sentence says why there are no rows."""
    polled = Polled(tmp_path, *HOLDS)
    app = create_web_app(polled.service)
    before = ask(app, "GET", "/use?as=json").json()
    polled.poll()
    use = ask(app, "GET", "/use?as=json&namespace=team-c").json()

    assert (before["state"], before["end"], before["namespaces"]) == ("No GPU usage data yet.", None, [])
    assert (use["state"], use["end"] - use["start"], use["step_seconds"]) == ("", 86_400, 60)
    (row,), (workload,) = use["namespaces"], use["workloads"]
    assert (row["of"], row["held_hours"], row["active_share"], row["held_now"]) == ("team-c", 2.0, None, 1)
    assert (workload["of"], workload["nodes"]) == ("team-c/lost", ["gone"])


def test_rows_are_bounded_and_the_rest_is_counted(tmp_path: Path, ask: Ask) -> None:
    """F148, F147: of the summary 500 workloads are kept, and of each table 250 rows are shown."""
    many = MOST_WORKLOADS + 20
    polled = Polled(tmp_path, *(hold(f"w{index}x", namespace=f"n{index}") for index in range(many)))
    polled.poll()
    page = polled.page(ask)

    assert (len(table(page, 0)), len(table(page, 1))) == (MOST_ROWS, MOST_ROWS)
    assert f"{many - MOST_ROWS} more namespaces are not shown" in page.one("main").text
    assert f"{many - MOST_ROWS} more workloads are not shown" in page.one("main").text


def test_page_without_a_source_says_how_to_name_one(service: Service, ask: Ask) -> None:
    """F148."""
    page = read(ask(create_web_app(service), "GET", "/use"))

    assert "No GPU usage data." in page.one("main").text
    assert "--prometheus URL" in page.one("main").text
    assert page.all("table") == []


def test_page_says_why_nothing_is_known(tmp_path: Path, ask: Ask) -> None:
    """F148, F147: before the first answer, after a failed poll, and when the last answer is too old."""
    polled = Polled(tmp_path, *HOLDS)
    before = polled.page(ask).one("main").text
    held, polled.source.holds = polled.source.holds, None
    polled.poll()
    failed = polled.page(ask).one("main").text
    polled.source.holds = held
    polled.poll()
    polled.source.holds, polled.seconds = None, FORGET_SECONDS - 300
    polled.poll()
    late = polled.page(ask)
    polled.seconds = FORGET_SECONDS
    stale = polled.page(ask)

    assert "No GPU usage data yet." in before
    assert "No GPU usage data yet: no answer in time." in failed
    assert "The last poll failed: no answer in time. The figures are 10 minutes old." in late.one("main").text
    assert len(late.all("table")) == 2
    assert "the last answer is 15 minutes old: no answer in time." in stale.one("main").text
    assert stale.all("table") == []


@pytest.mark.parametrize("fleet", ["mixed", "weekday", "dgx", "mig", "shared"])
def test_sample_fleets_have_a_made_up_use_to_look_at(tmp_path: Path, ask: Ask, fleet: str) -> None:
    """F148: `make run` shows rows to a newcomer."""
    service = with_demo_usage(make_service(tmp_path, demo_fleet(fleet)))

    assert len(table(read(ask(create_web_app(service), "GET", "/use")), 0)) > 0
