# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's device plugin on the mock libnvidia-ml registers what tests/gfd/worlds.json recorded, and obeys the mock."""

import json
from pathlib import Path

import pytest

from tests.realnodes.device_plugin import missing, run_plugin
from tests.realnodes.nvidia import find
from tests.realnodes.nvml_config import report_xid
from tests.realnodes.worlds import list_worlds

RESOURCES: dict[str, dict[str, dict[str, int]]] = {
    world["name"]: world["resources"] for world in json.loads(Path("tests/gfd/worlds.json").read_text("utf-8"))
}
GPU = "nvidia.com/gpu"
FATAL_XID = 79
"""The GPU has fallen off the bus (NVIDIA's XID catalog)."""
APPLICATION_XID = 31
"""A memory page fault of the application, which the device plugin does not count against the GPU."""
DIFFERENT = {
    "a100-mig-mixed-ci": {"nvidia.com/mig-3g.40gb": {"Healthy": 24}, "nvidia.com/mig-4g.40gb": {"Healthy": 16}},
    "b200-mig-mixed": {
        "nvidia.com/mig-1g.45gb": {"Healthy": 16},
        "nvidia.com/mig-2g.68gb": {"Healthy": 8},
        "nvidia.com/mig-3g.113gb": {"Healthy": 8},
    },
}
"""World → what v0.19.3 registers other than v0.20.0, with which it was recorded.

It puts a MIG device into the first resource whose profile is any part of the device's: 1c.3g.40gb into mig-3g.40gb, and
1g.45gb+me into mig-1g.45gb (api/config/v1/resources.go, Matches, does not anchor the expression).
"""


@pytest.fixture(scope="module")
def built() -> Path:
    components = find()
    if isinstance(components, str) or missing():
        pytest.skip(components if isinstance(components, str) else missing())
    return components


@pytest.mark.parametrize("name", sorted(RESOURCES))
def test_resources_are_those_that_were_recorded(name: str, built: Path, tmp_path: Path) -> None:
    """S3: resource names and numbers, for each MIG strategy and kind of sharing."""
    with run_plugin(built, list_worlds()[name], tmp_path) as run:
        run.wait_for_counts(DIFFERENT.get(name, RESOURCES[name]))


def test_allocated_gpus_are_the_devices_of_the_container(built: Path, tmp_path: Path) -> None:
    world = list_worlds()["a100"]
    with run_plugin(built, world, tmp_path) as run:
        run.wait_for_counts({GPU: {"Healthy": 8}})
        answer = run.allocate(GPU, 2)

    chosen = answer["envs"]["NVIDIA_VISIBLE_DEVICES"].split(",")
    paths = {device["host_path"] for device in answer["devices"]}
    minors = {gpu.uuid: gpu.minor for gpu in world.machine.gpus}
    assert len(chosen) == 2
    assert paths == {f"/dev/nvidia{minors[uuid]}" for uuid in chosen} | {
        "/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"
    }  # fmt: skip


def test_allocated_slice_has_its_capabilities(built: Path, tmp_path: Path) -> None:
    with run_plugin(built, list_worlds()["a100-mig-mixed"], tmp_path) as run:
        run.wait_for_counts(RESOURCES["a100-mig-mixed"])
        answer = run.allocate("nvidia.com/mig-3g.40gb", 1)

    paths = {device["host_path"] for device in answer["devices"]}
    assert answer["envs"]["NVIDIA_VISIBLE_DEVICES"].startswith("MIG-")
    assert len({path for path in paths if path.startswith("/dev/nvidia-caps/nvidia-cap")}) == 2


def test_xid_takes_the_gpu_away(built: Path, tmp_path: Path) -> None:
    """The plugin learns of it while it runs; an XID that is the application's fault changes nothing."""
    world = list_worlds()["a100"]
    with run_plugin(built, world, tmp_path) as run:
        run.wait_for_counts({GPU: {"Healthy": 8}})
        run.report_until({GPU: {"Healthy": 7, "Unhealthy": 1}}, world.machine.gpus[5], FATAL_XID)
        report_xid(run.machine, world.machine.gpus[2], APPLICATION_XID)
        run.report_until({GPU: {"Healthy": 6, "Unhealthy": 2}}, world.machine.gpus[7], FATAL_XID)

        sick = {uuid for uuid, health in run.devices()[GPU].items() if health == "Unhealthy"}
    assert sick == {world.machine.gpus[5].uuid, world.machine.gpus[7].uuid}


def test_xid_of_a_slice_takes_only_the_slice_away(built: Path, tmp_path: Path) -> None:
    world = list_worlds()["a100-mig-mixed"]
    gpu = world.machine.gpus[0]
    part = next(instance for instance in gpu.instances if instance.gi_slices == 3)
    with run_plugin(built, world, tmp_path) as run:
        run.wait_for_counts(RESOURCES["a100-mig-mixed"])
        wanted = {**RESOURCES["a100-mig-mixed"], "nvidia.com/mig-3g.40gb": {"Healthy": 7, "Unhealthy": 1}}
        run.report_until(wanted, gpu, FATAL_XID, part)

        assert run.devices()["nvidia.com/mig-3g.40gb"][part.uuid] == "Unhealthy"


def test_xid_takes_one_replica_away_and_not_the_others(built: Path, tmp_path: Path) -> None:
    """v0.19.3 keeps one device for each GPU of its health check, so that pods still come to the others' replicas."""
    world = list_worlds()["a100-ts4"]
    with run_plugin(built, world, tmp_path) as run:
        run.wait_for_counts({GPU: {"Healthy": 32}})
        run.report_until({GPU: {"Healthy": 31, "Unhealthy": 1}}, world.machine.gpus[0], FATAL_XID)


def test_driver_that_is_unloaded_takes_all_gpus_away(built: Path, tmp_path: Path) -> None:
    with run_plugin(built, list_worlds()["a100"], tmp_path) as run:
        run.wait_for_counts({GPU: {"Healthy": 8}})
        run.machine.unlink()
        run.wait_for_counts({GPU: {"Unhealthy": 8}})


def test_mps_share_is_given_its_daemon_and_limits(built: Path, tmp_path: Path) -> None:
    """Four shares: a quarter of the GPU's threads and memory each, set by NVIDIA's daemon."""
    with run_plugin(built, list_worlds()["a100-mps4"], tmp_path) as run:
        run.wait_for_counts({GPU: {"Healthy": 32}})
        answer = run.allocate(GPU, 1)
        commands = run.read_file("mps/nvidia.com/gpu/log/control.log").splitlines()

    assert answer["envs"]["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/nvidia.com/gpu/pipe"
    assert {mount["host_path"] for mount in answer["mounts"]} == {
        "/run/nvidia/mps/nvidia.com/gpu/pipe",
        "/run/nvidia/mps/shm",
    }
    assert "set_default_active_thread_percentage 25" in commands
    assert "set_default_device_pinned_mem_limit 0 20480M" in commands
