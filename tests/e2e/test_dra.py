# SPDX-License-Identifier: Apache-2.0
"""The equivalent claim that we write is judged by the real API server, which compiles its CEL, and by the real
kube-scheduler, which evaluates it on hand-made ResourceSlices (S13, F135).
"""

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest

from app.explain.explanation import dra_equivalent
from app.knowledge.cuda_compatibility import AcceptedCompatibility
from app.nodes.model import Node
from app.placement.engine import judge
from app.policy.demand import Demand
from app.world.state import State
from tests.builders import demand, gpus, knowledge, pod
from tests.cluster import dynamic
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Object
from tests.dra.makes import DEVICES, IMAGES, MAKES, WISHES, device, device_class, slice_of
from tests.e2e.offers import dra_path, dra_version, keeps_counters, keeps_counters_apart
from tests.e2e.stage import Service, create_namespace, eventually, read_pod, refusal, serving

PLAIN = "plain-scheduler"
DRAWN = 16
SLICES = {
    **{make: slice_of(make, [device(n, "gpu", make) for n in range(DEVICES)]) for make in MAKES},
    "mig": slice_of("mig", [device(0, "mig", "h100", profile="1g.10gb"), device(1, "mig", "h100", profile="1g.10gb+me"),
                            device(2, "mig", "h100", profile="3g.40gb")]),
}  # fmt: skip


@pytest.fixture(scope="module")
def stage(plane: ControlPlane) -> ControlPlane:
    """Nodes, their ResourceSlices, the DeviceClasses, and a scheduler without an extender."""
    add_nodes(plane.api, [node_object(name, offers={}) for name in SLICES])
    for document in SLICES.values():
        plane.api.create(f"{dra_path(plane)}/resourceslices", document)
    for name, kind in (("gpu.nvidia.com", "gpu"), ("mig.nvidia.com", "mig")):
        plane.api.create(f"{dra_path(plane)}/deviceclasses", device_class(name, kind))
    header = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    plane.start_scheduler({**header, "profiles": [{"schedulerName": PLAIN}]}, PLAIN)
    return plane


def demands() -> list[tuple[str, Demand]]:
    """List every wish and every image by itself, and then combinations, which are the same in each run.

    Unknown facts refuse a node where native CUDA compatibility is demanded.
    """
    chance = random.Random(13)
    drawn: list[tuple[dict[str, str], str, AcceptedCompatibility]] = [
        ({key: word}, IMAGES[0], AcceptedCompatibility.MinorVersion) for key, words in WISHES.items() for word in words
    ]
    drawn.append(({"gpu-memory": "16Gi"}, IMAGES[0], AcceptedCompatibility.Native))
    drawn += [({}, image, accept) for image in IMAGES for accept in AcceptedCompatibility]
    for _ in range(DRAWN):
        keys = chance.sample(list(WISHES), chance.randint(1, 3))
        drawn.append(
            (
                {key: chance.choice(WISHES[key]) for key in keys},
                chance.choice(IMAGES),
                AcceptedCompatibility.MinorVersion,
            )
        )
    return [(f"{wishes} {image} {accept.name}", _demand(wishes, image, accept)) for wishes, image, accept in drawn]


def _demand(annotations: dict[str, str], image: str, accept: AcceptedCompatibility) -> Demand:
    compiled = demand(pod(gpus(1 + len(annotations) % 2, image=image), annotations=annotations))
    assert compiled.invalid is None
    return replace(compiled, accept=accept, refuse_unknown=accept is AcceptedCompatibility.Native)


def create_template(plane: ControlPlane, namespace: str, name: str, pod_demand: Demand) -> Object:
    template = dra_equivalent(pod_demand, knowledge(), name, dra_version(plane))["template"]
    return plane.api.create(f"{dra_path(plane)}/namespaces/{namespace}/resourceclaimtemplates", template)


def claiming(namespace: str, name: str, template: str, node: str) -> Object:
    """Write a pod that claims by a template and may run on one node only."""
    spec: dict[str, Any] = {
        "schedulerName": PLAIN,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": template}],
        "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "gpus"}]}}],
    }
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


def outcomes(plane: ControlPlane, pods: dict[tuple[str, str], Object]) -> dict[tuple[str, str], str]:
    """Create pods, wait until each is bound or refused, and return the refusals, "" for a pod that is bound."""
    refusals: dict[tuple[str, str], str] = {}
    for document in pods.values():
        plane.api.create(f"/api/v1/namespaces/{document['metadata']['namespace']}/pods", document)

    def decided() -> bool:
        for key, document in pods.items():
            now = read_pod(plane, document) if key not in refusals else {}
            if now and (now["spec"].get("nodeName") or "cannot allocate" in refusal(now) or "CEL" in refusal(now)):
                refusals[key] = "" if now["spec"].get("nodeName") else refusal(now)
        return len(refusals) == len(pods)

    eventually("every pod is bound or refused", decided, 120)
    return refusals


def fits(make: str, pod_demand: Demand) -> bool:
    """Tell whether our own filter accepts a node whose facts come from the same slice (F135)."""
    state = State(knowledge())
    state.put_node({"metadata": {"name": make}})
    state.devices.put_slice(SLICES[make])
    state.devices.put_device_class(
        {"metadata": {"name": "gpu.nvidia.com"}, "spec": {"extendedResourceName": "nvidia.com/gpu"}}
    )
    return judge(pod_demand, state.nodes[make], recount=False) is None


def test_claim_takes_just_the_devices_that_filter_lets_a_demand_have(stage: ControlPlane) -> None:
    """S13, F135: the API server compiles each template's CEL; kube-scheduler evaluates it on every make of device."""
    namespace = create_namespace(stage, "random")
    named_demands = demands()
    for number, (_, pod_demand) in enumerate(named_demands):
        create_template(stage, namespace, f"d{number}", pod_demand)
    keys = itertools.product(range(len(named_demands)), MAKES)
    pods = {(str(n), make): claiming(namespace, f"p{n}-{make}", f"d{n}", make) for n, make in keys}

    refusals = outcomes(stage, pods)

    got = {(named_demands[int(n)][0], make): not words for (n, make), words in refusals.items()}
    expected = {(words, make): fits(make, pod_demand) for words, pod_demand in named_demands for make in MAKES}
    assert got == expected
    assert not [words for words in refusals.values() if "CEL" in words]
    assert 0.1 < sum(expected.values()) / len(expected) < 0.9


@pytest.mark.parametrize(
    ("pod_demand", "taken"),
    [
        (demand(pod(gpus(1, "nvidia.com/mig-1g.10gb"))), ["gpu-0"]),
        (demand(pod(gpus(1, "nvidia.com/mig-1g.10gb.me"))), ["gpu-1"]),
        (demand(pod(gpus(1), annotations={"mig-profile": ">=2g.20gb"})), ["gpu-2"]),
        (demand(pod(gpus(1, "nvidia.com/mig-7g.80gb"))), None),
        (demand(pod(gpus(2, "nvidia.com/mig-1g.10gb"))), None),
        (demand(pod()), None),
    ],
    ids=["profile", "with media", "at least", "another profile", "two where one is", "a whole GPU"],
)
def test_slice_is_taken_by_its_profile(
    stage: ControlPlane, pod_demand: Demand, taken: list[str] | None, request: pytest.FixtureRequest
) -> None:
    """S13: the class is mig.nvidia.com, and the profile `1g.10gb+me` is not `1g.10gb`."""
    namespace = create_namespace(stage, request.node.callspec.id.replace(" ", "-").lower())
    create_template(stage, namespace, "d", pod_demand)
    one = claiming(namespace, "p", "d", "mig")

    words = outcomes(stage, {("", ""): one})["", ""]

    claims = stage.api.get(f"{dra_path(stage)}/namespaces/{namespace}/resourceclaims")["items"]
    allocations = [claim["status"]["allocation"] for claim in claims if "allocation" in claim["status"]]
    devices = [result["device"] for allocation in allocations for result in allocation["devices"]["results"]]
    assert (not words, devices) == (taken is not None, taken or [])


CARVED = "carved"
PROFILES = ("1g.10gb", "1g.10gb.me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb")


def test_slice_carved_on_demand_finds_a_place_just_where_our_layout_has_one(stage: ControlPlane) -> None:
    """F60: two GPUs fill up with wishes. kube-scheduler counts by KEP-4815, and we by the slots of the fact table."""
    if not keeps_counters(stage):
        pytest.skip("The API server drops sharedCounters (KEP-4815). Choose a newer version.")
    namespace, chance = create_namespace(stage, "carved"), random.Random(60)
    add_nodes(stage.api, [node_object(CARVED, offers={})])
    for document in carved_slices(apart=keeps_counters_apart(stage)):
        stage.api.create(f"{dra_path(stage)}/resourceslices", document)
    wishes = [(chance.choice(PROFILES), chance.choice((1, 1, 2))) for _ in range(18)]

    verdicts = []
    for number, (profile, count) in enumerate(wishes):
        pod_demand = demand(pod(gpus(count, f"nvidia.com/mig-{profile}")))
        ours = judge(pod_demand, node_from_slices(stage), recount=True)
        create_template(stage, namespace, f"d{number}", pod_demand)
        theirs = outcomes(stage, {("", ""): claiming(namespace, f"p{number}", f"d{number}", CARVED)})["", ""]
        verdicts.append((profile, count, ours is None, not theirs))

    assert [verdict[2] for verdict in verdicts] == [verdict[3] for verdict in verdicts], verdicts
    assert {True, False} == {verdict[2] for verdict in verdicts}


def carved_slices(apart: bool) -> list[Object]:
    """Write the slices of two GPUs, with their counters in a slice of their own, or beside the devices.

    The driver does the one or the other by the version of Kubernetes, since the API server takes one of them.
    """
    counters = [dynamic.counter_set(minor) for minor in range(2)]
    devices = [dynamic.carved(minor) for minor in range(2)]
    if not apart:
        both = [*devices[0], *devices[1]]
        return [dynamic.resource_slice(both, "carved", CARVED, sharedCounters=counters)]
    counters_alone = dynamic.resource_slice([], "carved-counters", CARVED, count=3, sharedCounters=counters)
    counters_alone["spec"].pop("devices")
    return [
        counters_alone,
        *(dynamic.resource_slice(devices[minor], f"carved-{minor}", CARVED, count=3) for minor in range(2)),
    ]


def node_from_slices(stage: ControlPlane) -> Node:
    """Read the carved node from its slices, and from the claims as kube-scheduler allocated them."""
    state = State(knowledge())
    state.put_node({"metadata": {"name": CARVED}})
    for document in stage.api.items(f"{dra_path(stage)}/resourceslices"):
        state.devices.put_slice(document)
    for document in stage.api.items(f"{dra_path(stage)}/resourceclaims"):
        state.devices.put_claim(document)
    for profile in PROFILES:
        state.devices.put_device_class(dynamic.device_class(f"nvidia.com/mig-{profile}", profile))
    assert state.nodes[CARVED].free.layouts is not None
    return state.nodes[CARVED]


def test_service_follows_claims_and_templates(stage: ControlPlane) -> None:
    """S13: with the rights of deploy/components/dra, the service follows those of all namespaces."""
    namespace = create_namespace(stage, "followed")
    create_template(stage, namespace, "d", demand(pod()))
    claim = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": []}}}
    with serving(stage) as service:
        before = followed_objects(service)
        stage.api.create(f"{dra_path(stage)}/namespaces/{namespace}/resourceclaims", claim)

        eventually("the claim is seen", lambda: followed_objects(service)[0] == before[0] + 1)

        stage.api.delete(f"{dra_path(stage)}/namespaces/{namespace}/resourceclaimtemplates/d")
        eventually("the template is gone", lambda: followed_objects(service)[1] == before[1] - 1)


def followed_objects(service: Service) -> tuple[int, int]:
    """Return how many claims and how many templates the service knows."""
    caches = service.health()["caches"]
    assert not any("error" in cache for cache in caches.values())
    return int(caches["resourceclaims"]["objects"]), int(caches["resourceclaimtemplates"]["objects"])
