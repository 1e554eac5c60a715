# SPDX-License-Identifier: Apache-2.0
"""Labels of the sample fleets are such as GPU Feature Discovery and the clouds write (S2-S4, S9)."""

import re

import msgspec
import pytest

from app.demo.notation import DemoFleet, fleet_names
from app.demo.sample_fleets import node_labels
from tests.demo.fleets import nodes
from tests.demo.gpu_keys import KNOWN, TAINTS

LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
"""apimachinery pkg/util/validation, IsValidLabelValue, with at most 63 characters."""


CAPTURED = """
cuda.driver-version.full 550.54.15, cuda.driver-version.major 550, cuda.driver-version.minor 54,
cuda.driver-version.revision 15, cuda.driver.major 550, cuda.driver.minor 54, cuda.driver.rev 15,
cuda.runtime-version.full 12.4, cuda.runtime-version.major 12, cuda.runtime-version.minor 4, cuda.runtime.major 12,
cuda.runtime.minor 4, gpu.compute.major 9, gpu.compute.minor 0, gpu.count 1, gpu.family hopper,
gpu.machine PIO-4124GS-TNR-01-NC24B, gpu.memory 81559, gpu.product NVIDIA-H100-80GB-HBM3, gpu.sharing-strategy none,
mig.capable true, mig.config.state success, mps.capable false
"""
CAPTURED_OFF = "gpu.replicas 1, mig.config all-disabled, mig.strategy single"
CAPTURED_BALANCED = """
gpu.replicas 0, mig.config all-balanced, mig.strategy mixed,
mig-1g.10gb.count 2, mig-1g.10gb.engines.copy 1, mig-1g.10gb.engines.decoder 1, mig-1g.10gb.engines.encoder 0,
mig-1g.10gb.engines.jpeg 1, mig-1g.10gb.engines.ofa 0, mig-1g.10gb.memory 9984, mig-1g.10gb.multiprocessors 16,
mig-1g.10gb.product NVIDIA-H100-80GB-HBM3-MIG-1g.10gb, mig-1g.10gb.replicas 1, mig-1g.10gb.sharing-strategy none,
mig-1g.10gb.slices.ci 1, mig-1g.10gb.slices.gi 1,
mig-2g.20gb.count 1, mig-2g.20gb.engines.copy 2, mig-2g.20gb.engines.decoder 2, mig-2g.20gb.engines.encoder 0,
mig-2g.20gb.engines.jpeg 2, mig-2g.20gb.engines.ofa 0, mig-2g.20gb.memory 20096, mig-2g.20gb.multiprocessors 32,
mig-2g.20gb.product NVIDIA-H100-80GB-HBM3-MIG-2g.20gb, mig-2g.20gb.replicas 1, mig-2g.20gb.sharing-strategy none,
mig-2g.20gb.slices.ci 2, mig-2g.20gb.slices.gi 2,
mig-3g.40gb.count 1, mig-3g.40gb.engines.copy 3, mig-3g.40gb.engines.decoder 3, mig-3g.40gb.engines.encoder 0,
mig-3g.40gb.engines.jpeg 3, mig-3g.40gb.engines.ofa 0, mig-3g.40gb.memory 40320, mig-3g.40gb.multiprocessors 60,
mig-3g.40gb.product NVIDIA-H100-80GB-HBM3-MIG-3g.40gb, mig-3g.40gb.replicas 1, mig-3g.40gb.sharing-strategy none,
mig-3g.40gb.slices.ci 3, mig-3g.40gb.slices.gi 3
"""
"""nvidia.com/ labels of a real node, from before gpu.mode (NVIDIA/cloud-native-docs gpu-operator/manifests/output/
mig-node-labels.json and mig-mixed-node-labels.json), without the timestamp and the operator's labels."""
SLICES = """
  1g.10gb: {count: 2, memory: 9984, multiprocessors: 16, engines: [1, 1, 0, 1, 0]}
  2g.20gb: {count: 1, memory: 20096, multiprocessors: 32, engines: [2, 2, 0, 2, 0]}
  3g.40gb: {count: 1, memory: 40320, multiprocessors: 60, engines: [3, 3, 0, 3, 0]}
"""


def made(mig: str) -> dict[str, str]:
    """Make the labels of a pool that describes the captured node."""
    text = f"""
description: d
pools:
- names: [s4124-0073]
  gpu: {{name: NVIDIA H100 80GB HBM3, memory: 81559, compute: '9.0'}}
  gpus: 1
  driver: 550.54.15
  cuda: '12.4'
  machine: PIO-4124GS-TNR-01-NC24B
  mig: {mig}
"""
    fleet: DemoFleet = msgspec.yaml.decode(text, type=DemoFleet)
    return node_labels(fleet.pools[0])


@pytest.mark.parametrize(
    ("mig", "captured"),
    [
        ("{strategy: single, config: all-disabled, state: success}", CAPTURED + "," + CAPTURED_OFF),
        (
            "{strategy: mixed, config: all-balanced, state: success, slices: {"
            + ",".join(SLICES.strip().splitlines())
            + "}}",
            CAPTURED + "," + CAPTURED_BALANCED,
        ),
    ],
    ids=["MIG off", "all-balanced"],
)
def test_labels_are_those_of_a_captured_node(mig: str, captured: str) -> None:
    """S3, S4."""
    pairs = [pair.split() for pair in captured.replace("\n", " ").split(",")]
    expected = {f"nvidia.com/{key}": value for key, value in pairs}

    assert made(mig) == {**expected, "nvidia.com/gpu.mode": "compute"}


@pytest.mark.parametrize("name", fleet_names())
def test_labels_and_taints_are_such_as_somebody_writes(name: str) -> None:
    """S2, S3, S4, S9: each key is one that a component or a cloud writes, and the API server accepts each value."""
    labels = [item for document in nodes(name) for item in document["metadata"]["labels"].items()]
    taints = {taint["key"] for document in nodes(name) for taint in document["spec"].get("taints", ())}

    assert {key for key, _ in labels if not KNOWN.fullmatch(key)} == set()
    assert {value for _, value in labels if len(value) > 63 or not LABEL_VALUE.fullmatch(value)} == set()
    assert taints <= set(TAINTS)
