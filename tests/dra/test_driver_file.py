# SPDX-License-Identifier: Apache-2.0
"""What the DRA driver of the real nodes publishes is what NVIDIA's driver published of the same machines."""

import json
from pathlib import Path
from typing import Any

from tests.realnodes.dra_devices import driver_file
from tests.realnodes.worlds import make_world

RECORDED = Path(__file__).parent / "recorded" / "h100-and-a100-static-mig.json"
OF_ANOTHER_MOCK = "1g.10gb"
"""The recording's mock has 9728 MiB and no decoder for this profile; worlds/profiles.txt has 9856 MiB and one."""


def recorded(node: str) -> dict[str, Any]:
    """Return the recorded devices of a node by their names."""
    items = json.loads(RECORDED.read_text("utf-8"))["items"]
    slices = [item["spec"] for item in items if item["kind"] == "ResourceSlice" and item["spec"]["nodeName"] == node]
    return {device["name"]: device for one in slices for device in one.get("devices") or ()}


def published(world: str, node: str) -> dict[str, Any]:
    """Return the devices that our driver publishes, with memory in the form in which the API server stores it."""
    [one] = driver_file(make_world(world, node).machine)["slices"]
    return {device["name"]: device for device in one["devices"]}


def in_mib(device: dict[str, Any]) -> dict[str, Any]:
    """Write the memory of a device in MiB."""
    text = device["capacity"]["memory"]["value"]
    mib = int(text[:-2]) * {"Mi": 1, "Gi": 1024}[text[-2:]]
    return {**device, "capacity": {**device["capacity"], "memory": mib}}


def test_whole_gpus_are_published_as_nvidia_does() -> None:
    """F135: every attribute, the UUIDs included."""
    there = recorded("node-1")

    assert {name: in_mib(device) for name, device in published("h100", "node-1").items()} == {
        name: in_mib(device) for name, device in there.items()
    }


def test_slices_have_the_names_profile_ids_and_placements_of_nvidia() -> None:
    """F135: four slices of the first A100."""
    there = {name: device for name, device in recorded("node-2").items() if name.startswith("gpu-0-mig")}
    ours = {name: device for name, device in published("a100-mig-mixed", "node-2").items() if name in there}

    assert len(there) == len(ours) == 4
    for name, device in there.items():
        mine, theirs = in_mib(ours[name]), in_mib(device)
        if device["attributes"]["profile"]["string"] == OF_ANOTHER_MOCK:
            mine["capacity"] |= {key: theirs["capacity"][key] for key in ("memory", "decoders")}
        assert mine == theirs
