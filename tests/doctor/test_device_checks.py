# SPDX-License-Identifier: Apache-2.0
"""F135: the doctor's checks of devices: each finds what it is for, and nothing on a healthy fleet."""

from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.verbs import app
from app.doctor.device_checks import examine_devices
from app.doctor.fleet_checks import Finding
from app.kube.device_models import NVIDIA_DRIVER
from app.kube.records import read_record
from app.kube.resource_claims import ResourceClaim
from tests.builders import node, world_with
from tests.dra.worlds import DRIVER, Document, claim_document, class_document, cluster, device, request, slice_document

ANY = class_document("any", f"device.driver == '{DRIVER}'")
TAINT = {"key": "xid", "value": "79", "effect": "NoSchedule"}
WHOLE, PART = device("gpu-0", {"uuid": "GPU-1"}), device("gpu-0-mig", {"uuid": "MIG-1", "parentUUID": "GPU-1"})


def findings(*slices: Document, allocatable: dict[str, Any] | None = None, **more: Any) -> tuple[Finding, ...]:
    """Examine the node n with some slices."""
    facts = cluster(slices, classes=more.pop("classes", (ANY,)), **more)
    made = node("n", product=None, driver=None, offers=allocatable or {})
    return examine_devices(world_with(made, devices=facts))


def checks(*slices: Document, **more: Any) -> list[str]:
    return [finding.check for finding in findings(*slices, **more)]


def rule(name: str, **selector: str) -> Document:
    return {"metadata": {"name": name}, "spec": {"deviceSelector": selector, "taint": TAINT}}


ONE = slice_document("s", [device("a")])
OLD = slice_document("old", [device("a")])
NEW = slice_document("new", [device("a")], pool={"generation": 2})


@pytest.mark.parametrize(
    ("slices", "more", "check"),
    [
        pytest.param([ONE], {}, None, id="healthy"),
        pytest.param([ONE], {"allocatable": {"nvidia.com/gpu": 8}}, None, id="another vendor's device plugin"),
        pytest.param([ONE], {"allocatable": {"example.com/gpu": 1}}, "DevicePluginAndDRA", id="served twice"),
        pytest.param([slice_document("s", [device("a")], pool={"resourceSliceCount": 2})], {}, "PoolIncomplete",
                     id="a slice is missing"),
        pytest.param([slice_document("s", [device("a"), device("a")])], {}, "PoolInvalid", id="one name twice"),
        pytest.param([slice_document("parts", [WHOLE, PART], driver=NVIDIA_DRIVER), ONE], {}, "DeviceCountersMissing",
                     id="a GPU and its slice"),
        pytest.param([ONE], {"classes": [class_document("x", "device.driver == 'no.example'")]}, None,
                     id="a class of nothing that nobody requests"),
        pytest.param([ONE], {"classes": [class_document("x", f"device.attributes['{DRIVER}'].model == 'a'")]},
                     "DeviceClassFails", id="a class that fails"),
        pytest.param([slice_document("s", [device("a", taints=[TAINT])])], {}, "DeviceTainted", id="tainted"),
        pytest.param([slice_document("s", [device("a", taints=[{**TAINT, "effect": "None"}])])], {}, None,
                     id="a taint for information"),
        pytest.param([ONE], {"rules": [rule("all", driver=DRIVER)]}, "DeviceTainted", id="tainted by a rule"),
        pytest.param([ONE], {"rules": [rule("none", driver="no.example")]}, "IdleDeviceTaintRule", id="an idle rule"),
        pytest.param([OLD, NEW], {}, "StaleSlices", id="an older generation"),
        pytest.param([ONE, slice_document("gone", [device("a")], nodeName="gone", pool={"name": "gone"})], {},
                     "StaleSlices", id="a node that is gone"),
    ],
)  # fmt: skip
def test_each_check_finds_what_it_is_for_and_nothing_else(
    slices: list[Document], more: dict[str, Any], check: str | None
) -> None:
    """F87, F135."""
    assert checks(*slices, **more) == ([check] if check else [])


def test_taint_that_a_claim_tolerates_holds_devices_for_somebody() -> None:
    devices = cluster([slice_document("s", [device("a", taints=[TAINT])])], classes=[ANY])
    tolerant = read_record(
        ResourceClaim, claim_document("c", request(tolerations=[{"key": "xid", "operator": "Exists"}]))
    )
    known = replace(devices, claims={tolerant.key: tolerant})

    assert examine_devices(world_with(node("n"), devices=known)) == ()


def test_class_without_devices_is_reported_where_a_claim_requests_some() -> None:
    """F87: a driver's chart installs classes for every kind of device, most of which no cluster has."""
    classes = [class_document("x", "device.driver == 'no.example'")]
    devices = cluster([ONE], classes=classes)
    claim = read_record(ResourceClaim, claim_document("c", request(deviceClassName="x")))
    template = replace(devices, templates={claim.key: claim})

    found = [
        examine_devices(world_with(node("n"), devices=facts))
        for facts in (devices, replace(devices, claims={claim.key: claim}), template)
    ]

    assert [[each.check for each in one] for one in found] == [
        [],
        ["DeviceClassWithoutDevices"],
        ["DeviceClassWithoutDevices"],
    ]


def test_finding_says_what_is_wrong_and_what_to_do() -> None:
    (finding,) = findings(ONE, classes=[class_document("x", f"device.attributes['{DRIVER}'].model == 'a'")])

    assert finding.what.startswith(f"a selector reads attribute {DRIVER}/model, which some devices of driver {DRIVER}")
    assert finding.objects == ("DeviceClass x",)
    assert "kube-scheduler places no pod" in finding.remedy


def test_command_names_the_tainted_device() -> None:
    result = CliRunner().invoke(app, ["doctor", "--demo-fleet", "gpucluster"])

    assert "no claim tolerates the device taint" in " ".join(result.output.split())
    assert "Device h100-2/gpu-0" in result.output
