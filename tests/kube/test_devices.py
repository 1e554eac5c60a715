# SPDX-License-Identifier: Apache-2.0
"""ResourceSlices by their declaration: versions, what devices share, and what is refused."""

from typing import Any

import pytest

from app.kube.device_models import Attributes
from app.kube.devices import Device, ResourceSlice
from app.kube.records import read_record
from app.values.errors import MalformedPod

H100 = {
    "attributes": {
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "driverVersion": {"version": "580.95.5"},
    },
    "capacity": {"memory": {"value": "81559Mi"}},
}


def slice_of(*devices: dict[str, Any], **spec: Any) -> dict[str, Any]:
    whole = {"driver": "gpu.nvidia.com", "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}, **spec}
    return {"metadata": {"name": "n-gpu"}, "spec": {**whole, "devices": list(devices)}}


def read(*devices: dict[str, Any], **spec: Any) -> tuple[Device, ...]:
    return read_record(ResourceSlice, slice_of(*devices, **spec)).devices


def facts(device: Device) -> tuple[Any, ...]:
    return dict(device.attributes), dict(device.amounts), device.taints, device.node_name, device.model, device.id


def test_device_of_v1beta1_is_that_of_v1() -> None:
    more = {**H100, "taints": [{"key": "k", "effect": "NoSchedule"}], "nodeName": "n"}

    (flat,), (wrapped,) = (
        read({"name": "a", **written}, perDeviceNodeSelection=True) for written in (more, {"basic": more})
    )

    assert facts(flat) == facts(wrapped)
    assert (flat.tainted, flat.node_name, flat.model.label) == (True, "n", "NVIDIA-H100-80GB-HBM3")


def test_devices_of_one_model_share_it_and_their_capacities() -> None:
    one, other = read({"name": "a", **H100}, {"name": "b", **H100, "taints": [{"key": "k"}]})

    assert one.model is other.model
    assert one.amounts is other.amounts


def test_attribute_of_a_type_that_is_not_known_is_left_out() -> None:
    odd = {"new": {"quantity": "3"}, "type": {"string": 5}, "no": 7, "index": {"int": 0}}

    (device,) = read({"name": "a", "attributes": odd})

    assert dict(device.attributes) == {"gpu.nvidia.com/index": 0}


def test_name_with_the_domain_wins() -> None:
    attributes = {"gpu.nvidia.com/type": {"string": "mig"}, "type": {"string": "gpu"}}

    (device,) = read({"name": "a", "attributes": attributes})

    assert dict(device.attributes) == {"gpu.nvidia.com/type": "mig"}
    assert isinstance(device.attributes, Attributes)


def test_no_slice_can_set_what_is_worked_out() -> None:
    (device,) = read({"name": "a", "/driver": "other", "/pool": "other", "/model": {"label": "other"}})

    assert (device.id, device.model.label) == (("gpu.nvidia.com", "n", "a"), None)


REFUSED = {
    "spec.pool.generation: got a string, wants an integer": {"pool": {"generation": "1"}},
    "spec.devices[0].capacity[memory]: got a boolean, wants a quantity": {"devices": [{"capacity": {"memory": True}}]},
    "spec.devices[0].attributes: got a list, wants an object": {"devices": [{"attributes": []}]},
    "spec.devices[0].taints: got more, wants at most 16": {"devices": [{"taints": [{}] * 17}]},
    "spec.devices[0].capacity: got 65 entries, wants at most 64": {
        "devices": [{"capacity": {f"c{index}": "1" for index in range(65)}}]
    },
    "spec.devices[0].capacity[c].requestPolicy.validRange.min: got a list, wants a quantity": {
        "devices": [{"capacity": {"c": {"value": "1", "requestPolicy": {"validRange": {"min": []}}}}}]
    },
}


@pytest.mark.parametrize("words", REFUSED)
def test_slice_that_does_not_match_is_refused_in_words(words: str) -> None:
    with pytest.raises(MalformedPod) as error:
        read_record(ResourceSlice, {**slice_of(), "spec": REFUSED[words]})

    assert str(error.value) == words
