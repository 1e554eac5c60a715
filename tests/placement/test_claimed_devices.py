# SPDX-License-Identifier: Apache-2.0
"""Filters and scores of pods with claims: by the devices that the claims' selectors can take on a node (S13, F135)."""

from pathlib import Path
from typing import Any

import pytest

from app.dra.device_kinds import DeviceKinds
from app.kube.claimed_devices import claimed_devices
from app.kube.pods import read_pod
from app.placement.engine import as_claimed, judge, total
from app.policy.compiled import PolicySet
from app.policy.demand import Demand
from app.policy.match import compile_demand
from app.values.reasons import Code
from app.world.state import State
from app.world.verdict_cache import VerdictCache
from tests.builders import container, knowledge, make_service, node_document, pod, policies, policy, shipped, state_of

GPU, MIG = "gpu.nvidia.com", "mig.nvidia.com"
H100, T4, A100 = "NVIDIA H100 80GB HBM3", "Tesla T4", "NVIDIA A100-SXM4-80GB"
ATTRIBUTES = f"device.attributes['{GPU}']"
OF_T4 = f"{ATTRIBUTES}.productName == '{T4}'"
OF_H100 = f"{ATTRIBUTES}.productName == '{H100}'"
CAPABILITIES = {H100: "9.0.0", T4: "7.5.0", A100: "8.0.0"}
MEMORY = {H100: "80Gi", T4: "15Gi", A100: "80Gi"}
NEW, OLD = ("580.82.7", "13.0.0"), ("470.57.2", "11.4.0")


def gpu(name: str, product: str, driver: tuple[str, str] = NEW, profile: str = "", **more: Any) -> dict[str, Any]:
    """Write a device as NVIDIA's driver publishes it."""
    texts = {"type": "mig" if profile else "gpu", "productName": product, "uuid": f"GPU-{name}"}
    texts |= {"profile": profile, "parentUUID": "GPU-parent"} if profile else {}
    versions = {"driverVersion": driver[0], "cudaDriverVersion": driver[1]}
    versions["cudaComputeCapability"] = CAPABILITIES[product]
    attributes: dict[str, Any] = {key: {"string": text} for key, text in texts.items()}
    attributes |= {key: {"version": text} for key, text in versions.items()}
    memory = f"{profile.partition('.')[2].removesuffix('gb')}Gi" if profile else MEMORY[product]
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": memory}}, **more}


def on_node(*devices: dict[str, Any], node: str = "n") -> list[dict[str, Any]]:
    """Write a node without labels, and the slice of its devices."""
    spec = {
        "driver": GPU,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": list(devices),
    }
    written = {"kind": "ResourceSlice", "metadata": {"name": f"{node}-slice"}, "spec": spec}
    return [node_document(node, product=None, driver=None, offers={}), written]


def device_class(name: str, kind: str) -> dict[str, Any]:
    """Write a DeviceClass as NVIDIA's chart does."""
    expression = f"device.driver == '{GPU}' && {ATTRIBUTES}.type == '{kind}'"
    return {
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


CLASSES = (device_class(GPU, "gpu"), device_class(MIG, "mig"))


def template(*requests: dict[str, Any]) -> dict[str, Any]:
    """Write the ResourceClaimTemplate `gpus` of team-a."""
    return {
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpus", "namespace": "team-a"},
        "spec": {"spec": {"devices": {"requests": list(requests)}}},
    }


def exactly(*selectors: str, device_class: str = GPU, name: str = "r", **more: Any) -> dict[str, Any]:
    """Write a request for one device."""
    written = [{"cel": {"expression": selector}} for selector in selectors]
    return {"name": name, "exactly": {"deviceClassName": device_class, "selectors": written, **more}}


def cluster(devices: list[dict[str, Any]], *requests: dict[str, Any], more: tuple[dict[str, Any], ...] = ()) -> State:
    """Make the state of a cluster with one node and the template of the pod."""
    return state_of([*CLASSES, *devices, template(*requests or (exactly(),)), *more])


def claiming(state: State, policy_set: PolicySet | None = None, image: str = "train:1", **annotations: str) -> Demand:
    """Compile the demand of a pod of team-a that claims by the template."""
    used = container(resources={"claims": [{"name": "g"}]}, image=image)
    claims = [{"name": "g", "resourceClaimTemplateName": "gpus"}]
    named = {key.replace("_", "-"): value for key, value in annotations.items()}
    asking = read_pod(pod(used, annotations=named, resourceClaims=claims))
    return compile_demand(asking, {}, policy_set or shipped(), knowledge(), state.devices.claimed(asking))


def annotated(state: State, annotations: dict[str, str]) -> Demand:
    """Compile the demand of such a pod with these annotations."""
    return claiming(state, None, **annotations)


def code(state: State, pod_demand: Demand, node: str = "n") -> Code | None:
    """Return the code of the refusal of a node, as the cache of verdicts and the plain engine both give it."""
    refusal = judge(pod_demand, state.nodes[node], recount=False)
    verdicts = VerdictCache(state, recount=False).of(pod_demand)
    assert (node in verdicts.feasible) is (refusal is None)
    return refusal.code if refusal else None


CUDA_13 = "nvcr.io/nvidia/cuda:13.0.1-base-ubuntu24.04"


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        pytest.param((), None, id="either"),
        pytest.param((OF_H100,), None, id="the new one"),
        pytest.param((OF_T4,), Code.DriverTooOld, id="the old one"),
    ],
)
def test_driver_is_judged_on_the_devices_that_the_selectors_can_take(
    selectors: tuple[str, ...], expected: Code | None
) -> None:
    state = cluster(on_node(gpu("gpu-0", H100), gpu("gpu-1", T4, OLD)), exactly(*selectors))

    assert code(state, claiming(state, image=CUDA_13)) is expected


def test_policy_about_products_holds_for_claims() -> None:
    only_h100 = policies(policy("p", "placement: {products: {allow: [H100]}}"))
    devices = on_node(gpu("gpu-0", H100), gpu("gpu-1", T4))
    verdicts = {}
    for name, selector in (("T4", OF_T4), ("H100", OF_H100)):
        state = cluster(devices, exactly(selector))
        verdicts[name] = code(state, claiming(state, only_h100))

    assert verdicts == {"T4": Code.ProductNotAllowed, "H100": None}


@pytest.mark.parametrize(("count", "expected"), [(2, None), (3, Code.ProductNotAllowed)])
def test_as_many_devices_must_be_suitable_as_are_requested(count: int, expected: Code | None) -> None:
    state = cluster(on_node(gpu("gpu-0", H100), gpu("gpu-1", T4), gpu("gpu-2", H100)), exactly(count=count))

    assert code(state, claiming(state, products="H100")) is expected


@pytest.mark.parametrize(("selector", "expected"), [("true", Code.ProductNotAllowed), (OF_H100, None)])
def test_request_for_all_devices_gets_the_unsuitable_ones_too(selector: str, expected: Code | None) -> None:
    state = cluster(on_node(gpu("gpu-0", H100), gpu("gpu-1", T4)), exactly(selector, allocationMode="All"))

    assert code(state, claiming(state, products="H100")) is expected


def test_every_request_must_get_a_suitable_device() -> None:
    devices = on_node(gpu("gpu-0", H100), gpu("gpu-1", T4))
    state = cluster(devices, exactly(OF_H100, name="one"), exactly(OF_T4, name="two"))

    assert code(state, claiming(state, products="H100")) is Code.ProductNotAllowed


def test_one_suitable_alternative_is_enough() -> None:
    choices = [
        {"name": name, "deviceClassName": GPU, "selectors": [{"cel": {"expression": selector}}]}
        for name, selector in (("one", OF_T4), ("two", OF_H100))
    ]
    state = cluster(on_node(gpu("gpu-0", H100), gpu("gpu-1", T4)), {"name": "r", "firstAvailable": choices})

    assert code(state, claiming(state, products="H100")) is None


@pytest.mark.parametrize(
    ("name", "annotations", "expected"),
    [
        ("gpu", {"gpu_memory": "40Gi"}, None),
        ("slice", {"gpu_memory": "40Gi"}, Code.GPUMemoryTooSmall),
        ("slice", {"gpu_memory": "9Gi"}, None),
        ("slice", {"interconnect": "NVLink"}, Code.InterconnectAbsent),
        ("slice", {"mig_profile": "1g.10gb"}, None),
        ("slice", {"mig_profile": "2g.20gb"}, Code.MIGProfileAbsent),
    ],
)
def test_slice_is_judged_as_the_slice_that_it_is(name: str, annotations: dict[str, str], expected: Code | None) -> None:
    """Beside a whole GPU too, of which filters saw the memory alone."""
    state = cluster(
        on_node(gpu("gpu-0", H100), gpu("gpu-1-mig", H100, profile="1g.10gb")),
        exactly(device_class=GPU if name == "gpu" else MIG),
    )

    assert code(state, annotated(state, annotations)) is expected


TAINT = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}


@pytest.mark.parametrize(("tolerations", "expected"), [([], Code.ProductNotAllowed), ([{"operator": "Exists"}], None)])
def test_device_behind_a_taint_is_not_one_that_the_claim_can_take(
    tolerations: list[dict[str, str]], expected: Code | None
) -> None:
    state = cluster(on_node(gpu("gpu-0", H100, taints=[TAINT]), gpu("gpu-1", T4)), exactly(tolerations=tolerations))

    assert code(state, claiming(state, products="H100")) is expected


def test_taint_of_a_rule_counts_like_one_of_the_slice() -> None:
    spec = {"deviceSelector": {"driver": GPU, "pool": "n", "device": "gpu-0"}, "taint": TAINT}
    rule = {"kind": "DeviceTaintRule", "apiVersion": "resource.k8s.io/v1", "metadata": {"name": "r"}, "spec": spec}
    state = cluster(on_node(gpu("gpu-0", H100), gpu("gpu-1", T4)))
    before = code(state, claiming(state, products="H100"))

    state.devices.put_taint_rule(rule)
    tainted = code(state, claiming(state, products="H100"))
    state.devices.drop_taint_rule("r")

    assert (before, tainted, code(state, claiming(state, products="H100"))) == (None, Code.ProductNotAllowed, None)


@pytest.mark.parametrize(
    "selector",
    [
        pytest.param(f"{ATTRIBUTES}.uuid == 'GPU-gpu-1'", id="what identifies a device"),
        pytest.param(f"{ATTRIBUTES}.nothing == 'x'", id="an attribute that is not there"),
        pytest.param("this is no CEL", id="no CEL"),
        pytest.param(f"{ATTRIBUTES}.productName == 'nothing'", id="nothing is selected"),
    ],
)
def test_what_is_not_judged_refuses_nothing(selector: str) -> None:
    state = cluster(on_node(gpu("gpu-0", H100), gpu("gpu-1", T4)), exactly(selector))

    assert code(state, claiming(state, products="H100")) is None


def test_unknown_device_class_refuses_nothing() -> None:
    state = cluster(on_node(gpu("gpu-0", H100), gpu("gpu-1", T4)), exactly(OF_T4))
    state.devices.drop_device_class(GPU)

    assert code(state, claiming(state, products="H100")) is None


def test_class_that_selects_otherwise_is_judged_anew() -> None:
    state = cluster(on_node(gpu("gpu-0", H100), gpu("gpu-1", T4)))
    asking = claiming(state, products="H100")
    cache = VerdictCache(state, recount=False)
    assert "n" in cache.of(asking).feasible

    changed = device_class(GPU, "gpu")
    changed["spec"]["selectors"].append({"cel": {"expression": OF_T4}})
    state.devices.put_device_class(changed)

    assert "n" not in cache.of(asking).feasible


def allocated(*devices: str) -> dict[str, Any]:
    """Write a claim that has devices of the node."""
    results = [{"request": "r", "driver": GPU, "pool": "n", "device": device} for device in devices]
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": "held", "namespace": "team-b"},
        "spec": {"devices": {"requests": [exactly()]}},
        "status": {"allocation": {"devices": {"results": results}}},
    }


def test_devices_that_are_held_refuse_nothing() -> None:
    """Decision 37: kube-scheduler's view of them is newer."""
    state = cluster(on_node(gpu("gpu-0", H100), gpu("gpu-1", T4)), more=(allocated("gpu-0", "gpu-1"),))

    assert code(state, claiming(state, products="H100")) is None


@pytest.mark.parametrize(
    ("held", "product"), [((), "h100-80gb-hbm3"), (("gpu-0",), "t4"), (("gpu-0", "gpu-1"), "h100-80gb-hbm3")]
)
def test_score_is_that_of_the_device_that_the_claim_gets_now(held: tuple[str, ...], product: str) -> None:
    devices = on_node(gpu("gpu-0", H100), gpu("gpu-1", T4), gpu("gpu-2", H100))
    state = cluster(devices, more=(allocated(*held),) if held else ())

    assert as_claimed(claiming(state), state.nodes["n"]).node_class.product == product


def test_node_whose_next_device_is_unsuitable_scores_half() -> None:
    devices = [
        document
        for name, products in (("good", (H100, T4)), ("bad", (T4, H100)))
        for document in on_node(*(gpu(f"gpu-{index}", made) for index, made in enumerate(products)), node=name)
    ]
    state = cluster(devices)
    asking = claiming(state, products="H100")

    totals = {name: total(asking, node) for name, node in state.nodes.items()}

    assert [code(state, asking, node=name) for name in totals] == [None, None]
    assert totals["bad"] == pytest.approx(totals["good"] / 2)
    assert VerdictCache(state, recount=False).of(asking).totals(["good", "bad"]) == [totals["good"], totals["bad"]]


def test_totals_follow_what_is_held() -> None:
    state = cluster(on_node(gpu("gpu-0", H100), gpu("gpu-1", T4), gpu("gpu-2", H100)))
    asking, cache = claiming(state, products="H100"), VerdictCache(state, recount=False)
    (before,) = cache.of(asking).totals(["n"])

    state.devices.put_claim(allocated("gpu-0"))
    (after,) = cache.of(asking).totals(["n"])

    assert after < before
    assert after == total(asking, state.nodes["n"])


def test_nodes_with_the_same_kinds_share_what_is_selected() -> None:
    """They differ in their UUIDs alone."""
    devices = [
        document
        for name in ("one", "two")
        for document in on_node(*(gpu(f"{name}-{index}", H100) for index in range(8)), node=name)
    ]
    state = cluster(devices)

    one, two = (state.nodes[name] for name in ("one", "two"))
    assert one.devices is not None
    assert one.devices is two.devices


def test_fuller_node_scores_higher_for_a_claim() -> None:
    devices = [
        document
        for name in ("n", "empty")
        for document in on_node(*(gpu(f"gpu-{index}", H100) for index in range(4)), node=name)
    ]
    state = cluster(devices, more=(allocated("gpu-0", "gpu-1"),))

    assert total(claiming(state), state.nodes["n"]) > total(claiming(state), state.nodes["empty"])


CLIQUE = {"nvidia.com/gpu.clique": "rack-1.0"}
GROUP = {"jobset.sigs.k8s.io/jobset-name": "g"}


def worker(name: str, node: str = "", phase: str = "Pending") -> dict[str, Any]:
    """Write a pod of one workload that claims devices by the template."""
    claims = [{"name": "g", "resourceClaimTemplateName": "gpus"}]
    written = pod(container(resources={"claims": [{"name": "g"}]}), resourceClaims=claims)
    written["metadata"] |= {"name": name, "uid": name, "labels": GROUP}
    written["spec"] |= {"nodeName": node} if node else {}
    return written | {"status": {"phase": phase}}


@pytest.mark.parametrize(("phase", "cliques"), [("Running", {"rack-1.0"}), ("Succeeded", set())])
def test_pods_with_claims_keep_to_the_nvlink_domain_of_their_workload(phase: str, cliques: set[str]) -> None:
    state = cluster(on_node(gpu("gpu-0", H100)))
    state.put_node(node_document("n", product=None, driver=None, offers={}, labels=CLIQUE))
    state.put_pod(worker("one", "n", phase))

    assert state.group_cliques(read_pod(worker("two"))) == cliques
    assert state.group_cliques(read_pod(worker("one", "n"))) == frozenset()
    state.drop_pod("one")
    assert state.group_cliques(read_pod(worker("two"))) == frozenset()


CHANNELS = "compute-domain.nvidia.com"


def test_claim_for_an_imex_channel_beside_the_gpus_is_left_to_kube_scheduler() -> None:
    """Its slice is on the same node, and may name a device as that of the GPUs does."""
    expression = f"device.driver == '{CHANNELS}' && device.attributes['{CHANNELS}'].type == 'channel'"
    channels = device_class("compute-domain-default-channel.nvidia.com", "channel")
    channels["spec"]["selectors"] = [{"cel": {"expression": expression}}]
    documents = on_node(gpu("gpu-0", H100))
    channel = {"name": "gpu-0", "attributes": {"type": {"string": "channel"}, "id": {"int": 0}}}
    of_channels = on_node(channel)[1]
    of_channels["metadata"]["name"] = "channels"
    of_channels["spec"]["driver"] = CHANNELS
    requests = (exactly(name="gpu"), exactly(name="channel", device_class=channels["metadata"]["name"]))

    state = cluster([*documents, of_channels], *requests, more=(channels,))

    asked = claiming(state, products="H100")
    assert asked.claims == ((GPU, 1),)
    assert (code(state, asked), code(state, claiming(state, products="L4"))) == (None, Code.ProductNotAllowed)
    assert isinstance(devices := state.nodes["n"].devices, DeviceKinds)
    assert {kind.device.driver: kind.model is not None for kind in devices.kinds} == {GPU: True, CHANNELS: False}


def test_service_finds_the_claims_that_the_state_finds(tmp_path: Path) -> None:
    """It asks the state only about pods that may have some (F135)."""
    service = make_service(tmp_path, on_node(gpu("gpu-0", H100)))
    served = {**device_class("served", "gpu"), "spec": {"extendedResourceName": "example.com/gpu", "selectors": []}}
    for written in (device_class(GPU, "gpu"), {**served, "metadata": {"name": "gpu.example.com"}}):
        service.state.devices.put_device_class(written)
    names = ("nvidia.com/gpu", "cpu", "example.com/gpu", f"deviceclass.resource.kubernetes.io/{GPU}", "example.com/nic")
    by_claim = {"resourceClaims": [{"name": "g", "resourceClaimName": "missing"}]}
    documents = [{**pod(container({name: "1"}))} for name in names]
    documents += [{**document, "spec": {**document["spec"], **by_claim}} for document in documents]
    pods = list(map(read_pod, documents))

    found = [service.state.devices.claimed(asking) for asking in pods]

    dra, classes = service.state.devices.dra, service.state.devices.classes
    read = (claimed_devices(one, dra.claim_spec, dra.template_spec, classes.family, classes.serving) for one in pods)
    assert found == [*read]
    assert sum(bool(claimed.classes or claimed.unknown) for claimed in found) >= 6
