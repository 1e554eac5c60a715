# SPDX-License-Identifier: Apache-2.0
"""The sample fleets before the real API server: every object of theirs is one that it takes, as it stands (S9, S15)."""

from typing import Any

import pytest

from app.demo.notation import fleet_names
from app.demo.sample_fleets import demo_fleet
from tests.controlplane.cluster import ControlPlane
from tests.e2e.stage import namespace

PATHS = {
    "Node": "/api/v1/nodes",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
    "ResourceSlice": "/apis/resource.k8s.io/v1/resourceslices",
    "Pod": "/api/v1/namespaces/{}/pods",
}


RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses?fieldValidation=Strict"


@pytest.fixture(scope="module")
def stage(plane: ControlPlane) -> ControlPlane:
    """A control plane with the namespaces that the fleets' pods are in, and the RuntimeClass that they name."""
    objects = [each for name in fleet_names() for each in demo_fleet(name)]
    for name in sorted({each["metadata"]["namespace"] for each in objects if each["kind"] == "Pod"} - {"default"}):
        namespace(plane, name)
    classes = {each["metadata"]["name"]: each for each in objects if each["kind"] == "RuntimeClass"}
    plane.api.create_all(RUNTIME_CLASSES, classes.values())
    return plane


def lost(sent: Any, got: Any, path: str = "") -> list[str]:
    """List what was sent and did not come back; the API server adds defaults."""
    if isinstance(sent, dict) and isinstance(got, dict):
        return [each for key, value in sent.items() for each in lost(value, got.get(key), f"{path}.{key}")]
    if isinstance(sent, list) and isinstance(got, list) and len(sent) <= len(got):
        return [each for n, value in enumerate(sent) for each in lost(value, got[n], f"{path}[{n}]")]
    return [] if sent == got else [f"{path}: {sent} became {got}"]


@pytest.mark.parametrize("name", fleet_names())
def test_api_server_takes_every_object_of_a_fleet_as_it_stands(stage: ControlPlane, name: str) -> None:
    """S9, S15, F65, F135: names, labels, taints, amounts, CEL and devices are valid, and no field is dropped."""
    refused, dropped = [], []
    for each in demo_fleet(name):
        if each["kind"] not in PATHS:
            continue
        metadata = each["metadata"]
        path = PATHS[each["kind"]].format(metadata.get("namespace"))
        answer = stage.api.try_create(f"{path}?dryRun=All&fieldValidation=Strict", each)
        if not answer.is_success:
            refused.append(f"{metadata['name']}: {answer.text}")
        elif each["kind"] == "Pod":
            dropped += lost(each["spec"], answer.json()["spec"], metadata["name"])
        else:
            dropped += lost(each, answer.json(), metadata["name"])

    assert (refused, dropped) == ([], [])
