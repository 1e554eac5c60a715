# SPDX-License-Identifier: Apache-2.0
"""The repository's manifests on eight fleets: each pod that could run before can run now (D14, P16)."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.policy.compiled import PolicySet
from tests.builders import gpus, pod, shipped
from tests.corpus.fleets import DENIED, Tally, Trial, production, run
from tests.corpus.manifests import Manifest, own_collection, pods_of, read_collection
from tests.corpus.places import Cluster, Place, clusters, could_run

FLEETS = 8
GUARDED = {"VisibleDevicesForbidden", "SharedReplicasAskedAsGPUs"}
"""What overlays/production denies. Of privileged pods and those of other schedulers it only warns."""


@pytest.fixture(scope="module")
def plain() -> dict[str, Tally]:
    """Return the sums under the shipped policies."""
    return run([own_collection()], shipped())


def test_there_are_eight_fleets_and_most_manifests_find_place_on_each(plain: dict[str, Tally]) -> None:
    assert len(plain) == FLEETS
    assert all(tally.ran > tally.pods / 2 for tally in plain.values())


def test_no_pod_that_could_run_is_harmed_by_the_shipped_policies(plain: dict[str, Tally]) -> None:
    """Pods that declare their needs are not counted, since their own declaration may leave no place."""
    harmed = {where: why for tally in plain.values() for where, why in tally.harmed}

    assert harmed == {}


def test_every_patch_is_made_once_and_one_that_the_api_server_takes(plain: dict[str, Tally]) -> None:
    assert {fault for tally in plain.values() for fault in tally.faults} == set()


def test_no_warning_is_given_with_most_pods(plain: dict[str, Tally]) -> None:
    """Nobody reads a warning that everybody gets."""
    common = {text for tally in plain.values() for text, count in tally.warned.items() if count > tally.pods / 10}

    assert common == set()


def test_production_denies_what_takes_gpus_unasked_and_warns_of_the_rest() -> None:
    """Published RDMA jobs are privileged, and pods of other schedulers name their scheduler."""
    tallies = run([own_collection()], production())

    denied = {why.removeprefix(DENIED) for tally in tallies.values() for _, why in tally.harmed if DENIED in why}
    assert denied <= GUARDED
    warned = {text for tally in tallies.values() for text in tally.warned}
    assert any("is privileged, which lets" in text for text in warned)
    assert any("is wanted (policy " in text for text in warned)


@pytest.mark.parametrize("policies", [shipped(), production()], ids=["shipped", "production"])
@pytest.mark.parametrize("cluster", clusters(), ids=lambda cluster: cluster.name)
def test_plain_gpu_pod_keeps_every_place(cluster: Cluster, policies: PolicySet) -> None:
    outcome = Trial(cluster, policies).play(pod(gpus(1)))

    assert (outcome.ran, outcome.harmed, outcome.narrowed, outcome.faults) == (True, "", (), ())


def test_judge_of_places_can_find_harm() -> None:
    """A pod with a label that no template has is judged differently from a pod without it."""
    group = Place("group", {"a": "b"}, {"nvidia.com/gpu": 8}, template=True)
    key = "nvidia.com/cuda.driver-version.major"
    term = {"matchExpressions": [{"key": key, "operator": "Gt", "values": ["524"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}

    assert could_run(pod(gpus(1)), group)
    assert not could_run(pod(gpus(1), affinity=affinity), group)
    assert not could_run(pod(gpus(9)), group)
    tainted = Place("group", {}, {"nvidia.com/gpu": 8}, ({"key": "sku", "value": "gpu", "effect": "NoSchedule"},))
    assert not could_run(pod(gpus(1)), tainted)


def test_templates_are_found_however_deep_and_outlines_are_not(tmp_path: Path) -> None:
    """Custom resources may have templates at any depth; Helm templates are not YAML."""
    made = pod(gpus(1))
    job: dict[str, Any] = {"kind": "MPIJob", "spec": {"mpiReplicaSpecs": {"Worker": {"template": made}}}}
    (tmp_path / "job.yaml").write_text(json.dumps(job), "utf-8")
    (tmp_path / "again.yml").write_text(json.dumps(made), "utf-8")
    (tmp_path / "chart.yaml").write_text("a: {{ .Values.a }}\n  b: c", "utf-8")
    (tmp_path / "outline.yaml").write_text("spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: }}}]}")

    collection = read_collection("here", tmp_path)

    assert (collection.files, collection.unread, collection.templates, len(collection.gpu_pods)) == (3, 1, 2, 1)
    assert [isinstance(manifest, Manifest) for manifest in pods_of(job, "here")] == [True]
