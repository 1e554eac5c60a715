# SPDX-License-Identifier: Apache-2.0
"""Every mistake that a configuration can make is found, at its line."""

from typing import Any

import pytest
import yaml

from app.schedulerconfig.verify import Finding, verify
from app.schedulerconfig.write import write
from tests.schedulerconfig.test_write import plan


def changed(**fields: Any) -> str:
    """Change fields of our extender; None takes one away."""
    document = yaml.safe_load(write(plan(resources=("nvidia.com/gpu",))))
    extender = {**document["extenders"][0], **fields}
    document["extenders"] = [{key: value for key, value in extender.items() if value is not None}]
    return yaml.safe_dump(document, sort_keys=False)


def found(text: str, *offered: str) -> list[Finding]:
    return verify("s.yaml", text, offered)


MISTAKES: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("plain http to elsewhere", {"urlPrefix": "http://10.0.0.1/scheduler"}, "is not encrypted"),
    ("no https flag", {"urlPrefix": "https://gpu-usher.svc/scheduler", "enableHTTPS": False}, "is not encrypted"),
    ("no CA", {"tlsConfig": {"serverName": "x"}}, "nothing is verified"),
    ("no TLS settings", {"tlsConfig": None}, "nothing is verified"),
    ("insecure", {"tlsConfig": {"insecure": True, "caData": "eA=="}}, "nothing is verified"),
    ("wrong path", {"urlPrefix": "https://gpu-usher.gpu-usher.svc/"}, "does not end in /scheduler"),
    ("wrong verb", {"filterVerb": "predicates"}, "a route that is not there"),
    ("no filter", {"filterVerb": None}, "no node is ever refused"),
    ("no preempt", {"preemptVerb": None}, "evicted for nothing"),
    ("bind", {"bindVerb": "bind"}, "no such route"),
    ("whole nodes", {"nodeCacheCapable": False}, "in-tree scores go wrong"),
    ("whole nodes by default", {"nodeCacheCapable": None}, "in-tree scores go wrong"),
    ("ignorable", {"ignorable": True}, "any node with a free GPU"),
    ("no timeout", {"httpTimeout": None}, "absent, which means 5s"),
    ("long timeout", {"httpTimeout": "30s"}, "got 30s"),
    ("odd timeout", {"httpTimeout": "soon"}, "got soon"),
    ("no weight", {"weight": None}, "refuses to start"),
    ("low weight", {"weight": 1}, "in-tree scores decide"),
    ("no resources", {"managedResources": None}, "every pod calls us"),
    (
        "resource not counted",
        {"managedResources": [{"name": "nvidia.com/gpu", "ignoredByScheduler": True}]},
        "16 GPUs fit on a node of 4",
    ),
)


@pytest.mark.parametrize(("fields", "words"), [each[1:] for each in MISTAKES], ids=[each[0] for each in MISTAKES])
def test_mistake_is_found_with_its_place_and_a_remedy(fields: dict[str, Any], words: str) -> None:
    """F88."""
    [finding] = found(changed(**fields))

    assert words in finding.message
    assert finding.where.startswith("s.yaml:")
    assert finding.remedy


def test_finding_points_at_the_line() -> None:
    text = changed(ignorable=True)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "ignorable" in each)

    [finding] = found(text)

    assert finding.where.startswith(f"s.yaml:{line}:")


def test_shorter_timeout_and_plain_http_to_a_sidecar_are_fine() -> None:
    assert found(changed(httpTimeout="1500ms", urlPrefix="http://127.0.0.1:8443/scheduler", enableHTTPS=False)) == []


def test_resource_that_the_fleet_offers_and_nobody_lists_is_named() -> None:
    [finding] = found(changed(), "nvidia.com/gpu", "nvidia.com/mig-1g.10gb")

    assert "nvidia.com/mig-1g.10gb not listed" in finding.message


def test_lease_of_the_clusters_scheduler_is_dangerous_for_a_second_one() -> None:
    """OPERATIONS §2.1: it would take turns with the real one."""
    document = yaml.safe_load(changed())
    del document["leaderElection"]

    [finding] = found(yaml.safe_dump(document))

    assert "the lease of the cluster's own scheduler" in finding.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: Pod", "no KubeSchedulerConfiguration"),
        ("[]", "no KubeSchedulerConfiguration"),
        ("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration", "no extender"),
    ],
    ids=["another kind", "a list", "no extenders"],
)
def test_file_without_us_is_said(text: str, words: str) -> None:
    [finding] = found(text)

    assert words in finding.message


def test_two_entries_of_ours_are_one_too_many() -> None:
    document = yaml.safe_load(changed())
    document["extenders"] *= 2

    assert "gpu-usher is listed twice" in [each.message for each in found(yaml.dump(document, Dumper=NoAliases))]


class NoAliases(yaml.SafeDumper):
    """Writes equal things out twice."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True
