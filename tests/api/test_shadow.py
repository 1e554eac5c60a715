# SPDX-License-Identifier: Apache-2.0
"""Shadow mode: everything is allowed, and the real verdict goes to the log and the metrics (F137)."""

import json
from pathlib import Path

import pytest

from app.server.service import Service
from tests.api.client import post, reviewed
from tests.builders import gpus, make_service, node_document, pod, review


@pytest.fixture
def shadow(tmp_path: Path) -> Service:
    return make_service(tmp_path, [node_document("right"), node_document("wrong", "Tesla-T4")], shadow=True)


@pytest.mark.parametrize("document", [pod(), pod(gpus("500m")), pod(gpus(1), annotations={"cuda": "new"})])
def test_every_pod_is_let_in_unchanged(shadow: Service, document: dict[str, object]) -> None:
    """F137."""
    for verb in ("mutate", "validate"):
        assert reviewed(review(document), verb, shadow) == {"uid": "r-1", "allowed": True}


def test_every_node_is_let_through_and_none_is_preferred(shadow: Service) -> None:
    """F137: names are returned in names mode, nodes in full-node mode, and victims as given."""
    document = pod(annotations={"products": "H100"})
    names = {"Pod": document, "NodeNames": ["wrong", "right", "unknown"]}
    nodes = {"Pod": document, "Nodes": {"items": [node_document("wrong", "Tesla-T4"), node_document("right")]}}
    victims = {"wrong": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}}

    by_name = post("/scheduler/filter", json.dumps(names).encode(), shadow).json()
    full = post("/scheduler/filter", json.dumps(nodes).encode(), shadow).json()
    scores = post("/scheduler/prioritize", json.dumps(names).encode(), shadow).json()
    spared = post(
        "/scheduler/preempt", json.dumps({"Pod": document, "NodeNameToMetaVictims": victims}).encode(), shadow
    ).json()

    assert by_name == {
        "NodeNames": names["NodeNames"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }
    assert nodes["Nodes"]["items"] == full["Nodes"]["items"]
    assert {score["Score"] for score in scores} == {0}
    assert victims == spared["NodeNameToMetaVictims"]


def test_log_has_the_real_verdict(shadow: Service, caplog: pytest.LogCaptureFixture) -> None:
    """F137."""
    caplog.set_level("INFO", "gpu-usher")

    post("/mutate", json.dumps(review(pod(gpus("500m")))).encode(), shadow)

    logged = [record.__dict__["fields"] for record in caplog.records if record.getMessage() == "mutate"]
    assert [line["reasons"] for line in logged] == [{"QuantityFractional": 1}]
