# SPDX-License-Identifier: Apache-2.0
"""What counts for the limits of a namespace: claims, slices, shares, groups, and no pod that has finished."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from app.server.service import Service
from tests.builders import gpus, make_service, node_document, pod, policies, policy
from tests.dra.makes import device, device_class, slice_of
from tests.placement.test_namespace_limits import asked, bound

Object = dict[str, Any]
CLASS = "gpu.nvidia.com"
H100, A100, AMD = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "amd.com/gpu"
LIMITS = "placement: {namespaceLimits: [{products: [H100], gpus: 2}, {products: [MI300X], gpus: 2}]}"


def named(uid: str, document: Object, labels: Object | None = None) -> Object:
    return document | {"metadata": {"name": uid, "namespace": "team-a", "uid": uid, "labels": labels or {}}}


def claim(
    name: str, devices: Iterable[str] = (), *, namespace: str = "team-a", pods: Iterable[str] = (), **more: Any
) -> Object:
    """Write a claim of the devices that it has, used by pods; `more`: count, adminAccess, firstAvailable, extended."""
    admin = {"adminAccess": True} if more.get("adminAccess") else {}
    results = [
        {"request": "r", "driver": CLASS, "pool": "other" if one == "gpu-4" else "dra", "device": one, **admin}
        for one in devices
    ]
    exactly = {"deviceClassName": CLASS, "count": more.get("count", max(1, len(results))), **admin}
    request = {"firstAvailable": more["firstAvailable"]} if "firstAvailable" in more else {"exactly": exactly}
    annotations = {"resource.kubernetes.io/extended-resource-claim": "true"} if more.get("extended") else {}
    consumers = [{"resource": "pods", "name": pod_name, "uid": pod_name} for pod_name in pods]
    return {
        "kind": "ResourceClaim",
        "metadata": {"namespace": namespace, "name": name, "annotations": annotations},
        "spec": {"devices": {"requests": [{"name": "r", **request}]}},
        "status": {"allocation": {"devices": {"results": results}}, "reservedFor": consumers} if results else {},
    }


def claiming(uid: str, claim_name: str) -> Object:
    return named(uid, pod({"name": "main"}, resourceClaims=[{"name": "gpu", "resourceClaimName": claim_name}]))


def serving(folder: Path, nodes: list[Object], spec: str = LIMITS, **settings: Any) -> Service:
    """Serve nodes, and two more: `dra` of four H100 and `other` of an A100, gpu-4, that a driver publishes."""
    bare = [node_document(name, None, None, {}) for name in ("dra", "other")]
    service = make_service(folder, [*nodes, *bare], policies(policy("default", spec)), **settings)
    service.state.devices.put_slice(slice_of("dra", [device(index, "gpu", "h100") for index in range(4)]))
    service.state.devices.put_slice(slice_of("other", [device(4, "gpu", "a100")]))
    service.state.devices.put_device_class(device_class(CLASS, "gpu"))
    return service


def refusals(service: Service, document: Object, *names: str) -> dict[str, str]:
    answer = asked(service, document, names or None)
    why: dict[str, str] = answer["FailedAndUnresolvableNodes"]
    return {name: text for name, text in why.items() if "namespace has" in text}


REACHED = "the namespace has 2 of at most 2 H100: wants 1 more"


@pytest.mark.parametrize(
    ("devices", "more", "used"),
    [
        pytest.param(["gpu-0", "gpu-1"], {}, 2, id="devices of the product"),
        pytest.param(["gpu-4", "gpu-0"], {}, 1, id="a device of another product"),
        pytest.param(["gpu-0", "gpu-1"], {"namespace": "team-b"}, 0, id="another namespace"),
        pytest.param(["gpu-0", "gpu-1"], {"adminAccess": True}, 0, id="adminAccess"),
        pytest.param(["gpu-0", "gone"], {}, 1, id="a device that no slice shows"),
        pytest.param(["gpu-0", "gpu-1"], {"extended": True}, 0, id="an extended resource: its pod holds the units"),
    ],
)
def test_devices_of_claims_count_by_their_product(tmp_path: Path, devices: list[str], more: Object, used: int) -> None:
    """F162."""
    service = serving(tmp_path, [node_document("h", H100)], filter_answer="all")
    service.state.devices.put_claim(claim("held", devices, **more))

    held = refusals(service, named("new", pod(gpus(3 - used))), "h")

    assert held == {"h": f"the namespace has {used} of at most 2 H100: wants {3 - used} more"}
    if used < 2:
        assert refusals(service, named("fits", pod(gpus(2 - used))), "h") == {}


def test_pod_that_claims_is_refused_where_pods_hold_by_resource(tmp_path: Path) -> None:
    """F162: and a claim that it shares with a running pod is not counted twice."""
    service = serving(tmp_path, [node_document("h", H100)], filter_answer="all")
    service.state.put_pod(bound(named("one", pod(gpus(1))), "h"))
    service.state.devices.put_claim(claim("shared", ["gpu-0"], pods=["two"]))
    service.state.devices.put_claim(claim("third"))

    assert refusals(service, claiming("new", "third"), "dra") == {"dra": REACHED}
    assert refusals(service, claiming("beside", "shared"), "dra") == {}
    service.state.drop_pod("one")
    assert refusals(service, claiming("new", "third"), "dra") == {}


def test_alternatives_of_a_request_count_as_the_largest(tmp_path: Path) -> None:
    """F162: two of one class or one of another are at most two."""
    service = serving(tmp_path, [], filter_answer="all")
    choices = [{"name": f"{count}", "deviceClassName": CLASS, "count": count} for count in (2, 1)]
    service.state.devices.put_claim(claim("either", firstAvailable=choices))

    assert refusals(service, claiming("new", "either")) == {}
    service.state.devices.put_claim(claim("held", ["gpu-0"]))
    assert refusals(service, claiming("new", "either"))["dra"].endswith("1 of at most 2 H100: wants 2 more")


def test_promised_claim_counts_until_the_pod_is_bound_or_gone(tmp_path: Path) -> None:
    """F162: the allocation replaces the promise, and a pod that ends holds nothing."""
    service = serving(tmp_path, [node_document("h", H100)])
    document, next_pod = claiming("one", "two-gpus"), named("next", pod(gpus(1)))
    service.state.devices.put_claim(claim("two-gpus", count=2))
    service.state.put_pod(document)

    assert asked(service, document, ["dra"])["NodeNames"] == ["dra"]
    promised = refusals(service, next_pod, "h")
    service.state.devices.put_claim(claim("two-gpus", ["gpu-0", "gpu-1"], pods=["one"]))
    both = refusals(service, next_pod, "h")
    service.state.put_pod(bound(document, "dra"))
    allocated = refusals(service, next_pod, "h")
    service.state.put_pod(bound(document, "dra") | {"status": {"phase": "Succeeded"}})
    service.state.devices.put_claim(claim("two-gpus", count=2))

    assert (promised, both, allocated) == ({"h": REACHED},) * 3
    assert refusals(service, next_pod, "h") == {}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_finished_pod_holds_nothing_and_a_terminating_one_does(tmp_path: Path, phase: str) -> None:
    """F162."""
    service = serving(tmp_path, [node_document("h", H100)], filter_answer="all")
    holder, next_pod = bound(named("one", pod(gpus(2))), "h"), named("next", pod(gpus(1)))
    leaving = holder | {"metadata": holder["metadata"] | {"deletionTimestamp": "2026-11-26T00:00:00Z"}}

    service.state.put_pod(leaving)
    before = refusals(service, next_pod, "h")
    service.state.put_pod(leaving | {"status": {"phase": phase}})

    assert (before, refusals(service, next_pod, "h")) == ({"h": REACHED}, {})


def test_shares_and_init_containers_count_as_kubernetes_counts_them(tmp_path: Path) -> None:
    """F162: a time-slice is one; an init container counts where it asks for more, and a sidecar beside the others."""
    shared = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    nodes = [node_document("h", f"{H100}-SHARED", offers={"nvidia.com/gpu": 32}, labels=shared)]
    service = serving(tmp_path, nodes, filter_answer="all")
    init = pod(gpus(1), initContainers=[gpus(2) | {"name": "init"}])
    sidecar = pod(gpus(1), initContainers=[gpus(1) | {"name": "side", "restartPolicy": "Always"}])

    for document, wanted in ((init, 2), (sidecar, 2), (pod(gpus(1)), 1)):
        service.state.put_pod(bound(named("one", document), "h"))
        why = refusals(service, named("next", pod(gpus(3 - wanted))), "h")
        assert why == {"h": f"the namespace has {wanted} of at most 2 H100: wants {3 - wanted} more"}


def test_products_of_another_vendor_are_limited_too(tmp_path: Path) -> None:
    """F162."""
    labels = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}
    nodes = [node_document("amd", None, None, {AMD: 8}, labels=labels), node_document("h", H100)]
    service = serving(tmp_path, nodes, filter_answer="all")
    service.state.put_pod(bound(named("one", pod(gpus(2, AMD))), "amd"))

    assert refusals(service, named("next", pod(gpus(1, AMD))), "amd") == {
        "amd": "the namespace has 2 of at most 2 MI300X: wants 1 more"
    }
    assert refusals(service, named("next", pod(gpus(1))), "h") == {}


def test_labels_of_a_namespace_choose_its_limit_from_the_next_question_on(tmp_path: Path) -> None:
    """F162."""
    match = "match: {namespaceSelector: {matchLabels: {tier: small}}}"
    service = serving(tmp_path, [node_document("h", H100)], f"priority: 5, {match}, {LIMITS}", filter_answer="all")
    service.state.put_pod(bound(named("one", pod(gpus(2))), "h"))
    next_pod = named("next", pod(gpus(1)))

    seen = []
    for tier in ("small", "large", "small"):
        service.state.namespaces.put("team-a", {"tier": tier})
        seen.append(refusals(service, next_pod, "h"))

    assert seen == [{"h": REACHED}, {}, {"h": REACHED}]


def test_members_of_a_group_stay_below_the_limit_together(tmp_path: Path) -> None:
    """F162, F150: kube-scheduler asks about all of them before it binds one, in any order, and more than once."""
    service = serving(tmp_path, [node_document("h", H100)])
    members = [named(f"m-{index}", pod(gpus(1), schedulingGroup={"podGroupName": "gang"})) for index in range(4)]
    for member in members:
        service.state.put_pod(member)

    open_to = [bool(asked(service, member, ["h"])["NodeNames"]) for member in (*reversed(members), *members)]

    assert open_to == [False, False, True, True, True, True, False, False]


def test_what_was_named_for_a_group_counts_for_the_next_pod(tmp_path: Path) -> None:
    """F162, F150: for a second, as there is no promise to a member."""
    service = serving(tmp_path, [node_document("h", H100)])
    member = named("m", pod(gpus(2), schedulingGroup={"podGroupName": "gang"}))
    service.state.put_pod(member)

    assert asked(service, member, ["h"])["NodeNames"] == ["h"]
    assert refusals(service, named("next", pod(gpus(1))), "h") == {"h": REACHED}


def test_each_unit_that_is_bound_beyond_a_limit_is_counted_once(tmp_path: Path) -> None:
    """F162: by resource and by claim; a limit that is lowered below what is held is not exceeded by that."""
    service = serving(tmp_path, [node_document("h", H100)], filter_answer="all")
    counted = service.metrics.limits_exceeded._value.get
    asked(service, named("first", pod(gpus(1))))

    seen = []
    for uid, amount in (("a", 1), ("b", 2), ("c", 1)):
        service.state.put_pod(bound(named(uid, pod(gpus(amount))), "h"))
        service.state.put_pod(bound(named(uid, pod(gpus(amount))), "h"))
        seen.append(counted())
    service.state.drop_pod("b")
    service.state.devices.put_claim(claim("late", ["gpu-0", "gpu-4"]))
    seen.append(counted())
    service.state.drop_pod("a")
    service.state.drop_pod("c")
    service.state.put_pod(bound(named("d", pod(gpus(1))), "h"))

    assert seen == [0, 1, 2, 3]
    assert counted() == 3
