# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims: read in every version of resource.k8s.io, and the GPUs that a pod claims through them (S13)."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from app.knowledge.gpu_resources import Family
from app.kube.claimed_devices import ClaimedDevices, DeviceChoice, choice_of, claimed_devices
from app.kube.pod_limits import MOST_CLAIMS, MOST_CONTAINERS
from app.kube.pods import read_pod
from app.kube.records import from_json, read_record
from app.kube.resource_claims import ClaimSpec, ResourceClaim, ResourceClaimTemplate, claim_of
from app.values.errors import MalformedPod
from tests.builders import container, knowledge, pod

FAMILIES = knowledge().families
GPU = "gpu.nvidia.com"


def family_of(device_class: str) -> Family | None:
    """Return the family of the vendors' own DeviceClasses, and of one that the cluster made for nvidia.com/gpu."""
    return FAMILIES.of("nvidia.com/gpu") if device_class == "big-gpus" else FAMILIES.of_device_class(device_class)


def claim(*requests: Any, name: str = "c") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "team-a"}, "spec": {"devices": {"requests": list(requests)}}}


def exactly(device_class: str, name: str = "r", **more: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": device_class, **more}}


def first_available(*choices: dict[str, Any]) -> dict[str, Any]:
    return {"name": "r", "firstAvailable": list(choices)}


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (exactly(GPU, allocationMode="ExactCount", count=2), (DeviceChoice(GPU, 2),)),
        (exactly(GPU, selectors=[{"cel": {"expression": "true"}}]), (DeviceChoice(GPU, 1, ("true",)),)),
        (exactly(GPU, allocationMode="All"), (DeviceChoice(GPU, None),)),
        (exactly(GPU, count=0), (DeviceChoice(GPU, 0),)),
        ({"name": "r", "deviceClassName": GPU, "allocationMode": "ExactCount", "count": 3}, (DeviceChoice(GPU, 3),)),
        ({"name": "r", "deviceClassName": GPU, "allocationMode": "All"}, (DeviceChoice(GPU, None),)),
        (
            first_available({"name": "a", "deviceClassName": GPU, "count": 2}, {"name": "b", "deviceClassName": "x"}),
            (DeviceChoice(GPU, 2), DeviceChoice("x", 1)),
        ),
        ({"name": "r"}, (DeviceChoice("", 1),)),
        ({"name": "r", "exactly": None, "firstAvailable": None}, (DeviceChoice("", 1),)),
    ],
    ids=["v1", "defaults", "all", "zero", "v1beta1", "v1beta1 all", "alternatives", "nothing", "null"],
)
def test_request_is_read_in_every_version(request_: dict[str, Any], expected: tuple[DeviceChoice, ...]) -> None:
    """S13."""
    read = read_record(ResourceClaim, claim(request_))

    (choices,) = read.spec.requests
    assert (read.key, tuple(map(choice_of, choices))) == ("team-a/c", expected)
    assert {choice.parent for choice in choices} == {"r"}


def test_template_has_the_claim_inside() -> None:
    """S13."""
    inner = claim(exactly(GPU))

    template = {"metadata": inner["metadata"], "spec": {"metadata": {"labels": {}}, "spec": inner["spec"]}}

    assert read_record(ResourceClaimTemplate, template).claim == read_record(ResourceClaim, inner)


@pytest.mark.parametrize("document", [{}, {"spec": None}, {"spec": {"devices": {}}}, {"spec": {"devices": None}}])
def test_claim_for_nothing_is_known_to_ask_nothing(document: dict[str, Any]) -> None:
    empty = read_record(ResourceClaim, {"metadata": {"name": "c", "namespace": "team-a"}, **document})

    assert empty == claim_of("team-a/c", ClaimSpec())


WRONG = {
    "spec: got a list": {"spec": []},
    "spec.devices: got a string": {"spec": {"devices": "x"}},
    "spec.devices.requests: got an object": {"spec": {"devices": {"requests": {}}}},
    "spec.devices.requests[0]: got a number": {"spec": {"devices": {"requests": [1.5]}}},
    "spec.devices.requests[1].exactly: got a list": claim({}, {"exactly": []}),
    "spec.devices.requests[0].exactly.deviceClassName: got an integer": claim(exactly(5)),  # type: ignore[arg-type]
    "spec.devices.requests[0].exactly.count: got a string": claim(exactly(GPU, count="2")),
    "spec.devices.requests[0].firstAvailable[1].count: got a boolean": claim(first_available({}, {"count": True})),
    "metadata.name: got an integer": {"metadata": {"name": 5}},
}


@pytest.mark.parametrize(("words", "document"), WRONG.items(), ids=WRONG.keys())
def test_claim_of_wrong_shape_is_refused_with_its_path(words: str, document: dict[str, Any]) -> None:
    with pytest.raises(MalformedPod) as caught:
        read_record(ResourceClaim, document)

    assert words in str(caught.value)


CLAIMS: Mapping[str, ClaimSpec] = {
    read.key: read.spec
    for read in (
        read_record(ResourceClaim, claim(exactly(GPU, count=2), name="two")),
        read_record(ResourceClaim, claim(exactly(GPU, allocationMode="All"), name="all")),
        read_record(
            ResourceClaim, claim(exactly("mig.nvidia.com", "slice"), exactly("nic.example.com", "nic"), name="mixed")
        ),
        read_record(ResourceClaim, claim(exactly("nic.example.com", "nic"), name="nic")),
        read_record(ResourceClaim, claim(exactly("big-gpus"), name="own")),
        read_record(
            ResourceClaim,
            claim(first_available({"deviceClassName": GPU}, {"deviceClassName": "gpu.amd.com"}), name="either"),
        ),
        read_record(ResourceClaim, claim(name="empty")),
    )
}


def claims_of_pod(*claims: str, templates: tuple[str, ...] = (), **more: Any) -> ClaimedDevices:
    """Return what a pod claims that names each of these claims, or templates, in an entry of the same name."""
    entries = [{"name": name, "resourceClaimName": name} for name in claims]
    entries += [{"name": name, "resourceClaimTemplateName": name} for name in templates]
    spec = {"containers": [], "resourceClaims": entries, **more}
    return claimed_by(spec)


def claimed_by(
    spec: Mapping[str, Any], namespace: str = "team-a", family: Callable[[str], Family | None] = family_of
) -> ClaimedDevices:
    """Return what a pod with this spec claims."""
    return claimed_devices(read_pod({"spec": spec}, namespace), CLAIMS.get, CLAIMS.get, family)


@pytest.mark.parametrize(
    ("claimed", "classes", "families"),
    [
        (claims_of_pod("two"), ((GPU, 2),), ["nvidia"]),
        (claims_of_pod(templates=("two",)), ((GPU, 2),), ["nvidia"]),
        (claims_of_pod("two", templates=("two",)), ((GPU, 4),), ["nvidia"]),
        (claims_of_pod("two", "all"), ((GPU, None),), ["nvidia"]),
        (claims_of_pod("all", "two"), ((GPU, None),), ["nvidia"]),
        (claims_of_pod("mixed"), (("mig.nvidia.com", 1),), ["nvidia"]),
        (claims_of_pod("own"), (("big-gpus", 1),), ["nvidia"]),
        (claims_of_pod("either"), (("gpu.amd.com", 1), (GPU, 1)), ["amd", "nvidia"]),
        (claims_of_pod("nic"), (), []),
        (claims_of_pod("empty"), (), []),
        (claims_of_pod(), (), []),
    ],
    ids=[
        "claim",
        "template",
        "both",
        "all",
        "all first",
        "slice and NIC",
        "own class",
        "either",
        "NIC",
        "empty",
        "none",
    ],
)
def test_pod_claims_what_its_claims_and_templates_ask(
    claimed: ClaimedDevices, classes: tuple[tuple[str, int | None], ...], families: list[str]
) -> None:
    """S13: a claim for a network card is known not to be for a GPU."""
    assert (claimed.classes, [family.name for family in claimed.families]) == (classes, families)
    assert claimed.unknown == ()


def test_what_nobody_has_shown_us_yet_is_named() -> None:
    """S13: a claim that is not known is different from a claim without GPUs."""
    claimed = claims_of_pod("two", "gone", "nic", templates=("later",))

    assert claimed.classes == ((GPU, 2),)
    assert claimed.unknown == ("ResourceClaim team-a/gone", "ResourceClaimTemplate team-a/later")


def test_claim_of_another_namespace_is_another_claim() -> None:
    spec = {"resourceClaims": [{"name": "two", "resourceClaimName": "two"}]}

    assert claimed_by(spec, "team-b") == ClaimedDevices(unknown=("ResourceClaim team-b/two",))


def uses(name: str, *claims: dict[str, str]) -> dict[str, Any]:
    return container(name=name, resources={"claims": list(claims)})


def test_containers_that_may_use_the_devices_are_named() -> None:
    """S13: a container may use the whole claim or one of its requests; another request of the claim gives no GPU."""
    containers = [
        uses("whole", {"name": "mixed"}),
        uses("slice", {"name": "mixed", "request": "slice"}),
        uses("nic", {"name": "mixed", "request": "nic"}),
        uses("other", {"name": "nic"}),
        uses("absent", {"name": "nowhere"}),
        container(name="plain"),
    ]

    claimed = claims_of_pod("mixed", "nic", containers=containers, initContainers=[uses("init", {"name": "mixed"})])

    assert claimed.containers == ("init", "whole", "slice")


@pytest.mark.parametrize(
    "spec",
    [
        {"resourceClaims": {}},
        {"resourceClaims": ["x"]},
        {"resourceClaims": [{"name": 1}]},
        {"resourceClaims": [{"name": "x", "resourceClaimName": []}]},
        {"containers": [{"resources": {"claims": "x"}}]},
        {"containers": [{"resources": {"claims": [{"name": "x", "request": 1}]}}]},
    ],
)
def test_pod_of_wrong_shape_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(MalformedPod, match=r"^spec\."):
        claimed_by(spec)


def test_pod_without_claims_claims_nothing() -> None:
    assert claimed_by(pod()["spec"]) == ClaimedDevices()


def test_pod_of_many_claims_and_containers_costs_what_it_is_long() -> None:
    """Anybody may create such a pod: classes are looked up once each, and containers do not search every claim."""
    asked_of: list[str] = []

    def counting(device_class: str) -> Family | None:
        asked_of.append(device_class)
        return FAMILIES.of_device_class(device_class)

    entries = [{"name": f"x{number}", "resourceClaimName": "mixed"} for number in range(MOST_CLAIMS)]
    containers = [uses(f"c{number}", {"name": f"x{number}", "request": "slice"}) for number in range(MOST_CONTAINERS)]

    claimed = claimed_by({"resourceClaims": entries, "containers": containers}, family=counting)

    assert (claimed.classes, len(claimed.containers)) == ((("mig.nvidia.com", MOST_CLAIMS),), len(containers))
    assert sorted(asked_of) == ["mig.nvidia.com", "nic.example.com"]


def test_claim_that_is_named_twice_is_unknown_once() -> None:
    assert claims_of_pod("gone", "gone").unknown == ("ResourceClaim team-a/gone",)


def test_watch_brings_the_binding_conditions_and_those_that_are_true() -> None:
    """F135: else a service could not know why kube-scheduler does not bind a pod whose claim has its devices."""
    place = {"driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-0"}
    result = {
        **place,
        "request": "r",
        "bindingConditions": ["attached", "tested"],
        "bindingFailureConditions": ["lost"],
    }
    true = [{"type": "tested", "status": "True"}, {"type": "lost", "status": "True"}]
    allocated = {"allocation": {"devices": {"results": [result]}}, "devices": [{**place, "conditions": true}]}
    whole = {**claim(exactly(GPU)), "status": allocated}

    watched = msgspec.json.decode(msgspec.json.encode(whole), type=ResourceClaim, dec_hook=from_json)

    for document in (read_record(ResourceClaim, whole), watched):
        assert document.allocation is not None
        assert document.conditions(document.allocation.results[0]) == (["attached"], ["lost"])
