# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's gpu-feature-discovery on the mock libnvidia-ml writes the labels that tests/gfd/worlds.json recorded."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.processes import Process, wait_until
from tests.realnodes.nvidia import (
    DISCOVERY_SECONDS,
    discover_labels,
    discovery_command,
    find,
    make_environment,
    read_labels,
)
from tests.realnodes.nvml_config import read_text, write_machine, write_text
from tests.realnodes.worlds import list_worlds, make_machine

RECORDED: dict[str, dict[str, Any]] = {
    world["name"]: world for world in json.loads(Path("tests/gfd/worlds.json").read_text("utf-8"))
}
OF_ONE_MODEL = frozenset({"product", "count", "memory", "family", "compute.major", "compute.minor"})
"""With several models in a node these labels are those of one model, another one at each run (tests/gfd/README.md)."""

DIFFERENT = {"rubin": {"nvidia.com/gpu.family": "undefined"}}
"""World → what v0.19.3 writes other than v0.20.0, with which it was recorded: the former has no name for Rubin."""


@pytest.fixture(scope="module")
def built() -> Path:
    components = find()
    if isinstance(components, str):
        pytest.skip(components)
    return components


def without_model(labels: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name.removeprefix("nvidia.com/gpu.") not in OF_ONE_MODEL}


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_labels_are_those_that_were_recorded(name: str, built: Path, tmp_path: Path) -> None:
    """S3: MIG strategies, sharing with and without another name, MPS, several models, drivers."""
    labels = discover_labels(built, list_worlds()[name], tmp_path)

    if name.startswith("hetero-"):
        products = {gpu.name.replace(" ", "-") for gpu in list_worlds()[name].machine.gpus}
        assert labels["nvidia.com/gpu.product"].removesuffix("-SHARED") in products
        assert without_model(labels) == without_model(RECORDED[name]["labels"])
    else:
        assert labels == {**RECORDED[name]["labels"], **DIFFERENT.get(name, {})}


def test_another_driver_changes_the_labels_while_the_node_runs(built: Path, tmp_path: Path) -> None:
    """S3: as after an upgrade of the driver; no labels change but those of driver and CUDA version."""
    machine, settings, output = (tmp_path / name for name in ("machine", "settings", "labels"))
    write_machine(list_worlds()["a100"].machine, machine)
    settings.write_text(list_worlds()["a100"].settings(), "utf-8")
    command = [*discovery_command(built, settings, output), "--sleep-interval=200ms"]
    discovery = Process("gpu-feature-discovery", command, tmp_path / "log", make_environment(built, machine))
    try:
        wait_until("there are labels", output.exists, DISCOVERY_SECONDS, discovery)
        before = read_labels(output)
        write_machine(list_worlds()["a100-new-driver"].machine, machine)
        wait_until("the labels change", lambda: read_labels(output) != before, DISCOVERY_SECONDS, discovery)
        after = read_labels(output)
    finally:
        discovery.stop()

    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert changed["nvidia.com/cuda.driver-version.full"] == ("550.54.15", "570.124.06")
    assert changed["nvidia.com/cuda.runtime-version.full"] == ("12.4", "12.8")
    assert [name for name in changed if not name.startswith("nvidia.com/cuda.")] == []
    assert before.keys() == after.keys()


@pytest.mark.parametrize("name", sorted(list_worlds()))
def test_machine_is_read_as_it_was_written(name: str) -> None:
    machine = list_worlds()[name].machine

    assert read_text(write_text(machine)) == machine


def test_parts_of_a_profile_share_a_gpu_instance() -> None:
    (gpu,) = make_machine("node", "1 A100: 1c.3g.40gb*3 2c.4g.40gb*2", "550.54.15", "12.4").gpus

    assert [(instance.gi, instance.ci) for instance in gpu.instances] == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
    assert [instance.multiprocessors for instance in gpu.instances] == [14, 14, 14, 28, 28]


def test_every_recorded_world_can_be_made_again() -> None:
    assert sorted(RECORDED.keys() - list_worlds().keys()) == []
