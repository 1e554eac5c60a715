# SPDX-License-Identifier: Apache-2.0
"""The sample fleets on the real API server: it accepts every object of theirs as it stands (S9, S15).

Objects of DRA are of v1. An older API server gets them in the newest version that it serves, and without the extended
resources of DeviceClasses where it does not know these.
"""

from typing import Any

import pytest

from app.demo.notation import fleet_names
from app.demo.sample_fleets import demo_fleet
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.e2e.offers import GROUP, dra_path, dra_version, keeps_extended_resources
from tests.e2e.stage import create_namespace

PATHS = {
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/namespaces/{}/pods",
}
DRA_PATHS = {"DeviceClass": "deviceclasses", "ResourceSlice": "resourceslices"}

RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses?fieldValidation=Strict"


@pytest.fixture(scope="module")
def stage(plane: ControlPlane) -> ControlPlane:
    """A control plane with the namespaces of the fleets' pods, and the RuntimeClasses that they name."""
    objects = [document for name in fleet_names() for document in demo_fleet(name)]
    for name in sorted(
        {document["metadata"]["namespace"] for document in objects if document["kind"] == "Pod"} - {"default"}
    ):
        create_namespace(plane, name)
    classes = {document["metadata"]["name"]: document for document in objects if document["kind"] == "RuntimeClass"}
    plane.api.create_all(RUNTIME_CLASSES, classes.values())
    return plane


def as_served(plane: ControlPlane, document: Object) -> Object:
    """Return an object as this API server takes it."""
    if document["kind"] not in DRA_PATHS:
        return document
    served = {**document, "apiVersion": f"{GROUP}/{dra_version(plane)}"}
    if document["kind"] == "DeviceClass" and not keeps_extended_resources(plane):
        served["spec"] = {key: value for key, value in document["spec"].items() if key != "extendedResourceName"}
    return served


def lost_fields(sent: Any, got: Any, path: str = "") -> list[str]:
    """List the fields that were sent and did not come back; the API server may add defaults."""
    if isinstance(sent, dict) and isinstance(got, dict):
        return [loss for key, value in sent.items() for loss in lost_fields(value, got.get(key), f"{path}.{key}")]
    if isinstance(sent, list) and isinstance(got, list) and len(sent) <= len(got):
        return [loss for n, value in enumerate(sent) for loss in lost_fields(value, got[n], f"{path}[{n}]")]
    return [] if sent == got else [f"{path}: {sent} became {got}"]


@pytest.mark.parametrize("name", fleet_names())
def test_api_server_takes_every_object_of_a_fleet_as_it_stands(stage: ControlPlane, name: str) -> None:
    """S9, S15, F65, F135: names, labels, taints, amounts, CEL and devices are valid, and no field is dropped."""
    refused, dropped = [], []
    paths = {**PATHS, **{kind: f"{dra_path(stage)}/{plural}" for kind, plural in DRA_PATHS.items()}}
    for document in (as_served(stage, written) for written in demo_fleet(name)):
        if document["kind"] not in paths:
            continue
        metadata = document["metadata"]
        path = paths[document["kind"]].format(metadata.get("namespace"))
        answer = stage.api.try_create(f"{path}?dryRun=All&fieldValidation=Strict", document)
        if not answer.is_success:
            refused.append(f"{metadata['name']}: {answer.text}")
        elif document["kind"] == "Pod":
            dropped += lost_fields(document["spec"], answer.json()["spec"], metadata["name"])
        else:
            dropped += lost_fields(document, answer.json(), metadata["name"])

    assert (refused, dropped) == ([], [])
