# SPDX-License-Identifier: Apache-2.0
"""A move to DRA: what pods become, what holds a node, and the order of the others (S13).

See docs/reference/dra.md#the-bridge.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from app.admission.claim_conversion import NoEquivalent
from app.cli.plan_nodes import moving_pods
from app.cli.verbs import app
from app.demo.notation import fleet_names
from app.demo.sample_fleets import demo_fleet
from app.whatif.dra import LEFT_ALONE, DRAMove, plan_move
from tests.builders import gpus, node_document, pod, shipped, state_of

RUN = CliRunner()
SHARED = {"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.replicas": "4"}
SINGLE = {
    "nvidia.com/mig.strategy": "single",
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
    "nvidia.com/gpu.replicas": "1",
}


def running(name: str, node: str, amount: int = 1, resource: str = "nvidia.com/gpu", **more: Any) -> dict[str, Any]:
    made = pod(gpus(amount, resource), nodeName=node, **more)
    made["metadata"] |= {"name": name, "uid": name}
    return made


def move(*objects: dict[str, Any]) -> DRAMove:
    state = state_of(list(objects))
    return plan_move(state.nodes, list(state.nodes), list(moving_pods(list(objects), state, shipped())))


def whole(*names: str) -> list[dict[str, Any]]:
    return [node_document(name) for name in names]


def test_the_node_with_the_fewest_pods_is_first_and_takes_those_of_the_next() -> None:
    pods = [running("a", "one", 4), running("b", "two", 2), running("c", "two", 2), running("d", "full", 8)]

    planned = move(*whole("one", "two", "empty", "full"), *pods)

    assert [(turn.node, turn.evicts, turn.waiting) for turn in planned.order] == [
        ("empty", (), ()),
        ("one", ("team-a/a",), ()),
        ("full", ("team-a/d",), ()),
        ("two", ("team-a/b", "team-a/c"), ()),
    ]


def test_pods_of_the_first_node_wait_where_no_node_has_moved() -> None:
    planned = move(*whole("one"), running("a", "one", 4))

    assert [(turn.evicts, turn.waiting) for turn in planned.order] == [(("team-a/a",), ("team-a/a",))]


@pytest.mark.parametrize(
    ("labels", "offers", "document", "reason"),
    [
        pytest.param(
            SHARED, {"nvidia.com/gpu": 8}, running("a", "n"), "nvidia.com/gpu is a time-slice there", id="time-slicing"
        ),
        pytest.param(
            {"nvidia.com/gpu.sharing-strategy": "mps", "nvidia.com/gpu.replicas": "4"},
            {"nvidia.com/gpu": 8},
            running("a", "n"),
            "nvidia.com/gpu is an MPS share there",
            id="MPS",
        ),
        pytest.param(
            SHARED,
            {"nvidia.com/gpu": 8},
            running("a", "n", annotations={"gpu-memory": "4Gi"}),
            "gpu-memory is a part of a shared GPU there",
            id="memory of a share",
        ),
        pytest.param(
            SINGLE, {"nvidia.com/gpu": 7}, running("a", "n"), "nvidia.com/gpu is a MIG slice there", id="MIG single"
        ),
        pytest.param(
            {},
            {"nvidia.com/gpu": 8},
            running("a", "n", annotations={"sharing": "Shared"}),
            "a share of a GPU: no DRA driver here publishes GPUs that claims can share",
            id="of itself",
        ),
        pytest.param(
            {}, {"nvidia.com/gpu": 8}, running("a", "n", schedulerName="volcano"), LEFT_ALONE, id="another scheduler"
        ),
    ],
)
def test_pod_without_an_equivalent_holds_its_node(
    labels: dict[str, str], offers: dict[str, int], document: dict[str, Any], reason: str
) -> None:
    planned = move(node_document("n", offers=offers, labels=labels), *whole("other"), document)

    (held,) = planned.held
    assert (held.node, held.pods) == ("n", ("team-a/a",))
    assert [why for why in held.reasons if why.startswith(reason)]
    assert [turn.node for turn in planned.order] == ["other"]
    assert sorted(planned.workloads[0].stays) == list(held.reasons)


def test_slice_that_the_pod_names_by_its_profile_is_claimed_as_such() -> None:
    document = running("a", "n", annotations={"mig-profile": "1g.5gb"})

    planned = move(node_document("n", "NVIDIA-A100-SXM4-40GB", offers={"nvidia.com/gpu": 7}, labels=SINGLE), document)

    assert planned.workloads[0].requests == ("1 x mig.nvidia.com",)
    assert planned.held == ()


def test_pods_of_one_namespace_with_equal_needs_are_one_workload_and_say_what_only_filter_judges() -> None:
    wish = {"interconnect": "NVLink"}
    pods = [running(name, "one", annotations=wish) for name in ("a", "b")]

    (workload,) = move(*whole("one"), *pods).workloads

    assert workload.pods == ("team-a/a", "team-a/b")
    assert workload.template.startswith("gpu-usher-1-gpu-")
    assert [line for line in workload.loses if line.startswith("NVLink")]


@pytest.mark.parametrize("name", fleet_names())
def test_each_node_of_a_fleet_is_there_or_moves_or_is_held(name: str) -> None:
    """Every pod on a node that moves has an equivalent, and each is in one workload."""
    objects = demo_fleet(name)
    state = state_of(objects)
    pods = list(moving_pods(objects, state, shipped()))

    planned = plan_move(state.nodes, list(state.nodes), pods)

    moved, held = {turn.node for turn in planned.order}, {node.node for node in planned.held}
    assert planned.nodes == planned.already + len(moved) + len(held)
    assert not moved & held
    assert not [one.pod.name for one in pods if one.pod.node in moved and isinstance(one.outcome, NoEquivalent)]
    assert sorted(pod for workload in planned.workloads for pod in workload.pods) == sorted(
        one.pod.name for one in pods
    )


def run(*words: str) -> Result:
    return RUN.invoke(app, ["plan", "claims", *words])


def test_command_exits_with_1_where_a_node_cannot_move() -> None:
    assert run("--demo-fleet", "weekday").exit_code == 1
    done = run("--demo-fleet", "weekday", "--nodes", "nvidia.com/gpu.product=Tesla-T4")
    assert (done.exit_code, " in all" in done.stdout) == (0, True)


def test_fleet_of_dra_is_there_already() -> None:
    answer = json.loads(run("--demo-fleet", "gpucluster", "-o", "json").stdout)

    assert answer["already"] > 0
    assert not [turn for turn in answer["order"] if turn["evicts"]]
    assert not answer["held"]


def exported(*words: str) -> tuple[str, list[dict[str, Any]]]:
    done = RUN.invoke(app, ["plan", "claim-templates", *words])
    assert done.exit_code == 0, done.output
    return done.stdout, [document for document in yaml.safe_load_all(done.stdout) if document]


def test_templates_of_the_export_are_those_of_the_plan() -> None:
    text, templates = exported("--demo-fleet", "weekday")
    answer = json.loads(run("--demo-fleet", "weekday", "-o", "json").stdout)

    planned = {(workload["pods"][0].partition("/")[0], workload["template"]) for workload in answer["workloads"]}
    written = {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in templates}
    assert written >= {key for key in planned if key[1]}
    assert "# - Pod vision/notebook-eve: a share of a GPU" in text


def test_export_reads_workloads_and_is_in_the_version_that_the_cluster_serves(tmp_path: Path) -> None:
    metadata = {"name": "train", "namespace": "team-b"}
    template = {"metadata": {}, "spec": pod(gpus(2))["spec"]}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}}
    served = {"apiVersion": "resource.k8s.io/v1beta1", "kind": "DeviceClass", "metadata": {"name": "x"}, "spec": {}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump_all([job, pod(gpus(2))]), "utf-8")
    (tmp_path / "fleet.json").write_text(json.dumps({"kind": "List", "items": [served]}), "utf-8")

    _, (one, other) = exported("-f", str(tmp_path / "job.yaml"), "--snapshot", str(tmp_path / "fleet.json"))

    assert [document["metadata"]["namespace"] for document in (one, other)] == ["team-a", "team-b"]
    assert one["metadata"]["name"] == other["metadata"]["name"]
    assert one["apiVersion"] == "resource.k8s.io/v1beta1"
    assert one["spec"]["spec"]["devices"]["requests"][0]["count"] == 2
