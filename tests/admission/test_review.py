# SPDX-License-Identifier: Apache-2.0
"""One review: what it records, what it warns of, which pods are exempt, and that a second one changes nothing (F23)."""

import json
from typing import Any

import pytest

from app.admission.json_patch import apply
from app.admission.review import ReviewResult, mutate, validate
from app.admission.reviewed_pod import MOST_WARNINGS, WARNING_LIMIT
from app.kube.pods import DECISION
from app.policy.compiled import PolicySet
from app.values.errors import BadInput
from tests.builders import container, fleet, gpus, node, pod, policies, policy, setting, shipped

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
TAINTS = [
    [
        {"key": GPU, "value": "present", "effect": "NoSchedule"},
        {"key": "dedicated", "value": "a", "effect": "NoSchedule"},
    ],
    [{"key": GPU, "value": "small", "effect": "NoExecute"}],
    [{"key": "sku", "value": "gpu", "effect": "NoSchedule"}],
]
NODES = [
    node(taints=TAINTS[0]),
    node(product="NVIDIA-A100-SXM4-80GB", taints=TAINTS[1], offers={GPU: 1}),
    node(product="NVIDIA-A100-SXM4-80GB-SHARED", taints=TAINTS[2]),
    node(product="NVIDIA-A100-SXM4-80GB", offers={SLICE: 7}),
]
FLEET = fleet(*NODES, classes=["nvidia"])


def admit(document: dict[str, Any], policy_set: PolicySet | None = None, namespace: str = "team-a") -> ReviewResult:
    """Mutate a Pod where a mixed fleet is known."""
    return mutate(document, namespace, {}, setting(policy_set, FLEET))


def record(document: dict[str, Any]) -> dict[str, Any]:
    """Read the decision annotation after admission."""
    after = apply(document, admit(document).operations)
    annotation: dict[str, Any] = json.loads(after["metadata"]["annotations"][DECISION])
    return annotation


def test_decision_annotation_holds_what_was_done_and_by_which_policies() -> None:
    annotation = record(pod(container(None, {GPU: "2"})))

    assert sorted(annotation) == ["actions", "hash", "of", "policies", "v"]
    assert annotation["policies"] == ["default"]
    assert shipped().hash.startswith(annotation["hash"])
    assert any("limits set to 2" in action for action in annotation["actions"])
    assert any("runtimeClassName set to nvidia" in action for action in annotation["actions"])


@pytest.mark.parametrize(
    ("products", "warned"),
    [
        pytest.param("QQQQ-7777", [], id="a product newer than our table"),
        pytest.param("!QQQQ-7777", [], id="excluded"),
        pytest.param("QQQQ-*", [], id="by a glob"),
        pytest.param("QQQQ-7778", ["unknown GPU product QQQQ-7778"], id="another"),
    ],
)
def test_product_that_a_node_carries_is_not_called_unknown(products: str, warned: list[str]) -> None:
    """F25, P3: the reviewing replica knows the labels of the nodes."""
    document = pod(gpus(1), annotations={"products": products})
    known = fleet(*NODES, node(product="NVIDIA-QQQQ-7777-SHARED"), classes=["nvidia"])

    result = mutate(document, "team-a", {}, setting(None, known))

    assert warned == [warning for warning in result.warnings if warning.startswith("unknown GPU product")]
    assert any(warning.startswith("unknown GPU product") for warning in admit(document).warnings)


def test_decision_is_made_of_the_pod_alone() -> None:
    one, same, others = record(pod(gpus(1))), record(pod(gpus(1))), (pod(gpus(2)), pod(gpus(1, SLICE)))

    assert one == same
    assert all(one["of"] != record(other)["of"] for other in others)


@pytest.mark.parametrize("forged", ["", "{", "[1]", '{"v": 1}', '{"v":1,"of":"0"}', "[" * 100_000])
def test_decision_that_a_user_wrote_is_rewritten_with_a_warning(forged: str) -> None:
    document = pod(annotations={"decision": forged})
    expected = record(pod())

    verdict = admit(document)

    assert expected == record(document)
    assert any(DECISION in warning for warning in verdict.warnings)


def test_decision_of_an_earlier_call_is_left_alone_without_a_warning() -> None:
    document = pod()
    after = apply(document, admit(document).operations)

    again = admit(after)

    assert not again.operations
    assert not again.warnings


FIELDS: dict[str, Any] = {"f:metadata": {"f:annotations": {".": {}, "f:gpu-usher.io/decision": {}}}}


def reinvoked_pod(written_by_user: bool) -> dict[str, Any]:
    """Return a pod with a record of one action, to which another webhook has then added a container."""
    first: dict[str, Any] = apply(pod(container(None, {GPU: "1"})), admit(pod(container(None, {GPU: "1"}))).operations)
    managed = [{"manager": "kubectl", "operation": "Update", "fieldsV1": FIELDS if written_by_user else {"f:spec": {}}}]
    first["metadata"]["managedFields"] = managed
    first["spec"]["containers"].append({**container(None, {GPU: "1"}), "name": "added"})
    return first


def test_record_of_an_earlier_call_about_the_same_request_is_kept_and_nobody_is_accused() -> None:
    """F25: on reinvocation, managedFields do not list what a webhook's patch has added."""
    verdict = admit(reinvoked_pod(written_by_user=False))

    assert not any(DECISION in warning for warning in verdict.warnings)
    done = "nvidia.com/gpu limits set to 1 as in requests"
    assert {f"main: {done}", f"added: {done}"} <= set(record(reinvoked_pod(written_by_user=False))["actions"])


def test_record_that_the_requester_wrote_is_never_kept_however_well_made() -> None:
    """F15: the record was copied from another pod and is listed in managedFields."""
    verdict = admit(reinvoked_pod(written_by_user=True))

    assert any(DECISION in warning for warning in verdict.warnings)
    assert not any(action.startswith("main: ") for action in record(reinvoked_pod(written_by_user=True))["actions"])


@pytest.mark.parametrize(
    ("namespace", "labels", "concerned"),
    [
        ("team-a", {}, True),
        ("team-a", {"gpu-usher.io/infrastructure": "true"}, False),
        ("team-a", {"gpu-usher.io/ignore": "true"}, False),
        ("team-a", {"gpu-usher.io/infrastructure": "false"}, True),
        *((name, {}, False) for name in ("gpu-operator", "nvidia-gpu-operator", "nvidia-device-plugin", "gpu-usher")),
        *((name, {}, False) for name in ("nvidia-dra-driver-gpu", "kube-system", "kube-public")),
        *((name, {}, True) for name in ("gpu-operators", "my-kube-system", "kube", "default")),
    ],
)
def test_infrastructure_is_exempt_by_its_namespace(namespace: str, labels: dict[str, str], concerned: bool) -> None:
    document = pod(gpus("500m"))

    verdicts = [review(document, namespace, labels, setting()) for review in (mutate, validate)]

    assert [concerned] * 2 == [verdict.concerned for verdict in verdicts]
    assert [not concerned] * 2 == [verdict.allowed for verdict in verdicts]


@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_pod_never_exempts_itself(kind: str) -> None:
    document = pod(gpus("500m"))
    document["metadata"][kind] = {"gpu-usher.io/infrastructure": "true", "gpu-usher.io/ignore": "true"}

    assert not admit(document).allowed


@pytest.mark.parametrize("document", [pod(container({"cpu": "1"})), pod(gpus(0), annotations={"cuda": "x"}), {}])
def test_cpu_pod_is_left_untouched(document: dict[str, Any]) -> None:
    assert ReviewResult(concerned=False) == admit(document)


def test_denial_names_everything_that_is_wrong() -> None:
    wrong = pod(gpus("500m"), gpus(-1), annotations={"cuda": "new", "gpu-memory": "lots", "sharing": "Shared"})
    strict = policies(
        policy("a", "admission: {extendedResources: {fractional: Deny}}, placement: {sharing: Exclusive}"),
        policy("b", "placement: {products: {allow: [L4], deny: [L4]}}"),
    )
    expected = ["InvalidAnnotation"] * 2 + ["NoProductLeft", "PolicyConflict", "QuantityFractional", "QuantityNegative"]

    verdict = admit(wrong, strict)

    assert expected == sorted(reason.code.name for reason in verdict.reasons)
    assert not verdict.operations


MESSY = pod(
    container(None, {GPU: "1"}) | {"name": "tab\tand\nline"},
    container({GPU: "2"}, {GPU: "1"}) | {"name": "x" * 253},
    container(None, {SLICE: "1"}) | {"name": "ü" * 200},
    annotations={"line\nbreak": "", "x" * 200: "", "products": "L40SS, H1000", "decision": "mine"},
)


def test_warnings_are_few_short_and_on_one_line() -> None:
    verdict = admit(MESSY)

    assert len(verdict.warnings) == MOST_WARNINGS
    assert max(map(len, verdict.warnings)) <= WARNING_LIMIT
    assert all(warning.isprintable() and warning == warning.strip() for warning in verdict.warnings)
    assert verdict.warnings[-1].startswith("and 5 more")


REPAIR = "admission: {runtimeClassName: nvidia, extendedResources: {requestsOnly: CopyToLimits, fractional: Deny}}"


@pytest.mark.parametrize(
    ("action", "repaired", "spoken"),
    [("Enforce", True, True), ("Warn", False, True), ("Audit", False, False), ("'Off'", False, False)],
)
def test_action_decides_between_doing_saying_and_neither(action: str, repaired: bool, spoken: bool) -> None:
    document = pod(container(None, {GPU: "1"}))

    verdict = admit(document, policies(policy("p", f"action: {action}, {REPAIR}")))

    assert verdict.allowed
    assert repaired is (apply(document, verdict.operations)["spec"] != document["spec"])
    assert spoken is bool(verdict.warnings)


@pytest.mark.parametrize(
    ("action", "allowed", "spoken"),
    [("Enforce", False, False), ("Warn", True, True), ("Audit", True, False), ("'Off'", True, False)],
)
def test_action_decides_between_refusing_saying_and_neither(action: str, allowed: bool, spoken: bool) -> None:
    verdict = admit(pod(gpus("500m")), policies(policy("p", f"action: {action}, {REPAIR}")))

    assert allowed is verdict.allowed
    assert spoken is any("fraction" in warning for warning in verdict.warnings)


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": "main"},
        {"containers": [1]},
        {"containers": [gpus(1)], "tolerations": "all"},
        {"containers": [gpus(1)], "tolerations": 5},
        {"containers": [gpus(1)], "affinity": "mine"},
        {"containers": [gpus(1)], "affinity": {"nodeAffinity": []}},
    ],
    ids=["containers", "container", "tolerations", "toleration number", "affinity", "node affinity"],
)
def test_shape_that_kubernetes_would_refuse_is_bad_input_not_a_bug_of_ours(spec: dict[str, Any]) -> None:
    document = pod(annotations={"products": "A100"}) | {"spec": spec}

    with pytest.raises(BadInput):
        admit(document)


def test_repair_that_changes_the_amount_tolerates_the_nodes_of_the_new_amount() -> None:
    repaired, asked_so = pod(container({GPU: "1"}, {GPU: "8"})), pod(gpus(1))

    verdict = admit(repaired)
    again = admit(apply(repaired, verdict.operations))

    expected = apply(asked_so, admit(asked_so).operations)["spec"]["tolerations"]
    assert expected == apply(repaired, verdict.operations)["spec"]["tolerations"]
    assert not again.operations
