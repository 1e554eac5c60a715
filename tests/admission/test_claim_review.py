# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims and templates are held to the policies of their namespace when they are created (F166)."""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from app.admission.json_patch import apply
from app.admission.review import ReviewResult
from app.cluster.core import Core
from app.cluster.policy_watch import PolicyBook
from app.cluster.snapshot import fill
from app.dra.selectors import compile_selector
from app.kube.devices import ResourceSlice
from app.kube.pods import read_pod
from app.kube.records import read_record
from app.settings import Settings
from app.telemetry.logs import today
from app.world.state import State
from tests.builders import container, knowledge, node_document, pod, policy
from tests.finished import review

SEC = policy("sec", "placement: {products: {deny: [H100]}}, admission: {maxGPUsPerPod: 2}")
GPU = {"deviceClassName": "gpu.nvidia.com"}
MIB = {"memory": {"value": "80Gi"}}
NIC = {"kind": "DeviceClass", "metadata": {"name": "nic"},
       "spec": {"selectors": [{"cel": {"expression": "device.driver == 'dra.net'"}}]}}  # fmt: skip
OWN = {"kind": "DeviceClass", "metadata": {"name": "own"},
       "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]}}  # fmt: skip
CLASS = {"kind": "DeviceClass", "metadata": {"name": "gpu.nvidia.com"}, "spec": {"selectors": [{"cel": {"expression":
         "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"}}]}}  # fmt: skip


def gpu_device(name: str, product: str) -> dict[str, Any]:
    """Make a device as NVIDIA's driver publishes a whole GPU."""
    attributes = {
        "type": {"string": "gpu"},
        "productName": {"string": product},
        "driverVersion": {"version": "570.124.6"},
        "cudaDriverVersion": {"version": "12.8.0"},
        "cudaComputeCapability": {"version": "9.0.0" if "H100" in product else "8.9.0"},
        "architecture": {"string": "Hopper"},
        "uuid": {"string": f"GPU-{name}"},
    }
    return {"name": name, "attributes": attributes, "capacity": MIB}


def gpu_slice(node: str, product: str) -> dict[str, Any]:
    """Make the slice of a node with four GPUs."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    devices = [gpu_device(f"gpu-{number}", product) for number in range(4)]
    spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, "devices": devices}
    return {"kind": "ResourceSlice", "metadata": {"name": f"{node}-slice"}, "spec": spec}


FLEET = (
    node_document("h100", None, None, {}), gpu_slice("h100", "NVIDIA H100 80GB HBM3"),
    node_document("l40s", None, None, {}), gpu_slice("l40s", "NVIDIA L40S"), NIC, OWN, CLASS,
)  # fmt: skip


def core_of(*objects: dict[str, Any], text: str = SEC) -> Core:
    """Make a service whose cluster has two nodes with GPUs by DRA, and a policy in force."""
    state = State(knowledge())
    fill(state, [*FLEET, *objects])
    with TemporaryDirectory() as directory:
        Path(directory, "sec.yaml").write_text(text, "utf-8")
        return Core(Settings(), state, PolicyBook(Path(directory), knowledge(), today))


def claim(*requests: Mapping[str, Any], template: bool = False, version: str = "v1") -> dict[str, Any]:
    """Make a ResourceClaim, or a template, in a version of the API."""
    spec: dict[str, Any] = {"devices": {"requests": list(requests)}}
    kind = "ResourceClaimTemplate" if template else "ResourceClaim"
    metadata = {"name": "one", "namespace": "team-a"}
    spec = {"spec": spec} if template else spec
    return {"apiVersion": f"resource.k8s.io/{version}", "kind": kind, "metadata": metadata, "spec": spec}


def exactly(name: str = "gpu", **fields: Any) -> dict[str, Any]:
    """Make a request for GPUs."""
    return {"name": name, "exactly": {**GPU, **fields}}


def answer(core: Core, document: Mapping[str, Any], verb: str = "mutate", *operation: str) -> ReviewResult:
    """Review an object of team-a as the API server sends it."""
    plural = document["kind"].lower() + "s"
    group = "" if plural == "pods" else "resource.k8s.io"
    request = {"uid": "1", "namespace": "team-a", "operation": (*operation, "CREATE")[0], "object": document}
    request["subResource"] = (*operation, "", "")[1]
    request["resource"] = {"group": group, "resource": plural}
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return review(json.dumps(body).encode(), verb, core).result


def admitted(core: Core, document: dict[str, Any]) -> dict[str, Any]:
    """Return a claim as it is stored, which both webhooks accept; a second call changes nothing."""
    changed: dict[str, Any] = apply(document, answer(core, document).operations)
    assert not answer(core, changed).operations
    assert answer(core, changed, "validate").reasons == ()
    return changed


def selected(expressions: list[str], product: str) -> bool:
    """Tell whether a device of a product is selected by all expressions."""
    [device] = [one for one in read_record(ResourceSlice, gpu_slice("n", product)).devices if one.name == "gpu-0"]
    return all(compile_selector(expression).judge(device).matches is True for expression in expressions)


def expressions_of(request: Mapping[str, Any]) -> list[str]:
    return [one["cel"]["expression"] for one in request.get("selectors", ())]


def codes(result: ReviewResult) -> list[str]:
    return [refusal.code.name for refusal in result.reasons]


@pytest.mark.parametrize(
    ("document", "path"),
    [
        pytest.param(claim(exactly()), ("devices",), id="claim"),
        pytest.param(claim(exactly(), template=True), ("spec", "devices"), id="template"),
        pytest.param(claim(exactly(), version="v1beta2"), ("devices",), id="v1beta2"),
        pytest.param(claim({"name": "gpu", **GPU}, version="v1beta1"), ("devices",), id="v1beta1"),
        pytest.param(claim(exactly(deviceClassName="own")), ("devices",), id="a class of one's own"),
        pytest.param(claim(exactly(deviceClassName="unseen")), ("devices",), id="a class that is not known"),
        pytest.param(claim(exactly(adminAccess=True)), ("devices",), id="adminAccess"),
        pytest.param(
            claim({"name": "gpu", "firstAvailable": [{"name": "a", **GPU, "count": 2}, {"name": "b", **GPU}]}),
            ("devices",),
            id="alternatives",
        ),
    ],
)
def test_each_request_for_gpus_gets_the_selectors_that_policies_demand(
    document: dict[str, Any], path: tuple[str, ...]
) -> None:
    stored: Any = admitted(core_of(), document)["spec"]
    for key in path:
        stored = stored[key]

    [request] = stored["requests"]
    choices = request.get("firstAvailable") or [request.get("exactly", request)]
    for choice in choices:
        assert not selected(expressions_of(choice), "NVIDIA H100 80GB HBM3")
        assert selected(expressions_of(choice), "NVIDIA L40S")


@pytest.mark.parametrize(
    "device_class", ["nic", "compute-domain-default-channel.nvidia.com"], ids=["network card", "ComputeDomain"]
)
def test_claim_of_no_gpu_is_left_alone(device_class: str) -> None:
    metadata = {"name": "compute-domain-default-channel.nvidia.com"}
    selectors = [{"cel": {"expression": "device.driver == 'compute-domain.nvidia.com'"}}]
    channel = {"kind": "DeviceClass", "metadata": metadata, "spec": {"selectors": selectors}}
    document = claim(exactly(deviceClassName=device_class, count=8))

    assert admitted(core_of(channel), document) == document


def test_selectors_of_the_claim_itself_stay() -> None:
    mine = {"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}

    [request] = admitted(core_of(), claim(exactly(selectors=[mine])))["spec"]["devices"]["requests"]

    assert request["exactly"]["selectors"][0] == mine
    assert len(request["exactly"]["selectors"]) == 2


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        pytest.param([exactly(count=3)], "asks for 3 GPUs; at most 2 per pod are allowed (policy sec)", id="count"),
        pytest.param([exactly("a", count=2), exactly("b")], "asks for 3 GPUs", id="requests"),
        pytest.param([exactly(allocationMode="All")], "claims all GPUs of a node", id="All"),
        pytest.param([exactly(count=3, adminAccess=True)], "asks for 3 GPUs", id="adminAccess"),
        pytest.param(
            [{"name": "g", "firstAvailable": [{"name": "a", **GPU, "count": 16}, {"name": "b", **GPU}]}],
            "asks for 16 GPUs",
            id="an alternative",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["mutate", "validate"])
@pytest.mark.parametrize("template", [False, True], ids=["claim", "template"])
def test_claim_for_more_gpus_than_a_pod_may_have_is_refused(
    requests: list[dict[str, Any]], told: str, verb: str, template: bool
) -> None:
    result = answer(core_of(), claim(*requests, template=template), verb)

    assert "TooManyGPUs" in codes(result)
    assert told in str(result.reasons[0].message)


def test_alternatives_are_not_added_up() -> None:
    """16, or else 1: with a bound of 16 it is allowed."""
    text = policy("sec", "admission: {maxGPUsPerPod: 16}")
    alternatives = [{"name": "a", **GPU, "count": 16}, {"name": "b", **GPU}]

    assert answer(core_of(text=text), claim({"name": "g", "firstAvailable": alternatives})).reasons == ()


def test_claim_without_the_selectors_is_refused_where_the_mutating_webhook_was_not_asked() -> None:
    result = answer(core_of(), claim(exactly()), "validate")

    assert codes(result) == ["ClaimUnrestricted"]
    assert result.reasons[0].message == "request gpu lacks 1 selector for not product H100 (policy sec)"


def test_no_room_for_the_selectors_is_a_refusal() -> None:
    many = [{"cel": {"expression": f"true || {number} > 0"}} for number in range(32)]

    assert codes(answer(core_of(), claim(exactly(selectors=many)))) == ["ObjectTooLarge"]


def test_policy_that_only_warns_changes_nothing_and_says_what_it_would() -> None:
    result = answer(core_of(text=SEC.replace("placement:", "action: Warn, placement:")), claim(exactly(count=3)))

    assert (result.operations, result.reasons) == ((), ())
    assert any("asks for 3 GPUs" in warning and "(warning only)" in warning for warning in result.warnings)
    assert any("not done, policy only warns: request gpu limited to not product H100" in one for one in result.warnings)


def test_policy_that_only_audits_says_nothing() -> None:
    result = answer(core_of(text=SEC.replace("placement:", "action: Audit, placement:")), claim(exactly(count=3)))

    assert (result.operations, result.reasons, result.warnings) == ((), (), ())


def test_exempt_namespace_is_left_alone() -> None:
    core = core_of({"kind": "Namespace", "metadata": {"name": "team-a", "labels": {"gpu-usher.io/ignore": "true"}}})

    assert answer(core, claim(exactly(count=8))).operations == ()
    assert answer(core, claim(exactly(count=8)), "validate").allowed


@pytest.mark.parametrize(
    "match",
    ["podSelector: {matchLabels: {app: big}}", "podSelector: {matchExpressions: [{key: app, operator: DoesNotExist}]}"],
)
def test_what_policies_demand_of_some_pods_is_left_to_their_review(match: str) -> None:
    text = SEC.replace("placement:", f"match: {{{match}}}, placement:")
    labels = {"app": "big"} if "matchLabels" in match else {}

    assert admitted(core_of(text=text), claim(exactly(count=3))) == claim(exactly(count=3))
    assert codes(answer(core_of(text=text), using("one", labels=labels))) == ["ClaimNotKnown"]


def test_rule_with_an_exception_for_some_pods_is_not_written_into_claims() -> None:
    selected_pods = "match: {podSelector: {matchLabels: {app: big}}}"
    excepted = f"{selected_pods}, rules: [products], owner: me, reason: why, expires: '2999-01-01'"
    text = SEC.replace("placement:", f"exceptions: [{{{excepted}}}], placement:")

    assert admitted(core_of(text=text), claim(exactly())) == claim(exactly())


@pytest.mark.parametrize(("node", "refused"), [("l40s", []), ("h100", ["ProductNotAllowed"])])
def test_claim_for_extended_resources_is_refused_a_denied_device(node: str, refused: list[str]) -> None:
    """kube-scheduler allocates the device before the claim exists, and writes both."""
    device = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": node, "device": "gpu-0"}
    status = {"allocation": {"devices": {"results": [device]}}}

    result = answer(core_of(), {**claim(exactly()), "status": status}, "validate", "UPDATE", "status")

    assert codes(result) == refused


def using(*names: str, template: bool = False, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Make a pod that uses claims by name, or of templates."""
    key = "resourceClaimTemplateName" if template else "resourceClaimName"
    entries = [{"name": f"c{number}", key: name} for number, name in enumerate(names)]
    used = {"claims": [{"name": entry["name"]} for entry in entries]}
    document = pod(container(resources=used), resourceClaims=entries)
    document["metadata"] |= {"namespace": "team-a", "labels": dict(labels or {})}
    return {"kind": "Pod", **document}


def test_pod_before_its_one_claim_passes_since_the_claim_is_judged_itself() -> None:
    result = answer(core_of(), using("late", template=True))

    assert result.reasons == ()
    assert any("is not known yet" in warning for warning in result.warnings)


def test_pod_before_its_several_claims_is_refused_with_the_order() -> None:
    """Each of them may be for two GPUs."""
    for verb in ("mutate", "validate"):
        [refusal] = answer(core_of(), using("late", "later", template=True), verb).reasons

        assert (
            refusal.message == "ResourceClaimTemplate team-a/late does not exist, and policies restrict the pod's GPUs"
        )
        assert "create it first" in refusal.remedy


@pytest.mark.parametrize(
    "spec", ["placement: {nodeSelector: {matchLabels: {a: b}}}", "admission: {perGPU: {maxCPU: '4'}}"]
)
def test_pod_before_its_claim_is_refused_for_what_no_claim_can_state(spec: str) -> None:
    assert codes(answer(core_of(text=policy("sec", spec)), using("late"))) == ["ClaimNotKnown"]


def test_pod_without_policies_that_restrict_may_come_before_its_claims() -> None:
    assert answer(core_of(text=policy("sec", "placement: {scores: []}")), using("late", "later")).reasons == ()


@pytest.mark.parametrize(
    ("selectors", "allowed"),
    [
        pytest.param((), False, id="any GPU"),
        pytest.param(("H100",), False, id="H100"),
        pytest.param(("L40S",), True, id="L40S"),
    ],
)
def test_claim_older_than_the_policy_is_refused_if_it_may_get_a_denied_device(
    selectors: tuple[str, ...], allowed: bool
) -> None:
    wanted = [{"cel": {"expression": f"device.attributes['gpu.nvidia.com'].productName.contains('{product}')"}}
              for product in selectors]  # fmt: skip
    core = core_of(claim(exactly(selectors=wanted)))

    result = answer(core, using("one"))

    assert codes(result) == ([] if allowed else ["ClaimUnrestricted"])


@pytest.mark.parametrize(("node", "allowed"), [("l40s", True), ("h100", False)])
def test_claim_that_has_devices_is_judged_by_these(node: str, allowed: bool) -> None:
    device = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": node, "device": "gpu-0"}
    status = {"allocation": {"devices": {"results": [device]}}}

    assert answer(core_of({**claim(exactly()), "status": status}), using("one")).allowed is allowed


def test_filter_refuses_a_pod_whose_claims_came_with_too_many_gpus() -> None:
    core = core_of(claim(exactly(count=4), template=True))

    demand = core.demand(read_pod(using("one", template=True)))

    assert demand.invalid is not None
    assert demand.invalid.message == "asks for 4 GPUs; at most 2 per pod are allowed (policy sec)"
