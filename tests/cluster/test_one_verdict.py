# SPDX-License-Identifier: Apache-2.0
"""Filter, preempt, explain and admission give one verdict on a pod that claims devices or contradicts itself.

The verdict on pods that claim GPUs through DRA is compared with a plain check (S13, F135).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.admission.review import validate
from app.admission.reviewed_pod import ReviewContext
from app.explain.pending_pod import explain
from app.kube.claimed_devices import NO_CLAIMED_DEVICES
from app.kube.pods import gpu_amounts, read_pod
from app.policy.compiled import PolicySet
from app.policy.merge import PodGPURequest
from app.server.service import Service
from app.values.computations import finish
from tests.builders import container, gpus, knowledge, make_service, node_document, pod, policies, policy
from tests.finished import filter_nodes, preempt

REFUSING = policy("strict", "match: {}, placement: {unknownFacts: Refuse, cuda: {fromImage: true}}")
LENIENT = policy("lenient", "match: {}, placement: {unknownFacts: Accept, cuda: {fromImage: true}}")
OLD, NEW = "470.82.1", "580.95.5"
"""Driver versions as DRA publishes them: CUDA 13 runs on the second, and never on the first."""
IMAGES = {"train:1": False, "nvidia/cuda:13.0.0-base-ubuntu24.04": True}
"""Images, and whether they need the newer of the two drivers."""


@dataclass(frozen=True)
class Make:
    """The facts of one device; None where they are unknown."""

    product: str | None
    driver: str | None
    capability: str | None
    memory_gib: int | None


UNKNOWN = Make(None, None, None, None)
PRODUCTS = {"H100": "NVIDIA H100 80GB HBM3", "A100": "NVIDIA A100-SXM4-80GB", "T4": "Tesla T4"}
CAPABILITIES = {"NVIDIA H100 80GB HBM3": "9.0.0", "NVIDIA A100-SXM4-80GB": "8.0.0", "Tesla T4": "7.5.0"}
MEMORY_GIB = {"NVIDIA H100 80GB HBM3": 80, "NVIDIA A100-SXM4-80GB": 80, "Tesla T4": 16}
"""The fact table of products fills in what a device does not publish."""


@dataclass(frozen=True)
class Wish:
    """What the pod needs of the GPU that it claims; `broken` is whether an annotation does not parse."""

    products: tuple[str, ...] = ()
    memory_gib: int = 0
    capability: str | None = None
    image: str = "train:1"
    broken: bool = False

    def annotations(self) -> dict[str, str]:
        """Write the wish as annotations."""
        annotations = {
            "products": ", ".join(self.products),
            "gpu-memory": f"{self.memory_gib}Gi" if self.memory_gib else "",
            "compute-capability": self.capability or "",
            "sharing": "sometimes" if self.broken else "",
        }
        return {key: value for key, value in annotations.items() if value}


def device_serves(make: Make, wish: Wish, refuse_unknown: bool) -> bool:
    """Check plainly whether a device meets a wish; an unknown product meets no wish for a product."""
    unknown = not refuse_unknown
    has = make.capability or CAPABILITIES.get(make.product or "")
    size = make.memory_gib or MEMORY_GIB.get(make.product or "")
    product = not wish.products or make.product in {PRODUCTS[name] for name in wish.products}
    starts = not IMAGES[wish.image] or (make.driver == NEW if make.driver else unknown)
    served = not IMAGES[wish.image] or has is not None or unknown  # CUDA 13 serves all that are drawn
    floor = wish.capability
    capability = floor is None or (has >= floor if has else unknown)
    memory = not wish.memory_gib or (size >= wish.memory_gib if size else unknown)
    return product and starts and served and capability and memory


def node_serves(makes: list[Make], wish: Wish, refuse_unknown: bool) -> bool:
    """Check plainly whether some device of a node meets a wish; a node without published devices may have any."""
    return not wish.broken and any(device_serves(make, wish, refuse_unknown) for make in makes or [UNKNOWN])


def slice_of(node: str, makes: list[Make]) -> dict[str, Any]:
    devices = [device(index, make) for index, make in enumerate(makes)]
    spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": {"name": node}, "devices": devices}
    return {"kind": "ResourceSlice", "metadata": {"name": f"{node}-gpus"}, "spec": spec}


def device(index: int, make: Make) -> dict[str, Any]:
    values = {
        "productName": {"string": make.product},
        "driverVersion": {"version": make.driver},
        "cudaComputeCapability": {"version": make.capability},
    }
    attributes = {key: value for key, value in values.items() if next(iter(value.values()))}
    capacity = {"memory": {"value": f"{make.memory_gib}Gi"}} if make.memory_gib else {}
    return {"name": f"gpu-{index}", "attributes": {"type": {"string": "gpu"}, **attributes}, "capacity": capacity}


def cluster(fleet: list[list[Make]]) -> list[dict[str, Any]]:
    """Write the nodes `n0`, `n1`, … without labels, their slices, and the template that the pod names."""
    nodes = [node_document(f"n{index}", product=None, driver=None, offers={}) for index in range(len(fleet))]
    slices = [slice_of(f"n{index}", makes) for index, makes in enumerate(fleet) if makes]
    return [*nodes, *slices, TEMPLATE]


REQUEST = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 1}}
TEMPLATE = {
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "one", "namespace": "team-a"},
    "spec": {"spec": {"devices": {"requests": [REQUEST]}}},
}


def claiming(wish: Wish) -> dict[str, Any]:
    """Write a pod of one container that claims a GPU."""
    user = container(image=wish.image, resources={"claims": [{"name": "g"}]})
    entry = {"name": "g", "resourceClaimTemplateName": "one"}
    return pod(user, annotations=wish.annotations(), resourceClaims=[entry])


def filtered(service: Service, document: dict[str, Any]) -> set[str]:
    """Return the nodes that filter accepts."""
    body = json.dumps({"Pod": document, "NodeNames": list(service.nodes)}).encode()
    return set(json.loads(filter_nodes(body, service).body)["NodeNames"])


def preempted(service: Service, document: dict[str, Any]) -> set[str]:
    """Return the nodes on which, by preempt, the eviction of a pod would help."""
    victims = {name: {"Pods": [{"UID": "victim"}]} for name in service.nodes}
    body = json.dumps({"Pod": document, "NodeNameToMetaVictims": victims}).encode()
    return set(json.loads(preempt(body, service).body)["NodeNameToMetaVictims"])


def explained(service: Service, document: dict[str, Any], live: bool) -> set[str]:
    """Return the nodes on which, by explain, the pod would run."""
    explanation = finish(explain(document, service.world_copied(), live=live, by_node=True, find_fixes=False))
    return {verdict.node for verdict in explanation.verdicts or () if verdict.fits}


def makes_drawn() -> st.SearchStrategy[Make]:
    def made(product: str | None, driver: str | None, memory_gib: int | None, silent: bool) -> Make:
        return Make(product, driver, None if silent or not product else CAPABILITIES[product], memory_gib)

    products = st.sampled_from([*CAPABILITIES, None])
    return st.builds(
        made, products, st.sampled_from([OLD, NEW, None]), st.sampled_from([16, 40, 80, None]), st.booleans()
    )


WISHES = st.builds(
    Wish,
    st.lists(st.sampled_from(sorted(PRODUCTS)), max_size=2, unique=True).map(tuple),
    st.sampled_from([0, 0, 24, 80]),
    st.sampled_from([None, "7.5", "9.0"]),
    st.sampled_from(sorted(IMAGES)),
    st.sampled_from([False] * 7 + [True]),
)
SERVICES: dict[bool, PolicySet] = {True: policies(REFUSING), False: policies(LENIENT)}


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certs")


@settings(max_examples=60, deadline=None)
@given(fleet=st.lists(st.lists(makes_drawn(), max_size=3), min_size=1, max_size=4), wish=WISHES, strict=st.booleans())
def test_filter_preempt_and_explain_agree_on_pods_that_claim(
    certs: Path, fleet: list[list[Make]], wish: Wish, strict: bool
) -> None:
    """S13, F135: all judge the pod's needs against each node's devices in one way."""
    service = make_service(certs, cluster(fleet), SERVICES[strict])
    document = claiming(wish)

    expected = {f"n{index}" for index, makes in enumerate(fleet) if node_serves(makes, wish, strict)}

    assert expected == filtered(service, document)
    assert expected == preempted(service, document)
    assert expected == explained(service, document, live=True)
    assert expected == explained(service, document, live=False)


OLD_T4 = [Make(PRODUCTS["T4"], OLD, "7.5.0", 16)]
NEW_H100 = [Make(PRODUCTS["H100"], NEW, "9.0.0", 80)]


def test_image_too_new_for_the_driver_is_refused_by_claim_as_by_resource(certs: Path) -> None:
    """S13: the claim names no CUDA version, but the image of the container that uses it does."""
    service = make_service(certs, cluster([OLD_T4, NEW_H100]))

    assert filtered(service, claiming(Wish(image="nvidia/cuda:13.0.0-base-ubuntu24.04"))) == {"n1"}


def test_image_of_a_container_without_the_claim_asks_nothing(certs: Path) -> None:
    """S13: a helper container beside the one with the GPU starts on any driver."""
    service = make_service(certs, cluster([OLD_T4, NEW_H100]))
    document = claiming(Wish())
    document["spec"]["containers"].append(container(name="tool", image="nvidia/cuda:13.0.0-base-ubuntu24.04"))

    assert filtered(service, document) == {"n0", "n1"}


def test_containers_with_gpus_of_nvidia_are_found_wherever_they_stand() -> None:
    """S13, F34: init containers count as well, containers with another vendor's GPUs do not."""
    document = pod(
        gpus(1, name="a"),
        gpus(0, name="b"),
        container(name="c"),
        gpus(1, "amd.com/gpu", name="d"),
        initContainers=[gpus(1, "nvidia.com/mig-1g.10gb", name="i")],
    )
    read = read_pod(document)

    containers = PodGPURequest(read, gpu_amounts(read, knowledge().families.of), NO_CLAIMED_DEVICES).containers(
        knowledge()
    )

    assert [gpu_container.name for gpu_container in containers] == ["i", "a"]


def test_claim_and_resource_beside_each_other_are_both_judged(certs: Path) -> None:
    """S13: the pod requests nvidia.com/gpu in one container, and claims in another."""
    objects = cluster([OLD_T4])
    service = make_service(certs, [*objects, node_document("plugged", driver="470.82.01")])
    document = claiming(Wish(image="nvidia/cuda:13.0.0-base-ubuntu24.04"))
    document["spec"]["containers"].append(gpus(1, name="other"))

    assert filtered(service, document) == set()


def test_pod_whose_claim_nobody_knows_yet_is_left_to_the_scheduler(certs: Path) -> None:
    """S13: it is unknown whether the claim is for a GPU, so that no rule is enforced."""
    assert filtered(make_service(certs, cluster([OLD_T4])[:-1]), claiming(Wish(products=("H100",)))) == {"n0"}


@pytest.mark.parametrize(
    ("slices", "profile", "denied"),
    [
        (["1g.10gb"], "1g.10gb", False),
        (["1g.10gb.shared"], "1g.10gb", False),
        (["1g.10gb"], "2g.20gb", True),
        (["1g.10gb.me"], "1g.10gb", True),
        (["1g.10gb", "2g.20gb"], "2g.20gb", False),
        (["1g.10gb", "2g.20gb"], "3g.40gb", True),
        (["1g.10gb"], ">=2g.20gb", False),
    ],
)
def test_profile_that_contradicts_the_slice_asked_is_invalid_for_everybody(
    certs: Path, slices: list[str], profile: str, denied: bool
) -> None:
    """S12: a pod created while the webhook was down gets the verdict that admission would have given."""
    resources = {f"nvidia.com/mig-{name}": 4 for name in slices}
    service = make_service(certs, [node_document("n", "NVIDIA-H100-80GB-HBM3", offers=resources)])
    document = pod(container(dict.fromkeys(resources, 1)), annotations={"mig-profile": profile})

    admitted = validate(document, "team-a", {}, ReviewContext(service.world()))
    expected = set() if denied else {"n"}

    assert admitted.allowed is not denied
    assert {reason.code.name for reason in admitted.reasons} == ({"InvalidAnnotation"} if denied else set())
    assert expected == filtered(service, document)
    assert expected == preempted(service, document)
    assert expected == explained(service, document, live=True)
