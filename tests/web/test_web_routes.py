# SPDX-License-Identifier: Apache-2.0
"""The routes of the web UI: well-formed, escaped, with strict headers, and clear about errors."""

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.decision_line import Decision, RecentDecisions
from app.demo.sample_fleets import demo_fleet
from app.kube.finished_pods import REJECTED
from app.server.service import Service
from app.web.api import create_web_app
from app.web.routes import WebPages, run_for_ever
from tests.api.conftest import Ask
from tests.api.test_explaining import Live
from tests.bench.fleet import nodes
from tests.builders import gpus, make_service, node_document, pod, policies, policy
from tests.kube.test_finished_pods import UNAVAILABLE, failed
from tests.usage.polls import Source, hold, polled, with_demo_usage
from tests.web.html import Reader

BROWSER = {"Accept": "text/html"}
PAGES = ["/", "/?as=table", "/nodes/h100-1", "/nodes/cpu-0", "/pending", "/pending/team-a/train-h100-0",
         "/pending/team-b/notebook-0", "/use", "/policies", "/decisions"]  # fmt: skip
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><b>"
TAGS = frozenset(
    # One word after the other, as they come in a page.
    re.split(
        " +",
        "html head meta title link script body a header p nav ul li main h1 h2 h3 form label select option button "
        "section div span i b table caption thead tbody tr th td svg path meter ol pre code textarea footer input "
        "strong time",
    )
)


def read(answer: httpx.Response, status: int = 200) -> Reader:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    return Reader(answer.text.removeprefix("<!doctype html>"))


@pytest.mark.parametrize("path", PAGES)
def test_page_is_well_formed_and_has_its_landmarks(service: Service, ask: Ask, path: str) -> None:
    """F132."""
    page = read(ask(create_web_app(service), "GET", path))

    assert page.one("html").attributes["lang"] == "en"
    assert page.one("title").text.endswith("gpu-usher")
    assert page.one("main").attributes["id"] == "main"
    assert len(page.all("h1")) == 1
    assert page.all("a")[0].attributes["href"] == "#main"
    assert {element.attributes.get("scope") for element in page.all("th")} <= {"col", "row"}
    assert {element.tag for element in page.elements} <= TAGS


def test_node_shows_its_devices_by_name_and_who_holds_them(tmp_path: Path, ask: Ask) -> None:
    """F132, F135."""
    labelless = make_service(tmp_path, demo_fleet("gpucluster"))
    cells = [cell.text for cell in read(ask(create_web_app(labelless), "GET", "/nodes/h100-1")).all("td")]
    states = [(cells[index + 1], cells[index + 2]) for index, text in enumerate(cells) if text == "gpu"]

    assert states == [("held", "pod team-b/notebook"), *[("free", "")] * 7]


@pytest.mark.parametrize("path", [*PAGES, "/nodes/none", "/static/page.css", "/static/none"])
def test_page_has_strict_security_headers(service: Service, ask: Ask, path: str) -> None:
    """F132: the Content-Security-Policy is strict, and nothing inline would need an exception."""
    answer = ask(create_web_app(service), "GET", path)

    rules = dict(rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; "))
    assert rules["default-src"] == "'none'"
    assert {rules[directive] for directive in ("script-src", "style-src", "connect-src", "img-src", "form-action")} == {
        "'self'"
    }
    assert {rules[directive] for directive in ("frame-ancestors", "base-uri")} == {"'none'"}
    assert " style=" not in answer.text
    assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", "")


def hostile(folder: Path) -> Service:
    """Make a service in which every name that other people choose is hostile."""
    node = node_document(HOSTILE, product=f"NVIDIA-{HOSTILE}", driver=None)
    node["metadata"]["labels"]["nvidia.com/mig.config.state"] = HOSTILE
    node["spec"]["taints"] = [{"key": HOSTILE, "value": HOSTILE, "effect": "NoSchedule"}]
    holder, waiting = pod(gpus(1), nodeName=HOSTILE), pod(gpus(1), annotations={"products": HOSTILE})
    holder["metadata"] |= {"name": HOSTILE, "namespace": HOSTILE, "uid": "h"}
    waiting["metadata"] |= {"name": HOSTILE, "namespace": HOSTILE, "creationTimestamp": HOSTILE}
    made = policies(policy("plain", f"priority: 1, description: {json.dumps(HOSTILE)}"))
    service = make_service(folder, [node, {**holder, "status": {"phase": "Running"}}, waiting], made)
    service.book.error = f"{HOSTILE}:1:1: {HOSTILE}"
    hostile_hold = hold(HOSTILE, idle=2, namespace=HOSTILE, node=HOSTILE)
    service.usage = polled(Source(hostile_hold, problems=(HOSTILE,)))
    return service


def test_hostile_names_are_text_and_nothing_else(tmp_path: Path, ask: Ask) -> None:
    """F132: names of nodes, pods, namespaces, labels, taints and files, and messages that quote them."""
    app = create_web_app(hostile(tmp_path))
    name = httpx.URL("http://x/").join("").copy_with(path="/" + HOSTILE.replace("/", "%2F")).raw_path.decode()
    shown = ""

    for path in (
        "/",
        "/?as=table",
        "/nodes" + name,
        "/pending",
        "/policies",
        f"/?product={HOSTILE}",
        "/use",
        "/decisions",
    ):
        answer = ask(app, "GET", path)
        page = read(answer, answer.status_code)
        shown += answer.text
        assert {element.tag for element in page.elements} <= TAGS
        assert len(page.all("script")) == 1
        assert not [key for element in page.elements for key in element.attributes if key.startswith("on")]

    assert shown.count("&lt;script&gt;") > 10


def test_pasted_hostile_manifest_is_shown_as_text(service: Service, ask: Ask) -> None:
    """F132."""
    manifest = json.dumps({"metadata": {"name": HOSTILE}, "spec": {"containers": [gpus(1, image=HOSTILE)]}})

    page = read(ask(create_web_app(service), "POST", "/dry-run", data={"pod": manifest}, headers=BROWSER))

    assert page.all("h3")[0].text == f"Pod default/{HOSTILE}"
    assert page.one("textarea").text == manifest
    assert len(page.all("script")) == 1


@pytest.mark.parametrize("key", ["product", "driver", "state", "namespace"])
def test_filter_shows_each_node_under_the_words_it_has(service: Service, ask: Ask, key: str) -> None:
    """F132: all choices together show every node that has one of them, on the map and in the table."""
    app = create_web_app(service)
    choices = [option.text for option in read(ask(app, "GET", "/")).all("option") if option.text != "all"]
    names: set[str] = set()

    for choice in choices:
        page = read(ask(app, "GET", "/", params={key: choice}))
        table = read(ask(app, "GET", "/", params={key: choice, "as": "table"}))
        rows = {link.attributes["href"].removeprefix("/nodes/") for link in table.all("a")
                if link.attributes["href"].startswith("/nodes/")}  # fmt: skip
        assert rows == page.tiles
        names |= page.tiles

    everything = {name for name, node in service.nodes.items() if node.has_gpus}
    held = {name for name in everything if service.state.allocations.bound(name)}
    assert names == (held if key == "namespace" else everything)


def test_long_table_is_shown_in_parts(tmp_path: Path, ask: Ask) -> None:
    """F132."""
    app = create_web_app(make_service(tmp_path, list(nodes(600))))

    tables = [read(ask(app, "GET", f"/?as=table&page={page}")) for page in ("1", "2", "3", "4", "x", "9" * 9)]

    assert [len(table.all("tbody")) for table in tables] == [2] * 6
    names = [
        {link.attributes["href"] for link in table.all("a") if "/nodes/" in link.attributes["href"]} for table in tables
    ]
    assert [len(hrefs) for hrefs in names] == [250, 250, 100, 100, 250, 250]
    assert len(names[0] | names[1] | names[2]) == 600


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/nodes/none", "Node none is not in the cluster"),
        ("/pending/a/none", "Pod a/none is not in the cluster"),
        ("/pending/A!/none", "Pod A!/none is not in the cluster"),
        ("/pending/team-b/busy-h100-1", "Pod team-b/busy-h100-1 is on node h100-1"),
        ("/nope", "There is no page /nope"),
    ],
    ids=["node", "pod", "odd", "running pod", "page"],
)
def test_what_is_not_there_is_named(service: Service, ask: Ask, path: str, says: str) -> None:
    """F132: to try again would not help, so that is not offered."""
    page = read(ask(create_web_app(service), "GET", path, headers=BROWSER), 404)

    assert says in page.one("main").text
    assert "Try again" not in page.one("main").text


def test_program_that_asks_for_an_unknown_route_gets_json(service: Service, ask: Ask) -> None:
    """F132."""
    assert ask(create_web_app(service), "GET", "/nope").json()["message"] == "GET /nope: no such route"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("h100-0", "/nodes/h100-0"),
        ("H200", "/nodes/h200-0"),
        ("train-large", "/pending/team-a/train-large-0"),
        ("team-b/notebook-0", "/pending/team-b/notebook-0"),
    ],
    ids=["name of a node", "part of a node", "part of a pod", "namespace and pod"],
)
def test_search_leads_to_the_only_match(service: Service, ask: Ask, text: str, address: str) -> None:
    """F132."""
    answer = ask(create_web_app(service), "GET", "/find", params={"q": text})

    assert (answer.status_code, answer.headers["location"]) == (303, address)
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("text", "says"),
    [("h100", "busy-h100-1 on h100-1"), ("zzz", "has “zzz” in its name"), ("", "Write a part"), (HOSTILE, HOSTILE)],
    ids=["several", "none", "empty", "hostile"],
)
def test_search_lists_matches_or_says_that_there_are_none(service: Service, ask: Ask, text: str, says: str) -> None:
    """F132: the text of the search is escaped as all is."""
    page = read(ask(create_web_app(service), "GET", "/find", params={"q": text}))

    assert says in page.one("main").text
    assert len(page.all("script")) == 1


def test_lists_say_when_there_is_nothing_to_list(tmp_path: Path, ask: Ask) -> None:
    """F132: on a cluster without nodes, pods, policies and decisions."""
    app = create_web_app(make_service(tmp_path, [], policies()))

    shown = {
        path: read(ask(app, "GET", path)).one("main").text for path in ("/", "/pending", "/policies", "/decisions")
    }

    assert "No node with GPUs is known" in shown["/"]
    assert "No GPU pod is pending." in shown["/pending"]
    assert "No policy is loaded." in shown["/policies"]
    assert "No decision yet." in shown["/decisions"]


def test_each_policy_shows_what_it_says(service: Service, ask: Ask) -> None:
    """F132: as YAML, without what it leaves out."""
    page = read(ask(create_web_app(service), "GET", "/policies"))

    text = "".join(page.one("pre", aria_label="The specification of policy training").texts)
    assert text.startswith("match:\n  workloadClass:\n  - training\n")
    assert "null" not in text
    assert {"#policy-training", "#policy-default"} <= {link.attributes["href"] for link in page.all("a")}


def test_pods_nodes_and_policies_are_links_where_they_are_named(service: Service, ask: Ask) -> None:
    """F132."""
    app = create_web_app(service)

    def links(path: str) -> set[str]:
        return {link.attributes["href"] for link in read(ask(app, "GET", path)).all("a")}

    assert "/pending/team-b/busy-h100-1" in links("/nodes/h100-1")
    assert {"/policies#policy-default", "/nodes/h100-1"} <= links("/pending/team-a/train-h100-0")


def test_origin_of_a_need_is_a_field_of_a_policy(service: Service, ask: Ask) -> None:
    """F132: as it is written in a policy."""
    page = read(ask(create_web_app(service), "GET", "/pending/team-a/train-h100-0"))

    assert "spec.admission.runtimeClassName" in page.one("main").text
    assert "runtime_class_name" not in page.one("main").text


@pytest.mark.parametrize("path", ["/static/", "/static/..%2fbase.html", "/static/../templates/base.html"])
def test_only_the_files_of_the_page_are_given_out(service: Service, ask: Ask, path: str) -> None:
    """F132."""
    assert ask(create_web_app(service), "GET", path).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "/explain", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("POST", "/dry-run", {"Sec-Fetch-Site": "same-site"}, 403),
        ("GET", "/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}, 403),
        ("GET", "/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ("GET", "/", {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, 200),
        ("POST", "/explain", {"Sec-Fetch-Site": "same-origin"}, 200),
        ("POST", "/explain", {}, 200),
    ],
    ids=["other site", "other port", "read", "a link", "typed", "our page", "curl"],
)
def test_other_sites_pages_get_nothing(
    service: Service, ask: Ask, method: str, path: str, headers: Mapping[str, str], status: int
) -> None:
    """F132: a page of another site in the same browser can read nothing."""
    body = {"json": pod()} if method == "POST" else {}

    assert ask(create_web_app(service), method, path, headers=dict(headers), **body).status_code == status


def test_policies_show_errors_with_their_place_and_what_matched(tmp_path: Path, ask: Ask) -> None:
    """F132."""
    made = make_service(tmp_path)
    made.book.error = "training.yaml:10:7: spec.placement.x: unknown field"
    for _ in range(3):
        made.metrics.policies_matched(["training"], "patched")

    page = read(ask(create_web_app(made), "GET", "/policies"))
    row = next(element.text for element in page.all("tr") if element.text.startswith("training"))

    assert "training.yaml:10:7: spec.placement.x: unknown field" in page.one("main").text
    assert row.endswith("3 patched")


def test_pod_page_says_what_explain_says(service: Service, ask: Ask) -> None:
    """F132, F83, F84: it has the same data as `explain -o json`."""
    app = create_web_app(service)
    reference = {"namespace": "team-a", "name": "train-h100-0"}
    explanation = ask(app, "POST", "/explain?nodes=true", json=reference).json()

    shown = read(ask(app, "GET", "/pending/team-a/train-h100-0")).one("main").text

    texts = [explanation["primary"]["message"], *explanation["needs"],
            *(step["stage"] for step in explanation["funnel"]),
            *(edit["text"] for fix in explanation["fixes"] for edit in fix["edits"]),
            *(verdict["node"] for verdict in explanation["verdicts"]),
            *(refusal["remedy"] for refusal in explanation["refused"])]  # fmt: skip
    assert [text for text in texts if " ".join(text.split()) not in shown] == []


def test_pod_page_says_how_a_pod_ended(service: Service, ask: Ask) -> None:
    """F132, F83: a pod that its kubelet refused is no pod that waits."""
    refused = failed("UnexpectedAdmissionError", REJECTED + UNAVAILABLE)

    live: Any = Live(service, refused)
    shown = read(ask(create_web_app(live), "GET", "/pending/team-a/p")).one("main").text

    for words in ("Was refused by the kubelet of n", UNAVAILABLE, "fewer free devices", "Likely cause", "Delete it"):
        assert words in shown


class Following:
    """A live page of a service whose clock stands still; `tag` is that of what it shows."""

    def __init__(self, service: Service, ask: Ask, path: str) -> None:
        self.now, self.recent = 0.0, RecentDecisions()
        self._app = create_web_app(service, WebPages(service, self.recent, clock=lambda: self.now))
        self._ask, self._path, self.tag = ask, path, ""

    def again(self) -> int:
        """Ask for the page, unless it is as it was; return the status."""
        answer = self._ask(self._app, "GET", self._path, headers={**BROWSER, "If-None-Match": f'"{self.tag}"'})
        if answer.status_code == 200:
            self.tag = read(answer).one("body").attributes["data-tag"]
        return answer.status_code


@pytest.mark.parametrize("path", ["/", "/?as=table&product=H200", "/pending", "/use", "/decisions"])
def test_live_page_is_sent_again_when_it_has_changed_or_a_minute_is_over(tmp_path: Path, ask: Ask, path: str) -> None:
    """F132, F148: nodes, waiting pods, polls of use, decisions; ages are in minutes."""
    service = with_demo_usage(make_service(tmp_path))
    page = Following(service, ask, path)
    waits = pod(gpus(99))
    waits["metadata"] |= {"name": "w", "uid": "w"}

    seen = [page.again(), page.again()]
    service.state.put_node(node_document("new", "NVIDIA-H200"))
    service.state.put_pod(waits)
    assert service.usage is not None
    asyncio.run(service.usage.poll())
    page.recent.note("filter", Decision("answered", namespace="n", pod="p"), 0)
    seen += [page.again(), page.again()]
    page.now += 60
    seen += [page.again(), page.again()]

    assert seen == [200, 304] * 3


def test_pending_page_is_sent_again_while_causes_are_looked_for(service: Service, ask: Ask) -> None:
    """F132: whoever asks has them looked for, and sees that."""
    page = Following(service, ask, "/pending")

    assert (page.again(), page.again()) == (200, 304)
    assert int(page.tag.split("-")[1]) % 2 == 1


@pytest.mark.parametrize("path", ["/nodes/h100-1", "/pending/team-a/train-h100-0", "/policies"])
def test_page_of_one_object_is_made_when_it_is_asked_for(service: Service, ask: Ask, path: str) -> None:
    """F132."""
    assert "data-tag" not in read(ask(create_web_app(service), "GET", path)).one("body").attributes


def test_bug_of_the_page_does_not_end_the_service() -> None:
    """F132: its tasks start again, and admission goes on."""
    begun = []

    async def fail() -> None:
        begun.append(1)
        if len(begun) == 3:
            raise asyncio.CancelledError
        raise ValueError("a bug")

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run_for_ever(fail, pause_seconds=0))

    assert len(begun) == 3


def test_others_have_their_turn_while_a_large_map_is_made(tmp_path: Path) -> None:
    """It is made in slices with pauses between (docs/reference/listeners.md#state)."""
    service = make_service(tmp_path, list(nodes(400)))

    async def beside() -> int:
        transport = httpx.ASGITransport(app=create_web_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            turns = 0
            task = asyncio.create_task(client.get("/"))
            while not task.done():
                await asyncio.sleep(0)
                turns += 1
            assert task.result().status_code == 200
            return turns

    assert asyncio.run(beside()) > 10
