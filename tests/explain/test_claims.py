# SPDX-License-Identifier: Apache-2.0
"""`explain` says why ResourceClaims get no devices, in words, and which smallest change helps (S13, F84)."""

from typing import Any

from app.cluster.snapshot import fill
from app.dra.pod_claims import released
from app.explain.explanation import Explanation
from app.explain.pending_pod import explain
from app.kube.pods import read_pod
from app.values.computations import finish
from app.world.state import State
from app.world.world import world_of
from tests.builders import knowledge, node_document, pod, shipped
from tests.dra.worlds import DRIVER, allocated_document, class_document, device, request, slice_document

Document = dict[str, Any]
MEMORY = f"device.capacity['{DRIVER}'].memory.compareTo(quantity('80Gi')) >= 0"
PROFILE = f"device.attributes['{DRIVER}'].profile == '3g.40gb'"


def gpu(name: str, memory: str = "40Gi", **more: Any) -> Document:
    return device(name, {"profile": "1g.10gb", "numa": 0}, capacity={"memory": {"value": memory}}, **more)


def template(*requests: Document, constraints: tuple[Document, ...] = ()) -> Document:
    devices = {"requests": list(requests), "constraints": list(constraints)}
    return {"kind": "ResourceClaimTemplate", "metadata": {"namespace": "default", "name": "t"},
            "spec": {"spec": {"devices": devices}}}  # fmt: skip


def explained(asked: Document, *objects: Document, document: Document | None = None) -> Explanation:
    """Explain a pod with one claim of a template on a cluster of the nodes n and m."""
    state = State(knowledge())
    nodes = [{"kind": "Node", **node_document(name, None, None, {})} for name in ("n", "m")]
    classes = [{"kind": "DeviceClass", **class_document("any", f"device.driver == '{DRIVER}'")}]
    fill(state, [*nodes, *classes, asked, *objects])
    waiting = document or pod({"name": "main", "image": "train:1"}, resourceClaims=[
        {"name": "gpus", "resourceClaimTemplateName": "t"}])  # fmt: skip
    waiting["metadata"]["namespace"] = "default"
    return finish(explain(waiting, world_of(state, shipped())))


def slices(*devices: Document) -> Document:
    return {**slice_document("s", devices), "kind": "ResourceSlice"}


def texts(explanation: Explanation) -> list[str]:
    return [fix.edits[0].text for fix in explanation.fixes]


def test_a_claim_that_gets_its_devices_is_judged_and_fits() -> None:
    explanation = explained(template(request(count=2)), slices(gpu("a"), gpu("b")))
    assert (explanation.fits, explanation.unjudged) == (1, ())


def test_a_comparison_that_no_device_meets_is_named_with_the_nearest_device_and_loosened() -> None:
    explanation = explained(template(request(selectors=[MEMORY])), slices(gpu("a"), gpu("b", "64Gi")))
    assert explanation.primary is not None
    assert explanation.primary.message == "cannot allocate all claims: request gpu: wants a device with memory >= 80Gi"
    (funnel,) = explanation.devices
    assert [(step.devices, step.nodes) for step in funnel.steps] == [(2, 1), (0, 0)]
    assert funnel.steps[1].detail == "nearest is b of n: wants memory >= 80Gi, and memory 64Gi"
    assert texts(explanation)[0] == "request gpu: ask for memory >= 64Gi instead of >= 80Gi"
    assert (explanation.fixes[0].node, explanation.fixes[0].opens) == ("n", 1)


def test_another_profile_that_the_node_has_is_proposed() -> None:
    explanation = explained(template(request(selectors=[PROFILE])), slices(gpu("a")))
    assert texts(explanation)[0] == "request gpu: ask for profile == 1g.10gb instead of == 3g.40gb"


def test_fewer_devices_are_proposed_where_some_are_there() -> None:
    explanation = explained(template(request(count=3)), slices(gpu("a"), gpu("b")))
    assert "request gpu: ask for 2 instead of 3" in texts(explanation)


def test_toleration_of_a_device_that_has_fallen_off_the_bus_is_not_proposed() -> None:
    """S13: the taints of NVIDIA's driver for an XID and for a lost GPU, and one that only sounds like it."""
    for key in ("gpu.nvidia.com/xid", "gpu.nvidia.com/gpu-lost", "example.com/ecc-errors"):
        taint = {"key": key, "value": "79", "effect": "NoSchedule"}
        explanation = explained(template(request()), slices(gpu("a", taints=[taint])))
        assert texts(explanation) == []
        assert "no small change" in explanation.no_change


def test_a_taint_is_named_and_its_toleration_proposed() -> None:
    taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
    explanation = explained(template(request()), slices(gpu("a", taints=[taint])))
    assert explanation.primary is not None
    assert (
        explanation.primary.message
        == "cannot allocate all claims: request gpu: wants a device, and those selected are tainted"
    )
    assert explanation.devices[0].steps[-1].detail == "team=a:NoSchedule on 1"
    assert texts(explanation) == ["request gpu: tolerate team=a:NoSchedule, if such a device is acceptable"]


def test_the_pod_that_has_the_device_is_named_and_would_have_to_end() -> None:
    held = allocated_document("x", "a")
    held["status"]["reservedFor"] = [{"resource": "pods", "name": "train-0", "uid": "1"}]
    explanation = explained(template(request()), slices(gpu("a")), {**held, "kind": "ResourceClaim"})
    assert explanation.primary is not None
    assert (explanation.primary.reason, explanation.devices[0].steps[-1].detail) == (
        "DevicesInUse",
        "1 of pod default/train-0",
    )
    assert texts(explanation) == ["end pod default/train-0, which has a"]


def test_a_constraint_is_the_cause_only_where_each_request_could_be_served() -> None:
    other = device("b", {"profile": "1g.10gb", "numa": 1}, capacity={"memory": {"value": "40Gi"}})
    same = {"matchAttribute": f"{DRIVER}/numa"}
    explanation = explained(template(request(count=2), constraints=(same,)), slices(gpu("a"), other))
    assert explanation.primary is not None
    assert (
        explanation.primary.message
        == "cannot allocate all claims: no set of devices serves all requests with the same numa for all of them"
    )
    assert f"claim default/t (gpus): leave out matchAttribute {DRIVER}/numa" in texts(explanation)


def test_a_selector_that_reads_an_attribute_some_device_lacks_fails_the_pod_everywhere() -> None:
    """kube-scheduler gives up on the pod although another device would do."""
    bare = device("0", {})
    explanation = explained(
        template(request(selectors=[PROFILE.replace("3g.40gb", "1g.10gb")])), slices(bare, gpu("a"))
    )
    assert (explanation.fits, explanation.primary and explanation.primary.reason) == (0, "ClaimNotUsable")
    assert explanation.primary is not None
    assert (
        f"attribute {DRIVER}/profile, which some devices of driver {DRIVER} do not have" in explanation.primary.message
    )
    assert "test has() before it is read" in explanation.primary.message


def test_a_claim_with_devices_keeps_the_pod_where_they_are() -> None:
    held = allocated_document("x", "a")
    held["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": ["n"]}]}]}  # fmt: skip
    waiting = pod({"name": "main", "image": "train:1"}, resourceClaims=[{"name": "gpus", "resourceClaimName": "x"}])
    explanation = explained(template(request()), slices(gpu("a")), {**held, "kind": "ResourceClaim"}, document=waiting)
    assert explanation.fits == 1
    assert [refused.message for refused in explanation.in_tree] == [
        "resourceclaim not available on the node: claim default/x has its devices on another node"
    ]


def test_a_claim_is_not_judged_where_no_claim_is_known() -> None:
    waiting = pod({"name": "main", "image": "train:1"}, resourceClaims=[{"name": "gpus", "resourceClaimName": "none"}])
    explanation = explained(template(request()), slices(gpu("a")), document=waiting)
    assert (explanation.fits, explanation.unjudged) == (2, ("resourceClaims",))


def test_extended_resources_that_a_device_class_serves_are_judged_where_no_device_plugin_offers_them() -> None:
    """KEP-5004: kube-scheduler makes a claim for them, with a request for each container."""
    served = {"kind": "DeviceClass", **class_document("any", f"device.driver == '{DRIVER}'")}
    served["spec"]["extendedResourceName"] = "nvidia.com/gpu"
    for asked, fits in ((1, 1), (2, 1), (3, 0)):
        limits = {"limits": {"nvidia.com/gpu": str(asked)}}
        waiting = pod({"name": "main", "image": "train:1", "resources": limits})
        explanation = explained(template(request()), slices(gpu("a"), gpu("b")), served, document=waiting)
        assert explanation.unjudged == ()
        verdicts = [refused.message for refused in explanation.in_tree]
        named = "cannot allocate all claims: request gpu of container main: wants 3 devices"
        assert any(verdict.startswith(named) for verdict in verdicts) == (fits == 0)


def test_claim_is_ranked_last_on_the_node_of_which_the_driver_has_tainted_a_device() -> None:
    """F56, F135: as the doctor reports it; the other devices of the node would do."""
    taint = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
    described = {"type": "gpu", "productName": "NVIDIA H100 80GB HBM3"}

    def devices(node: str, *taints: Document) -> Document:
        listed = [
            device(f"gpu-{index}", {**described, "uuid": f"GPU-{node}-{index}"}, **({"taints": [one]} if one else {}))
            for index, one in enumerate((*taints, None, None)[:2])
        ]
        written = slice_document(f"slice-{node}", listed)
        written["spec"] |= {
            "driver": "gpu.nvidia.com",
            "nodeName": node,
            "pool": {**written["spec"]["pool"], "name": node},
        }
        return {**written, "kind": "ResourceSlice"}

    own = {"kind": "DeviceClass", **class_document("gpu.nvidia.com", "device.driver == 'gpu.nvidia.com'")}
    asked = template({"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}})

    explanation = explained(asked, own, devices("m", taint), devices("n"))

    assert [(node.node, node.lowered_by) for node in explanation.best] == [("n", ()), ("m", ("devices withdrawn",))]


def test_claim_of_a_pod_group_serves_its_members_and_is_held_by_it_against_others() -> None:
    """S13: kube-controller-manager writes the group's claim into the status of each member (resourceclaim controller.go
    handleClaim), and kube-scheduler reserves it for the PodGroup.
    """
    held = {**allocated_document("x", "a"), "kind": "ResourceClaim"}
    group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "train", "uid": "1"}
    held["status"]["reservedFor"] = [group]
    member = pod({"name": "main", "image": "train:1"}, resourceClaims=[
        {"name": "gpus", "resourceClaimTemplateName": "t"}], schedulingGroup={"podGroupName": "train"})  # fmt: skip
    member["status"] = {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "x"}]}

    own = explained(template(request()), slices(gpu("a")), held, document=member)
    other = explained(template(request()), slices(gpu("a")), held)

    assert own.fits == 2
    assert other.devices[0].steps[-1].detail == "1 of PodGroup default/train"


def test_claim_of_a_pod_group_stays_when_one_of_its_pods_is_explained_as_if_it_were_gone() -> None:
    """S13: the other members keep its devices."""
    held = {**allocated_document("x", "a"), "kind": "ResourceClaim"}
    held["status"]["reservedFor"] = [{"resource": "podgroups", "name": "train", "uid": "1"}]
    state = State(knowledge())
    fill(state, [held])
    member = pod(resourceClaims=[{"name": "gpus", "resourceClaimTemplateName": "t"}])
    member["metadata"]["namespace"] = "default"
    member["status"] = {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "x"}]}
    devices = world_of(state, shipped()).devices

    assert released(read_pod(member), member, devices).claims == devices.claims
