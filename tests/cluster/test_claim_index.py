# SPDX-License-Identifier: Apache-2.0
"""Claims in the index: what a pod claims follows claims, templates and DeviceClasses as they come and go (S13)."""

from typing import Any

import msgspec
import pytest

from app.cluster.watched_kinds import WatchedKind, dra_kinds
from app.kube.claimed_devices import ClaimedDevices
from app.kube.pods import read_pod
from app.world.dra_index import SPECS_SHARED
from app.world.state import State
from tests.builders import knowledge, state_of

TEMPLATED = {"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "one"}]}
DIRECT = {"resourceClaims": [{"name": "g", "resourceClaimName": "one"}]}


def claim(device_class: str = "gpu.nvidia.com", name: str = "one", request: str = "r") -> dict[str, Any]:
    requests = [{"name": request, "exactly": {"deviceClassName": device_class, "count": 1}}]
    metadata = {"name": name, "namespace": "team-a", "uid": f"u-{name}", "resourceVersion": "1"}
    return {"kind": "ResourceClaim", "metadata": metadata, "spec": {"devices": {"requests": requests}}}


def template(device_class: str = "gpu.nvidia.com") -> dict[str, Any]:
    inner = claim(device_class)
    return {**inner, "kind": "ResourceClaimTemplate", "spec": {"spec": inner["spec"]}}


def device_class(name: str, resource: str | None) -> dict[str, Any]:
    return {"kind": "DeviceClass", "metadata": {"name": name}, "spec": {"extendedResourceName": resource}}


def filled(*objects: dict[str, Any]) -> State:
    return state_of(list(objects))


def claimed(state: State, spec: dict[str, Any]) -> ClaimedDevices:
    """Return the devices that a pod with this spec claims in the namespace team-a."""
    return state.devices.claimed(read_pod({"spec": spec}, "team-a"))


@pytest.mark.parametrize("spec", [TEMPLATED, DIRECT], ids=["template", "claim"])
def test_snapshot_with_claims_tells_what_a_pod_claims(spec: dict[str, Any]) -> None:
    """S13."""
    devices = claimed(filled(claim(), template()), spec)

    assert (devices.classes, devices.unknown) == ((("gpu.nvidia.com", 1),), ())


def test_claim_that_goes_is_unknown_again() -> None:
    """S13."""
    state = filled(claim(), template())

    state.devices.drop_claim("team-a/one")
    state.devices.drop_claim("team-a/never-there")

    assert claimed(state, DIRECT).unknown == ("ResourceClaim team-a/one",)
    assert claimed(state, TEMPLATED).unknown == ()


def test_claim_that_changes_is_as_it_was_last_seen() -> None:
    assert claimed(filled(claim(), claim("nic.example.com")), DIRECT).classes == ()


def test_class_of_the_clusters_own_counts_as_soon_as_it_serves_a_gpu_resource() -> None:
    """S13, F135: the claim and the DeviceClass may come in either order."""
    state = filled(claim("big-gpus"))
    before = claimed(state, DIRECT)

    state.devices.put_device_class(device_class("big-gpus", "nvidia.com/gpu"))
    after = claimed(state, DIRECT)
    state.devices.put_device_class(device_class("big-gpus", "example.com/nic"))
    other = claimed(state, DIRECT)

    assert [devices.classes for devices in (before, after, other)] == [(), (("big-gpus", 1),), ()]
    assert [family.name for family in after.families] == ["nvidia"]


def test_equal_requests_share_one_object() -> None:
    """A template's thousand claims cost memory for a thousand keys only."""
    state = filled(claim(), claim(name="two"))

    assert state.devices.dra.claim_spec("team-a/one") is state.devices.dra.claim_spec("team-a/two")


def test_more_different_requests_than_are_shared_are_all_known() -> None:
    names = [f"c{number}" for number in range(SPECS_SHARED + 10)]

    state = filled(*(claim(name=name, request=name) for name in names))

    assert all(
        (claimed_request := state.devices.dra.claim_spec(f"team-a/{name}"))
        and claimed_request.requests[0][0].name == name
        for name in names
    )


def watched(state: State) -> dict[str, WatchedKind[Any]]:
    return {kind.name: kind for kind in dra_kinds(state, "v1")}


@pytest.mark.parametrize(
    ("kind", "document", "spec"),
    [("resourceclaims", claim(), DIRECT), ("resourceclaimtemplates", template(), TEMPLATED)],
    ids=["claim", "template"],
)
def test_claims_are_watched_in_all_namespaces(kind: str, document: dict[str, Any], spec: dict[str, Any]) -> None:
    """S13: an object is decoded as the reflector decodes it, added, and removed."""
    state = State(knowledge())
    claim_kind = watched(state)[kind]

    decoded = msgspec.json.decode(msgspec.json.encode(document), type=claim_kind.shape)
    claim_kind.put("team-a/one", "u-one", claim_kind.read(decoded))
    after = claimed(state, spec)
    claim_kind.drop("team-a/one", "u-one")

    assert claim_kind.path == f"/apis/resource.k8s.io/v1/{kind}"
    assert not claim_kind.needed
    assert len(after.classes) == 1
    assert len(claimed(state, spec).unknown) == 1
