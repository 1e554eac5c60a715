# SPDX-License-Identifier: Apache-2.0
"""The playground of the web page: manifests that are tried, and what cannot be tried."""

import json
from collections.abc import Mapping

import pytest

from app.server.service import Service
from app.web.api import create_web_app
from tests.api.conftest import Ask
from tests.builders import pod
from tests.web.test_web_routes import BROWSER, read


@pytest.mark.parametrize(
    ("sent", "status", "says"),
    [
        ({"pod": "a: &x 1\nb: *x\n"}, 400, "anchors and aliases are refused"),
        ({"pod": "{"}, 400, "not JSON"),
        ({"pod": "a: {b"}, 400, "line 2, column 1: not YAML"),
        ({"pod": ""}, 400, "got 0 objects"),
        ({"pod": "kind: Service\n"}, 400, "wants a Pod or"),
        ({"pod": "a: 1\n---\na: 2\n"}, 400, "got 2 objects, wants one"),
        ({"pod": "[1]"}, 400, "got no object"),
        ({"pod": "spec: {containers: 7}\n"}, 400, "spec.containers"),
        ({"other": "x"}, 400, "got 0 objects"),
        ({"pod": "x" * 70_000}, 400, "wants at most 65536"),
        ({"pod": "x" * 300_000}, 413, "larger than"),
    ],
    ids=[
        "aliases",
        "half",
        "half-YAML",
        "nothing",
        "Service",
        "two",
        "list",
        "malformed",
        "no-pod",
        "long",
        "too-long",
    ],
)
def test_manifest_that_cannot_be_tried_is_answered_with_why(
    service: Service, ask: Ask, sent: Mapping[str, str], status: int, says: str
) -> None:
    """F132, F85."""
    page = read(ask(create_web_app(service), "POST", "/dry-run", data=dict(sent), headers=BROWSER), status)

    assert says in page.one("main").text


def test_workload_can_be_tried_too(service: Service, ask: Ask) -> None:
    """F132, F85."""
    manifest = (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d, namespace: team-a}\nspec:\n  template:\n"
        "    spec:\n      containers:\n      - {name: m, resources: {requests: {nvidia.com/gpu: 1}}}\n"
    )

    page = read(ask(create_web_app(service), "POST", "/dry-run", data={"pod": manifest}, headers=BROWSER))

    assert page.all("h3")[0].text == "Deployment team-a/d"
    assert "+            nvidia.com/gpu: 1" in "".join(page.one("pre", aria_label="What changes").texts)


def test_client_that_is_no_browser_still_gets_json(service: Service, ask: Ask) -> None:
    """F85: curl labels any body as a form."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}

    answer = ask(create_web_app(service), "POST", "/dry-run", content=json.dumps(pod()), headers=form)

    assert answer.json()["allowed"] is True
