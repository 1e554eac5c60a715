# SPDX-License-Identifier: Apache-2.0
"""The CEL of a pod's needs means what the filters mean, on every device of the sample fleets (S13, F135)."""

from dataclasses import replace
from typing import Any

import pytest

from app.admission.claim_template import selectors_of
from app.demo.sample_fleets import demo_fleet
from app.dra.selectors import compile_selector
from app.kube.device_models import NVIDIA_DRIVER
from app.kube.devices import Device, ResourceSlice
from app.kube.records import read_record
from app.nodes.model import Node
from app.nodes.reading import with_devices
from app.placement.engine import judge_class
from app.policy.demand import Demand
from tests.builders import container, demand, gpus, knowledge, node, pod

OLD_DRIVER = "535.104.05"


def older(document: dict[str, Any]) -> dict[str, Any]:
    """Copy a slice with a driver of another branch."""
    devices = [
        {
            **device,
            "attributes": {
                **device["attributes"],
                "driverVersion": {"version": "535.104.5"},
                "cudaDriverVersion": {"version": "12.2.0"},
            },
        }
        for device in document["spec"]["devices"]
    ]
    return {**document, "spec": {**document["spec"], "devices": devices}}


def with_one_device(device: Device) -> Node:
    """Make a node without labels that has one device."""
    return with_devices(node(product=None, driver=None, offers={}), [device], [], knowledge())


def claimed(**annotations: str) -> Demand:
    """Make the demand of a pod that claims devices, with needs in annotations."""
    document = pod(container(), annotations={key.replace("_", "-"): value for key, value in annotations.items()})
    return replace(demand(document), claims=(("gpu.nvidia.com", 1),))


IMAGES = (
    "nvcr.io/nvidia/pytorch:24.05-py3",
    "nvcr.io/nvidia/cuda:13.0.1-base-ubuntu24.04",
    "nvcr.io/nvidia/cuda:11.8.0-base-ubuntu22.04",
)
DEMANDS = {
    "product": claimed(products="H100"),
    "several products": claimed(products="L4, NVIDIA-A100-*"),
    "not a product": claimed(products="!H100"),
    "CUDA 12.4": claimed(cuda="12.4"),
    "CUDA 13": claimed(cuda="13.0"),
    "memory": claimed(gpu_memory="40Gi"),
    "memory of a slice": claimed(gpu_memory="9Gi"),
    "compute capability": claimed(compute_capability="9.0"),
    "MIG profile": claimed(mig_profile="1g.10gb"),
    **{image: replace(demand(pod(gpus(1, image=image))), resources=(), claims=(("c", 1),)) for image in IMAGES},
}


def cel_of(wanted: Demand) -> tuple[str, ...]:
    """Write the needs of a demand as CEL."""
    profiles = wanted.mig_profile[:1] if wanted.mig_profile else ()
    return tuple(selectors_of(NVIDIA_DRIVER, profiles, wanted, knowledge()))


def selected(expressions: tuple[str, ...], device: Device) -> bool:
    """Tell whether all expressions select a device, as kube-scheduler would; an error fails the test."""
    judgements = [compile_selector(expression).judge(device) for expression in expressions]
    assert all(judgement.error is None and judgement.not_judged is None for judgement in judgements)
    return all(judgement.matches for judgement in judgements)


@pytest.mark.parametrize("name", DEMANDS)
@pytest.mark.parametrize("driver", ["as published", "of branch 535"])
def test_cel_selects_the_devices_that_the_filters_accept(name: str, driver: str) -> None:
    """S13: product, driver and CUDA, memory, compute capability and MIG profile."""
    pod_demand, verdicts = DEMANDS[name], set()
    for fleet in ("dra", "gpucluster"):
        for document in demo_fleet(fleet):
            if document["kind"] != "ResourceSlice":
                continue
            published = document if driver == "as published" else older(document)
            for device in read_record(ResourceSlice, published).devices:
                assert device.model.is_gpu
                if pod_demand.mig_profile and not device.model.mig_profile:
                    continue  # a claim for slices is of their DeviceClass, whose devices have a profile
                accepted = judge_class(pod_demand, with_one_device(device).node_class) is None
                assert selected(cel_of(pod_demand), device) == accepted, (device.name, cel_of(pod_demand))
                verdicts.add(accepted)
    assert verdicts


def test_needs_of_each_kind_are_written() -> None:
    """Every demand of these tests excludes something, so that the agreement above says much."""
    assert all(cel_of(pod_demand) for pod_demand in DEMANDS.values())
    assert cel_of(claimed()) == ()
