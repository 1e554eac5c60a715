# SPDX-License-Identifier: Apache-2.0
"""Gangs whose pods have ResourceClaims: how many get devices together, by kube-scheduler's allocator (F151, S13)."""

from typing import Any

from app.cluster.snapshot import fill
from app.explain.explanation import GangVerdict
from app.explain.gang_placement import FIRST_POD_DECIDES
from app.explain.pending_pod import explain
from app.values.computations import finish
from app.world.state import State
from app.world.world import world_of
from tests.builders import knowledge, node_document, pod, shipped
from tests.dra.worlds import DRIVER, class_document, device, request
from tests.explain.test_claims import template

Document = dict[str, Any]
GROUP: Document = {"podGroupName": "train"}
OF_TEMPLATE: Document = {"name": "gpus", "resourceClaimTemplateName": "t"}
OF_CLAIM: Document = {"name": "gpus", "resourceClaimName": "one"}


def published(node: str, number: int, rack: str = "") -> Document:
    """Write a slice of devices of a node, or of the nodes of a rack."""
    where: Document = {"nodeName": node}
    if rack:
        term = {"matchExpressions": [{"key": "rack", "operator": "In", "values": [rack]}]}
        where = {"nodeSelector": {"nodeSelectorTerms": [term]}}
    pool = {"name": f"{node}-pool", "generation": 1, "resourceSliceCount": 1}
    devices = [device(f"gpu-{index}", {"numa": index % 2}) for index in range(number)]
    spec = {"driver": DRIVER, "pool": pool, **where, "devices": devices}
    return {"kind": "ResourceSlice", "metadata": {"name": f"{node}-slice"}, "spec": spec}


def members(number: int, *claims: Document, grouped: bool = True) -> list[Document]:
    made = []
    for index in range(number):
        more = {"schedulingGroup": GROUP} if grouped else {}
        one = pod({"name": "main", "image": "train:1"}, resourceClaims=list(claims), **more)
        labels = {} if grouped else {"jobset.sigs.k8s.io/jobset-name": "train"}
        one["metadata"] |= {"namespace": "default", "name": f"m-{index}", "uid": f"m-{index}", "labels": labels}
        one["status"] = {"phase": "Pending"}
        made.append({"kind": "Pod", **one})
    return made


def group(least: int, *claims: Document) -> Document:
    spec: Document = {"schedulingPolicy": {"gang": {"minCount": least}}, "resourceClaims": list(claims)}
    metadata = {"namespace": "default", "name": "train"}
    return {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": metadata, "spec": spec}


def claim(*requests: Document, name: str = "one") -> Document:
    made = template(*requests)
    return {"kind": "ResourceClaim", "metadata": {"namespace": "default", "name": name}, "spec": made["spec"]["spec"]}


def judged(pods: list[Document], *objects: Document, racks: str = "aab") -> GangVerdict:
    """Explain the first pod on nodes n-0, n-1 … that are in racks, and return what is said of its gang."""
    state = State(knowledge())
    nodes = [node_document(f"n-{index}", None, None, {}, labels={"rack": rack}) for index, rack in enumerate(racks)]
    classes = [{"kind": "DeviceClass", **class_document("any", f"device.driver == '{DRIVER}'")}]
    fill(state, [*({"kind": "Node", **node} for node in nodes), *classes, *pods, *objects])
    verdict = finish(explain(pods[0], world_of(state, shipped()), live=True)).gang
    assert verdict is not None
    return verdict


def test_members_get_devices_until_none_is_free_and_more_nodes_let_all_start() -> None:
    """F151: each of two nodes serves one claim for two devices; a third node like them is the change."""
    slices = [published(f"n-{index}", 3) for index in range(2)]

    verdict = judged(members(3, OF_TEMPLATE), template(request(count=2)), *slices)

    assert (verdict.fits, verdict.enough, verdict.unjudged) == (2, False, "")
    assert "too few of those selected are free" in verdict.lacks
    assert verdict.change.startswith("1 more node like n-")
    more = [published(f"n-{index}", 3) for index in range(3)]
    assert judged(members(3, OF_TEMPLATE), template(request(count=2)), *more).enough


def test_claims_of_two_entries_are_two_claims_of_each_pod() -> None:
    """F151: each pod takes two devices."""
    second = {**OF_TEMPLATE, "name": "more"}

    verdict = judged(members(3, OF_TEMPLATE, second), template(request()), published("n-0", 5))

    assert verdict.fits == 2


def test_claim_that_all_members_name_is_allocated_once_and_holds_them_to_its_node() -> None:
    """F151: one device serves all, which fit on its node alone."""
    verdict = judged(members(4, OF_CLAIM), claim(request()), published("n-0", 1), published("n-1", 1))

    assert (verdict.fits, verdict.enough) == (4, True)


def test_claim_of_the_pod_group_serves_all_members_and_the_same_template_of_pods_does_not() -> None:
    """F151: spec.resourceClaims of the PodGroup, which the pods' entry has to equal."""
    world = (template(request()), published("n-0", 1))

    of_group = judged(members(4, OF_TEMPLATE), *world, group(4, OF_TEMPLATE))
    other_name = judged(members(4, OF_TEMPLATE), *world, group(4, {**OF_TEMPLATE, "name": "other"}))

    assert (of_group.fits, of_group.enough) == (4, True)
    assert (other_name.fits, other_name.enough) == (1, False)


def test_devices_of_a_rack_are_taken_for_all_its_nodes() -> None:
    """F151: two devices that the nodes of one rack reach, and none for the node of the other."""
    verdict = judged(members(3, OF_TEMPLATE), template(request()), published("rack", 2, rack="a"))

    assert verdict.fits == 2
    shared = judged(members(3, OF_CLAIM), claim(request()), published("rack", 1, rack="a"))
    assert shared.fits == 3


def test_gang_whose_first_pod_chooses_where_the_shared_devices_are_gets_no_number() -> None:
    """F151: the node of the first pod holds the shared device, and too few of their own; that of another may not."""
    own = {"name": "own", "resourceClaimTemplateName": "t"}
    pods = members(4, OF_CLAIM, own)
    world = (claim(request()), template(request()), published("n-0", 3), published("n-1", 3))

    undecided = judged(pods, *world, published("n-2", 3))
    enough = judged(pods, *world[:2], *(published(f"n-{index}", 6) for index in range(3)))

    assert (undecided.unjudged, undecided.change) == (FIRST_POD_DECIDES, "")
    assert (enough.fits, enough.unjudged) == (4, "")


def test_gang_known_by_a_label_is_placed_with_its_claims() -> None:
    """F151."""
    verdict = judged(members(3, OF_TEMPLATE, grouped=False), template(request()), published("n-0", 2))

    assert (verdict.fits, verdict.pods) == (2, 3)


def test_devices_of_running_pods_are_not_given_again() -> None:
    """F151: another claim has one of two devices."""
    held = {**claim(request(), name="held"), "status": {"allocation": {"devices": {"results": [
        {"request": "gpu", "driver": DRIVER, "pool": "n-0-pool", "device": "gpu-0"}]}}}}  # fmt: skip

    assert judged(members(3, OF_TEMPLATE), template(request()), published("n-0", 2), held).fits == 1


def test_claim_that_is_not_known_is_said_instead_of_a_number() -> None:
    """F151: without any template that gpu-usher may read."""
    verdict = judged(members(3, OF_TEMPLATE), published("n-0", 2))

    assert verdict.unjudged == "devices of its claims: ResourceClaimTemplate default/t is not known"
    assert verdict.sentence.startswith("whether all 3 waiting pods of PodGroup default/train fit together is not known")


def test_gang_of_hundreds_is_not_placed_and_says_so() -> None:
    """F151."""
    verdict = judged(members(257, OF_CLAIM), claim(request()), published("n-0", 1))

    assert verdict.unjudged == "it has more than 256 pods"
