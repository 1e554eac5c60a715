# SPDX-License-Identifier: Apache-2.0
"""Driver rollouts on DRA nodes: what selectors of claims take is what they take of slices with the other driver."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.plan_nodes import gpu_pods
from app.cli.verbs import app
from app.demo.sample_fleets import demo_fleet
from app.explain.fleet_placements import unserved_claim
from app.values.versions import parse_version
from app.whatif.driver import plan_rollout
from tests.builders import knowledge, shipped, state_of

ATTRIBUTES = "device.attributes['gpu.nvidia.com']"
SELECTORS = (
    f"{ATTRIBUTES}.driverVersion.isGreaterThan(semver('570.0.0'))",
    f"{ATTRIBUTES}.driverVersion.compareTo(semver('560.0.0')) < 0",
    f"{ATTRIBUTES}.cudaDriverVersion.compareTo(semver('12.4.0')) >= 0",
    f"{ATTRIBUTES}.cudaDriverVersion.compareTo(semver('12.4.0')) >= 0 && {ATTRIBUTES}.productName.contains('L4')",
    f"{ATTRIBUTES}.productName.contains('H100')",
    f"has({ATTRIBUTES}.driverVersion)",
)


def claiming_pod(name: str, selector: str, count: int = 1) -> list[dict[str, Any]]:
    """Write a claim with a selector, and a pending pod that names it."""
    exactly = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": count}
    request = {"name": "gpu", "exactly": {**exactly, "selectors": [{"cel": {"expression": selector}}]}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team-a"},
        "spec": {"devices": {"requests": [request]}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team-a", "uid": name},
        "spec": {
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "containers": [{"name": "main", "image": "x:1", "resources": {"claims": [{"name": "gpu"}]}}],
        },
    }
    return [claim, pod]


def published_anew(driver: str, cuda: str) -> list[dict[str, Any]]:
    """Write the fleet gpucluster as its driver would publish it with another version."""
    fleet = json.loads(json.dumps(demo_fleet("gpucluster")))
    for device in (one for made in fleet if made["kind"] == "ResourceSlice" for one in made["spec"]["devices"]):
        device["attributes"] |= {"driverVersion": {"version": driver}, "cudaDriverVersion": {"version": cuda}}
    return list(fleet)


@pytest.mark.parametrize(
    ("to", "driver", "cuda"),
    [("535.104.05", "535.104.5", "12.2.0"), ("550.54.15", "550.54.15", "12.4.0"), ("580.95.05", "580.95.5", "13.0.0")],
)
def test_claims_gain_and_lose_the_nodes_whose_slices_are_published_anew(to: str, driver: str, cuda: str) -> None:
    """F122, F135: the slow way reads slices with the other versions again, and selects of them."""
    pods = [one for number, text in enumerate(SELECTORS) for one in claiming_pod(f"p-{number}", text)]
    old = state_of([*demo_fleet("gpucluster"), *pods])
    new = state_of([*published_anew(driver, cuda), *pods])
    wanting = list(gpu_pods(pods, old, shipped()))
    assert len(wanting) == len(SELECTORS)
    chosen = [name for name in old.nodes if name.startswith(("h100", "l4"))]
    after = {name: new.nodes[name] if name in chosen else node for name, node in old.nodes.items()}

    expected = {}
    for gpu_pod in wanting:
        was = {name for name in chosen if not unserved_claim(gpu_pod.demand, old.nodes[name])}
        now = {name for name in after if not unserved_claim(gpu_pod.demand, after[name])}
        if was != now & set(chosen):
            expected[gpu_pod.name] = (len((now & set(chosen)) - was), len(was - now), len(now))
    rollout = plan_rollout(old.nodes, chosen, wanting, parse_version(to), knowledge().cuda)

    changes = {pod: (one.gains, one.loses, one.eligible_after) for one in rollout.effects for pod in one.pods}
    assert changes == expected
    assert bool(changes) is (to != "580.95.05")


def test_rollback_that_claims_exclude_fails_and_names_the_condition(tmp_path: Path) -> None:
    """F122: kube-scheduler would only say `cannot allocate all claims` afterwards."""
    objects = [*demo_fleet("gpucluster"), *claiming_pod("p", SELECTORS[0])]
    (tmp_path / "now.json").write_text(json.dumps({"kind": "List", "items": objects}), "utf-8")

    result = CliRunner().invoke(app, ["plan", "driver", "--snapshot", str(tmp_path / "now.json"), "--to", "535.104.05"])

    assert result.exit_code == 1, result.output
    assert "5 fewer nodes could serve, none after the change: team-a/p" in result.output
    assert "lost: no device of the node has driverVersion > 570.0.0" in result.output


def test_branch_of_unknown_cuda_takes_no_node_from_claims() -> None:
    """F122: what is not known of the new driver is not counted against it."""
    pods = claiming_pod("p", SELECTORS[2])
    state = state_of([*demo_fleet("gpucluster"), *pods])

    rollout = plan_rollout(
        state.nodes, list(state.nodes), list(gpu_pods(pods, state, shipped())), (999, 1), knowledge().cuda
    )

    assert rollout.order
    assert not rollout.effects


def test_claim_for_more_devices_than_a_node_has_finds_no_place_there() -> None:
    """F122, F135: two GPUs are there, and nodes without slices have none."""
    pods = claiming_pod("p", f"{ATTRIBUTES}.productName.contains('L4')", 4)
    state = state_of([*demo_fleet("gpucluster"), *pods])
    (pod,) = gpu_pods(pods, state, shipped())

    assert unserved_claim(pod.demand, state.nodes["l4-0"]).endswith("wants 4 devices of DeviceClass gpu.nvidia.com, "
                                                                   "and the node has 2")  # fmt: skip
    assert "productName" in unserved_claim(pod.demand, state.nodes["h100-0"])
    assert "publishes no devices" in unserved_claim(pod.demand, state.nodes["cpu-0"])
