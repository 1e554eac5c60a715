# SPDX-License-Identifier: Apache-2.0
"""The check finds every mistake in a configuration, with its line."""

from typing import Any

import pytest
import yaml

from app.schedulerconfig.verify import CHECKS, ConfigurationFinding, managed_by_scheduler
from app.schedulerconfig.write import Target, write
from app.values.errors import PolicyError
from tests.builders import knowledge
from tests.schedulerconfig.checked import verify
from tests.schedulerconfig.test_write import plan


def changed(**fields: Any) -> str:
    """Change fields of our extender's entry; None removes a field."""
    document = yaml.safe_load(write(plan(resources=("nvidia.com/gpu",))))
    extender = {**document["extenders"][0], **fields}
    document["extenders"] = [{key: value for key, value in extender.items() if value is not None}]
    return yaml.safe_dump(document, sort_keys=False)


def changed_file(**fields: Any) -> str:
    """Change fields of the whole configuration."""
    return yaml.dump({**yaml.safe_load(changed()), **fields}, Dumper=NoAliases, sort_keys=False)


def findings_of(text: str, *offered: str, nodes: int = 0) -> list[ConfigurationFinding]:
    return verify("s.yaml", text, offered, nodes)


MISTAKES: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("plain http to elsewhere", {"urlPrefix": "http://10.0.0.1/scheduler"}, "is not encrypted"),
    ("no https flag", {"urlPrefix": "https://gpu-usher.svc/scheduler", "enableHTTPS": False}, "is not encrypted"),
    ("no CA", {"tlsConfig": {"serverName": "x"}}, "nothing is verified"),
    ("no TLS settings", {"tlsConfig": None}, "nothing is verified"),
    ("plain http to a name that looks local", {"urlPrefix": "http://127.evil.com/scheduler"}, "is not encrypted"),
    ("insecure sidecar", {"enableHTTPS": False, "tlsConfig": {"insecure": True}}, "nothing is verified"),
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
    ("weight that is no number", {"weight": True}, "refuses to start"),
    ("low weight", {"weight": 1}, "in-tree scores decide"),
    (
        "resource not counted",
        {"managedResources": [{"name": "nvidia.com/gpu", "ignoredByScheduler": True}]},
        "16 GPUs fit on a node of 4",
    ),
)


@pytest.mark.parametrize(
    ("fields", "words"), [mistake[1:] for mistake in MISTAKES], ids=[mistake[0] for mistake in MISTAKES]
)
def test_mistake_is_found_with_its_place_and_a_remedy(fields: dict[str, Any], words: str) -> None:
    """P6, P8, P27, P29, F88."""
    [finding] = findings_of(changed(**fields))

    assert words in finding.message
    assert finding.where.startswith("s.yaml:")
    assert finding.remedy


def test_rows_name_every_check_and_advise_what_is_written() -> None:
    """F88: a remedy `field: value` is what write writes."""
    document = yaml.safe_load(write(plan("second", resources=("nvidia.com/gpu",), filter_answer="all", every_pod=True)))
    [gpu_pods, other_pods], [profile] = document["extenders"], document["profiles"]
    written = {"extender": gpu_pods, "gpu-pods": gpu_pods, "other-pods": other_pods, "profile": profile}
    advised = [(row.of, row.field, row.remedy.removeprefix(f"{row.field}: ")) for row in knowledge().scheduler_findings]

    assert {row.check for row in knowledge().scheduler_findings if not row.wants} == set(CHECKS)
    for of, field, value in advised:
        if of in written and value.isalnum():
            assert yaml.safe_load(value) in (written[of][field], 0), field


def test_finding_points_at_the_line() -> None:
    text = changed(ignorable=True)
    line = next(number for number, line_text in enumerate(text.splitlines(), 1) if "ignorable" in line_text)

    [finding] = findings_of(text)

    assert finding.where.startswith(f"s.yaml:{line}:")


@pytest.mark.parametrize("text", ["2s", "1s500ms", "900us", "1.5s", "0.01m"])
def test_duration_is_read_as_go_writes_it(text: str) -> None:
    """F88."""
    assert findings_of(changed(httpTimeout=text)) == []


def test_shorter_timeout_and_plain_http_to_a_sidecar_are_fine() -> None:
    assert (
        findings_of(changed(httpTimeout="1500ms", urlPrefix="http://127.0.0.1:8443/scheduler", enableHTTPS=False)) == []
    )


def test_resource_that_the_fleet_offers_and_nobody_lists_is_named() -> None:
    [finding] = findings_of(changed(), "nvidia.com/gpu", "nvidia.com/mig-1g.10gb")

    assert "nvidia.com/mig-1g.10gb not listed" in finding.message


def test_lease_of_the_clusters_scheduler_is_dangerous_for_a_second_one() -> None:
    """It would take turns with the cluster's own scheduler (docs/reference/control-plane.md#calls-of-the-scheduler)."""
    document = yaml.safe_load(changed())
    del document["leaderElection"]

    [finding] = findings_of(yaml.safe_dump(document))

    assert "the lease of the cluster's own scheduler" in finding.message


def test_lease_is_nobodys_business_where_none_is_taken() -> None:
    """F88."""
    assert findings_of(changed_file(leaderElection={"leaderElect": False})) == []


@pytest.mark.parametrize("profiles", [None, [{}], [{"schedulerName": "default-scheduler"}]])
def test_second_scheduler_that_serves_the_default_name_is_dangerous(profiles: Any) -> None:
    """F88: two schedulers would place the same pods."""
    [finding] = findings_of(changed_file(profiles=profiles))

    assert "two schedulers place the same pods" in finding.message
    assert finding.remedy == "schedulerName: gpu-usher-scheduler"


OTHER = {"urlPrefix": "https://other/x"}
BINDS = {**OTHER, "bindVerb": "bind"}
MANAGES = {**OTHER, "managedResources": [{"name": "nvidia.com/gpu"}]}


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([BINDS], None),
        ([BINDS, BINDS], "bindVerb is set in 2 extenders"),
        ([MANAGES], "nvidia.com/gpu is listed twice"),
    ],
    ids=["one binds", "two bind", "one resource in two extenders"],
)
def test_extenders_that_the_scheduler_would_not_start_with_are_found(others: list[Any], words: str | None) -> None:
    """F88: the words are those of kube-scheduler 1.36's own validation."""
    ours = yaml.safe_load(changed())["extenders"]

    messages = [finding.message for finding in findings_of(changed_file(extenders=ours + others))]

    assert len(messages) == (words is not None)
    assert all((words or "") in message and "refuses to start" in message for message in messages)


@pytest.mark.parametrize(
    ("share", "nodes", "severity"),
    [
        (0, 5000, None),
        (100, 5000, None),
        (5, 0, None),
        (4, 0, "warning"),
        (42, 1000, None),
        (41, 1000, "warning"),
        (101, 0, "danger"),
        (-1, 0, "danger"),
        ("all", 0, "danger"),
    ],
)
@pytest.mark.parametrize("place", ["file", "profile"])
def test_share_below_the_schedulers_own_sample_is_found(
    share: Any, nodes: int, severity: str | None, place: str
) -> None:
    """P5, F88 (docs/reference/control-plane.md#sampling)."""
    field = {"percentageOfNodesToScore": share}
    profile = {"schedulerName": "gpu-usher-scheduler"}
    text = changed_file(**field) if place == "file" else changed_file(profiles=[{**profile, **field}])

    assert [finding.severity for finding in findings_of(text, nodes=nodes)] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("extenders", 5),
        ("extenders", {"urlPrefix": "x"}),
        ("extenders", ["x"]),
        ("extenders", [{"tlsConfig": "x"}]),
        ("extenders", [{"managedResources": ["nvidia.com/gpu"]}]),
        ("profiles", "x"),
        ("leaderElection", []),
    ],
)
def test_field_of_another_shape_is_a_finding_not_a_fault(field: str, value: Any) -> None:
    """F88."""
    [finding] = findings_of(changed_file(**{field: value}))

    assert "got another shape" in finding.message


@pytest.mark.parametrize("text", ["", "# nothing", "a: 1\n---\nb: 2\n"], ids=["empty", "comment", "two"])
def test_anything_but_one_document_is_bad_input(text: str) -> None:
    """F88."""
    with pytest.raises(PolicyError, match="wants one KubeSchedulerConfiguration"):
        findings_of(text)


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
    [finding] = findings_of(text)

    assert words in finding.message


def test_two_entries_of_ours_are_one_too_many() -> None:
    document = yaml.safe_load(changed())
    document["extenders"] *= 2

    assert "extenders: gpu-usher is listed twice" in [
        finding.message for finding in findings_of(yaml.dump(document, Dumper=NoAliases))
    ]


class NoAliases(yaml.SafeDumper):
    """A YAML dumper that writes equal values out twice instead of using aliases."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def two_entries(target: Target = "default", **second: Any) -> str:
    """Write both entries, as --every-pod does, with fields of the second one changed."""
    document = yaml.safe_load(write(plan(target, resources=("nvidia.com/gpu",), every_pod=True)))
    document["extenders"][1].update(second)
    return yaml.dump(document, Dumper=NoAliases, sort_keys=False)


@pytest.mark.parametrize("target", ["second", "default"])
def test_entry_for_other_pods_beside_that_for_gpu_pods_is_right(target: Target) -> None:
    """F88."""
    assert verify("s.yaml", two_entries(target), ("nvidia.com/gpu",), claims=True) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ignorable": False}, "no pod is scheduled, not kube-system's and not gpu-usher's own"),
        ({"managedResources": [{"name": "amd.com/gpu"}]}, "so other pods never come here"),
        ({"filterVerb": "other"}, "a route that is not there"),
        ({"tlsConfig": None}, "nothing is verified"),
    ],
)
def test_mistake_in_the_entry_for_other_pods_is_found(fields: dict[str, Any], words: str) -> None:
    """F88."""
    [finding] = findings_of(two_entries(**fields))

    assert finding.severity == "danger"
    assert words in finding.message


def test_entry_for_other_pods_alone_leaves_gpu_pods_to_nobody() -> None:
    """F88."""
    document = yaml.safe_load(two_entries())
    del document["extenders"][0]

    assert [finding.message for finding in findings_of(yaml.safe_dump(document))] == [
        "extenders: no entry whose urlPrefix ends in /scheduler, and /other-pods leaves GPU pods to it"
    ]


def test_one_entry_for_every_pod_can_stop_the_clusters_scheduler_but_not_one_for_gpu_pods() -> None:
    """F88: such a configuration was written by --every-pod before; nothing was scheduled while no replica answered."""
    document = yaml.safe_load(write(plan("default", resources=("nvidia.com/gpu",))))
    del document["extenders"][0]["managedResources"]

    [finding] = findings_of(yaml.safe_dump(document))

    assert finding.severity == "danger"
    assert "absent: while no replica answers no pod is scheduled" in finding.message
    assert findings_of(changed(managedResources=None)) == []


def test_claims_without_a_resource_are_missed_by_managed_resources() -> None:
    """F88, F135: kube-scheduler asks only about pods that name one (pkg/scheduler/extender.go, IsInterested)."""
    [finding] = verify("s.yaml", changed(), claims=True)

    assert "pods that claim GPUs by ResourceClaims alone name none of them" in finding.message
    assert verify("s.yaml", changed(managedResources=None), claims=True) == []
    assert verify("s.yaml", changed(), claims=False) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (write(plan(resources=("nvidia.com/gpu",))), {"gpu-usher-scheduler": frozenset({"nvidia.com/gpu"})}),
        (two_entries(), {"default-scheduler": None}),
        ("kind: Pod", {}),
        ("{", {}),
        ("", {}),
        ("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nextenders: 1", {}),
    ],
)
def test_what_a_scheduler_asks_about_is_read_from_its_configuration(text: str, expected: Any) -> None:
    """F83, F88."""
    assert managed_by_scheduler(text) == expected
