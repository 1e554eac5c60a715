# SPDX-License-Identifier: Apache-2.0
"""What `inventory`, `doctor` and `explain` answer in the recorded worlds of real DRA drivers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from app.cli.verbs import app
from tests.dra.recorded_worlds import ADMIN_NAMESPACE, FOLDER, WORLDS, Case, cases, claim_and_pod

Rows = Mapping[str, tuple[int, int, int]]
A100, H100 = "A100-SXM4-80GB a whole GPU", "H100-80GB-HBM3 a whole GPU"


class Answers(NamedTuple):
    """What is right in a world.

    `gpus` are GPUs, free and unhealthy ones by product and unit, `slices` all and free ones by profile, `problems` the
    checks of doctor that report a problem, and `fits` how many nodes fit a pod with `nvidia.com/gpu: 1`, which the
    DeviceClass gpu.nvidia.com serves where no device plugin does.
    """

    gpus: Rows
    slices: Mapping[str, tuple[int, int]] = {}
    problems: tuple[str, ...] = ()
    fits: int = 2


SLICED = {"1g.10gb": (2, 2), "2g.20gb": (1, 1), "3g.40gb": (1, 1)}
RIGHT = {
    "h100-and-a100-static-mig": Answers(
        {A100: (2, 2, 0), H100: (8, 8, 0)}, {"1g.10gb": (4, 4), "2g.20gb": (2, 2), "3g.40gb": (2, 2)}
    ),
    "dynamic-mig-h100-a100": Answers({A100: (1, 1, 0), H100: (2, 2, 0)}),
    "gb200-and-gb10": Answers({"GB10 a whole GPU": (1, 1, 0), "GB200 a whole GPU": (4, 4, 0)}),
    "gb200-compute-domain": Answers({"GB200 a whole GPU": (8, 4, 0)}, fits=1),
    "consumable-shares-4-and-memory": Answers(
        {"A100-SXM4-80GB a shared GPU": (1, 1, 0), "H100-80GB-HBM3 a shared GPU": (2, 2, 0)}, SLICED
    ),
    "health-taints-xid": Answers(
        {A100: (1, 1, 1), H100: (2, 1, 1)}, {**SLICED, "2g.20gb": (1, 0)}, ("DeviceTainted", "DeviceTainted")
    ),
    "vfio-passthrough-h100": Answers({A100: (1, 1, 0), H100: (2, 2, 0)}, SLICED),
    "half-migrated-dra-h100-plugin-a100": Answers({A100: (4, 4, 0), H100: (2, 2, 0)}),
    "device-plugin-and-dra-on-one-node": Answers(
        {A100: (4, 4, 0), H100: (2, 2, 0)},
        problems=("DevicePluginAndDRA",),
    ),
    "example-driver-gpu": Answers({A100: (0, 0, 0)}, problems=("GhostGPUs",), fits=0),
    "example-driver-binding-conditions": Answers({A100: (0, 0, 0)}, problems=("GhostGPUs",), fits=0),
    "kubernetes-test-driver": Answers({A100: (0, 0, 0)}, problems=("GhostGPUs",), fits=0),
}


def ask(*words: str) -> Any:
    """Run a command with `-o json`. Raises AssertionError with its output where that is no JSON."""
    done = CliRunner().invoke(app, [*words, "-o", "json"])
    assert done.exit_code in (0, 1), done.output
    return json.loads(done.stdout)


def test_each_world_has_its_answers() -> None:
    """F135."""
    assert set(RIGHT) == set(WORLDS)


@pytest.mark.parametrize("world", WORLDS)
def test_inventory_counts_what_a_driver_published(world: str) -> None:
    """F135, F89."""
    answer = ask("inventory", "--snapshot", str(FOLDER / f"{world}.json"))

    rows = {f"{row['product']} {row['unit']}": (row["gpus"], row["free"], row["unhealthy"]) for row in answer["kinds"]}
    slices = {one["profile"]: (one["all"], one["free"]) for row in answer["kinds"] for one in row["slices"]}
    assert (rows, {**slices}) == (RIGHT[world].gpus, RIGHT[world].slices)


@pytest.mark.parametrize("world", WORLDS)
def test_doctor_names_what_is_wrong_and_nothing_else(world: str) -> None:
    """F87, F135."""
    findings = ask("doctor", "--snapshot", str(FOLDER / f"{world}.json"))

    assert tuple(one["check"] for one in findings if one["level"] == "problem") == RIGHT[world].problems


@pytest.mark.parametrize("world", WORLDS)
def test_explain_says_where_a_pod_that_requests_a_gpu_runs(world: str, tmp_path: Path) -> None:
    """F83, F135."""
    container = {"name": "main", "image": "app:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}

    assert fits(world, manifest, tmp_path) == RIGHT[world].fits


@pytest.mark.parametrize("case", tuple(cases()), ids=lambda case: f"{case.world}:{case.claim}:{case.node}")
def test_explain_lets_a_claim_on_the_node_where_kube_scheduler_bound_it(case: Case, tmp_path: Path) -> None:
    """F83, F135."""
    claim, pod = claim_and_pod(case)

    assert fits(case.world, pod, tmp_path, claim) == case.bound


def fits(world: str, manifest: dict[str, Any], folder: Path, *more: dict[str, Any]) -> int:
    """Count the nodes of a world that fit a pod, by `explain -f`."""
    (folder / "pod.json").write_text(json.dumps(manifest), "utf-8")
    (folder / "more.json").write_text(json.dumps({"kind": "List", "items": [ADMIN_NAMESPACE, *more]}), "utf-8")
    snapshots = ("--snapshot", str(FOLDER / f"{world}.json"), "--snapshot", str(folder / "more.json"))
    return int(ask("explain", "-f", str(folder / "pod.json"), *snapshots)["fits"])
