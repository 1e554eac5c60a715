# SPDX-License-Identifier: Apache-2.0
"""Selecting by kind of device leaves out no device that selecting one by one takes (S13, F135)."""

from collections.abc import Iterator

import pytest

from app.cluster.snapshot import fill
from app.demo.sample_fleets import demo_fleet
from app.dra.cel_syntax import SelectorError
from app.dra.device_kinds import DeviceKinds, may_select
from app.dra.selectors import compile_selector
from app.kube.claimed_devices import DeviceChoice
from app.kube.devices import Device
from app.world.state import State
from tests.builders import knowledge
from tests.dra.questions import published

ATTRIBUTES = "device.attributes['gpu.nvidia.com']"
OWN = (
    f"{ATTRIBUTES}.productName.contains('H100') && {ATTRIBUTES}.type == 'gpu'",
    f"{ATTRIBUTES}.profile == '3g.40gb'",
    "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('30Gi')) >= 0",
    f"{ATTRIBUTES}.uuid.startsWith('GPU-')",
    f"{ATTRIBUTES}.nothing == 'x'",
    "device.driver != 'gpu.nvidia.com'",
)


def nodes_of(fleet: str) -> Iterator[tuple[DeviceKinds, list[Device]]]:
    """Return the kinds of the devices of each node, and the devices themselves."""
    state = State(knowledge())
    fill(state, demo_fleet(fleet))
    for node in state.nodes.values():
        if node.devices is not None:
            assert isinstance(node.devices, DeviceKinds)
            yield node.devices, [device for pool in state.devices.dra.pools.pools(node) for device in pool.devices]


def selected_one_by_one(expressions: tuple[str, ...], device: Device) -> bool:
    """Tell whether a device is selected, or whether that is not known."""
    try:
        judgements = [compile_selector(expression).judge(device) for expression in expressions]
    except SelectorError:
        return True
    return all(judgement.matches is not False for judgement in judgements)


@pytest.mark.parametrize("fleet", ["dra", "gpucluster"])
@pytest.mark.parametrize("device_class", ["gpu.nvidia.com", "mig.nvidia.com"])
def test_kinds_select_the_devices_that_selectors_select_one_by_one(fleet: str, device_class: str) -> None:
    verdicts = set()
    for kinds, devices in nodes_of(fleet):
        of_class = kinds.class_selectors(device_class)
        assert of_class is not None
        for selector in (*published(), *OWN):
            taken = kinds.select(DeviceChoice(device_class, 1, (selector,)), tolerate_all=True)
            one_by_one = [selected_one_by_one((*of_class, selector), device) for device in devices]
            number = sum(kinds.kinds[kind].number for kind in taken)
            assert number == sum(one_by_one) or may_select(selector, kinds.kinds[0].device), selector
            assert number >= sum(one_by_one), selector
            verdicts.add((number > 0, number == len(devices)))
    assert len(verdicts) > 1


@pytest.mark.parametrize("fleet", ["dra", "gpucluster"])
def test_every_device_is_of_one_kind(fleet: str) -> None:
    for kinds, devices in nodes_of(fleet):
        assert sum(kind.number for kind in kinds.kinds) == len(devices)
        assert len(kinds.kinds) < len(devices) or len(devices) == 1
