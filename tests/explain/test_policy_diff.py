# SPDX-License-Identifier: Apache-2.0
"""Previews of policy edits against a twin that tries every pod by itself, and an example of each kind of change."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from app.admission.json_patch import apply
from app.admission.review import mutate
from app.admission.reviewed_pod import ReviewContext
from app.cli.options import Fleet
from app.cli.source import read
from app.cli.verbs import app
from app.explain.fleet_placements import ANYWHERE, FleetPlacements
from app.explain.policy_diff import ComparedPod, PodDifference, PolicySide, compare_policies, without_cluster_fields
from app.kube.api_kinds import DRA
from app.kube.pods import read_pod
from app.placement.engine import judge, total
from app.placement.ranking import ranking_key
from app.policy.compiled import PolicySet
from app.policy.demand import Demand
from app.policy.match import ruling_for
from app.values.errors import BadInput
from app.world.state import State
from app.world.world import world_of
from tests.api.test_decision_recorder import STRICT, drawn, posted, questions, shared_gpu_service
from tests.builders import gpus, knowledge, node_document, pod, policies, policy, state_of

RUN = CliRunner()
OTHERS = (
    policies(policy("p", "action: Enforce, admission: {maxGPUsPerPod: 1}")),
    policies(policy("p", "priority: 1, placement: {products: {deny: [H100]}}")),
    policies(policy("p", "match: {podSelector: {matchLabels: {team: blue}}}, placement: {gpuMemory: 40Gi}")),
    STRICT,
)  # fmt: skip


def fleet(chance: random.Random) -> list[dict[str, Any]]:
    """Make a small fleet, with pods of which half are bound."""
    names = [f"{make}-{number}" for make in ("h", "t") for number in range(3)]
    nodes = [node_document(name, *(("Tesla-T4", "535.104.05") if name[0] == "t" else ())) for name in names]
    made = []
    for number in range(60):
        drawn_pod = drawn(chance)
        drawn_pod["spec"].pop("nodeName", None)
        drawn_pod["metadata"] |= {"uid": f"u-{number}", "name": f"p-{number}"}
        if chance.random() < 0.5:
            drawn_pod["spec"]["nodeName"] = chance.choice(names)
        made.append(drawn_pod)
    return [*nodes, *made]


def asked_of(objects: list[dict[str, Any]]) -> Iterator[ComparedPod]:
    for document in objects:
        if document["kind"] == "Pod":
            metadata, node = document["metadata"], document["spec"].get("nodeName", "")
            yield ComparedPod(
                metadata["name"], "team-a", without_cluster_fields(document), uid=metadata["uid"], node=node
            )


def side(policy_set: PolicySet, state: State) -> PolicySide:
    return PolicySide(ReviewContext(world_of(state, policy_set)), state.namespaces.labels)


def nodes_slowly(demand: Demand, uid: str, objects: list[dict[str, Any]]) -> tuple[str | None, frozenset[str]]:
    """Return the best node, and all that fit, by trying all nodes; its own node does not count the pod."""
    if not demand.requests_gpus:
        return ANYWHERE, frozenset()
    own = next(
        (document["spec"].get("nodeName") for document in objects if document["metadata"].get("uid") == uid), None
    )
    full = state_of(objects).nodes
    without = state_of([document for document in objects if document["metadata"].get("uid") != uid]).nodes
    nodes = [without[name] if name == own else full[name] for name in full]
    fitting = [node for node in nodes if judge(demand, node, True) is None]
    best = min((ranking_key(total(demand, node), node.name), node.name) for node in fitting)[1] if fitting else None
    return best, frozenset(node.name for node in fitting)


def one_by_one(compared_pod: ComparedPod, policy_set: PolicySet, state: State, objects: list[dict[str, Any]]) -> Any:
    """Return whether one pod is admitted, and on which node it would be placed, with all that fit."""
    labels = state.namespaces.labels(compared_pod.namespace)
    verdict = mutate(compared_pod.document, compared_pod.namespace, labels, ReviewContext(world_of(state, policy_set)))
    if not verdict.allowed:
        return False, (None, frozenset())
    admitted = read_pod(apply(compared_pod.document, verdict.operations), compared_pod.namespace)
    return True, nodes_slowly(ruling_for(admitted, labels, policy_set, knowledge()).demand, compared_pod.uid, objects)


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_comparison_equals_that_of_every_pod_by_itself(number: int) -> None:
    """F78, F123: templates are judged once and placements are cached, without changing a result."""
    objects = fleet(random.Random(number))
    state = state_of(objects)
    before, after = policies(policy("q", "description: nothing")), OTHERS[number]
    expected: dict[str, set[str]] = {}
    for pod_asked in asked_of(objects):
        (was_in, (was, before_nodes)), (is_in, (now, after_nodes)) = (
            one_by_one(pod_asked, which, state, objects) for which in (before, after)
        )
        if was_in and not is_in:
            expected.setdefault(PodDifference.Refused.value, set()).add(pod_asked.name)
        elif is_in and not was_in:
            expected.setdefault(PodDifference.Admitted.value, set()).add(pod_asked.name)
        elif is_in and was != now:
            change = (
                PodDifference.NoNode if now is None else PodDifference.Placed if was is None else PodDifference.Moved
            )
            expected.setdefault(change.value, set()).add(pod_asked.name)
        elif is_in and before_nodes != after_nodes:
            change = PodDifference.Fewer if before_nodes - after_nodes else PodDifference.More
            expected.setdefault(change.value, set()).add(pod_asked.name)

    differences = compare_policies(asked_of(objects), side(before, state), side(after, state), FleetPlacements(state))

    reported: dict[str, set[str]] = {}
    for difference in differences.differences:
        reported.setdefault(difference.change, set()).add(difference.pod)
    reported.pop(PodDifference.Otherwise.value, None)
    assert reported == expected
    assert expected


def test_same_policies_change_nothing() -> None:
    """F78."""
    objects = fleet(random.Random(9))
    state = state_of(objects)

    differences = compare_policies(asked_of(objects), side(STRICT, state), side(STRICT, state), FleetPlacements(state))

    assert (differences.differences, differences.unchanged, differences.hurts) == ((), 60, False)


def test_pods_of_one_template_are_one_kind_whatever_the_cluster_wrote_into_them() -> None:
    """F78: random volume names, the DaemonSet controller's node, and labels that no policy reads are ignored."""
    field = {"key": "metadata.name", "operator": "In"}
    compared_pods = []
    for number in range(3):
        mount = {"name": f"kube-api-access-{number}abcd", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
        terms = [{"matchFields": [{**field, "values": [f"n-{number}"]}]}]
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
        made = pod(gpus(1, volumeMounts=[mount]), nodeName=f"n-{number}", affinity=affinity,
                   volumes=[{"name": mount["name"], "projected": {}}])  # fmt: skip
        made["metadata"] |= {"uid": f"u-{number}", "labels": {"pod-index": str(number)}}
        compared_pods.append(ComparedPod(f"p-{number}", "team-a", without_cluster_fields(made), uid=f"u-{number}"))
    state = state_of([node_document()])

    differences = compare_policies(compared_pods, side(STRICT, state), side(STRICT, state), FleetPlacements(state))

    assert (differences.pods, differences.templates) == (3, 1)


def written(folder: Path, name: str, *texts: str) -> str:
    (folder / name).mkdir()
    for number, text in enumerate(texts):
        (folder / name / f"{number}.yaml").write_text(text, "utf-8")
    return str(folder / name)


def run(folder: Path, spec: str, objects: list[dict[str, Any]], *more: str) -> Result:
    """Compare an empty policy with a policy of this spec."""
    (folder / "now.json").write_text(json.dumps({"kind": "List", "items": objects}), "utf-8")
    old, new = written(folder, "old", policy("p", "description: x")), written(folder, "new", policy("p", spec))
    return RUN.invoke(app, ["policy", "diff", old, new, "--snapshot", str(folder / "now.json"), *more])


def bound(amount: int, node: str = "h-0", name: str = "p") -> dict[str, Any]:
    made = pod(gpus(amount), nodeName=node)
    made["metadata"] |= {"name": name, "uid": name}
    return made


@pytest.mark.parametrize(
    ("spec", "words", "code"),
    [
        ("admission: {maxGPUsPerPod: 2}", "newly refused: 1 pod", 1),
        ("placement: {products: {allow: [A10]}}", "left without any node: 1 pod", 1),
        (
            "placement: {products: {deny: [T4]}}",
            "moved: 1 pod\n  team-a/p (runs on h-0): best node before the edit: t-0; after it: h-0",
            0,
        ),
        ("admission: {runtimeClassName: other}", "changed otherwise: 1 pod", 0),
        ("description: other", "1 pod of 1 kind: 1 unchanged", 0),
    ],
)
def test_each_change_is_named_and_what_hurts_fails(tmp_path: Path, spec: str, words: str, code: int) -> None:
    """F78: a pod that holds all GPUs of its node still has its own place."""
    nodes = [node_document("h-0"), node_document("t-0", "Tesla-T4")]

    result = run(tmp_path, spec, [*nodes, bound(8)])

    assert words in result.output
    assert result.exit_code == code


FOUR = [node_document("h-0"), *(node_document(f"t-{number}", "Tesla-T4") for number in range(3))]
LOST = "fits on fewer nodes: 1 pod\n  team-a/p: before the edit: 4 nodes; after it: 1 node, no longer on t-0, t-1, t-2"


@pytest.mark.parametrize(
    ("spec", "nodes", "words"),
    [
        ("placement: {products: {deny: [T4]}}", FOUR, LOST),
        ("placement: {products: {allow: [H100]}}", FOUR, LOST),
        ("placement: {gpuMemory: 40Gi}", FOUR, LOST),
        (
            "placement: {products: {deny: [T4]}}",
            [*FOUR, *(node_document(f"u-{number}", "Tesla-T4") for number in range(9))],
            "before the edit: 13 nodes; after it: 1 node, no longer on t-0, t-1, t-2 …",
        ),
    ],
    ids=["denied", "allowed", "memory", "many"],
)
def test_pod_whose_best_node_stays_is_told_the_nodes_that_it_loses(
    tmp_path: Path, spec: str, nodes: list[dict[str, Any]], words: str
) -> None:
    """F78: the H100 packs best, as seven of its GPUs are held."""
    waiting = pod(gpus(1))
    result = run(tmp_path, spec, [*nodes, bound(7, name="held"), waiting])

    assert words in result.output
    assert result.exit_code == 0


def test_pod_that_gets_more_nodes_is_told_too(tmp_path: Path) -> None:
    """F78: the same edit the other way round."""
    held = [*FOUR, bound(7, name="held"), pod(gpus(1))]
    (tmp_path / "now.json").write_text(json.dumps({"kind": "List", "items": held}), "utf-8")
    old = written(tmp_path, "old", policy("p", "placement: {products: {deny: [T4]}}"))
    new = written(tmp_path, "new", policy("p", "description: x"))

    result = RUN.invoke(app, ["policy", "diff", old, new, "--snapshot", str(tmp_path / "now.json")])

    assert "fits on more nodes: 1 pod\n  team-a/p: before the edit: 1 node; after it: 4 nodes" in result.output


def test_json_has_every_pod(tmp_path: Path) -> None:
    """F78: the members of -o json are stable, and the text shows the first pods."""
    pods = [bound(4, name=f"p-{number}") for number in range(5)]
    spec = "admission: {maxGPUsPerPod: 2}"

    result = run(tmp_path, spec, [node_document("h-0"), *pods], "-o", "json")

    answer = json.loads(result.stdout)
    assert answer["counts"] == {"newly refused": 5}
    assert [difference["pod"] for difference in answer["differences"]] == [f"team-a/p-{number}" for number in range(5)]


def test_recorded_requests_are_tried_too(tmp_path: Path) -> None:
    """F78: a decision log is enough, without any fleet."""
    posted(list(questions(60)), shared_gpu_service(tmp_path), str(tmp_path / "log"))
    old = written(tmp_path, "old", policy("p", "description: x"))
    new = written(tmp_path, "new", policy("p", "admission: {maxGPUsPerPod: 1}"))

    result = RUN.invoke(app, ["policy", "diff", old, new, "--decisions", str(tmp_path / "log"), "-o", "json"])

    answer = json.loads(result.stdout)
    assert result.exit_code == 1
    assert answer["pods"] == 60
    assert set(answer["counts"]) <= {"newly refused", "changed otherwise"}
    assert "at most 1 per pod" in answer["differences"][0]["now"]


def test_policies_may_be_those_that_an_overlay_would_bring(tmp_path: Path) -> None:
    """The output of kustomize is enough to show what an overlay would deny before it is applied."""
    metadata = {"namespace": "gpu-usher", "name": "gpu-usher-policies"}
    rendered = [
        {"kind": "Namespace", "metadata": {"name": "gpu-usher"}},
        {"kind": "ConfigMap", "metadata": metadata, "data": {"p.yaml": policy("p", "admission: {maxGPUsPerPod: 2}")}},
    ]
    (tmp_path / "now.json").write_text(json.dumps({"kind": "List", "items": [node_document("h-0"), bound(4)]}), "utf-8")
    old = written(tmp_path, "old", policy("p", "description: x"))
    fleet = ["--snapshot", str(tmp_path / "now.json")]

    result = RUN.invoke(app, ["policy", "diff", old, "-", *fleet], input=yaml.safe_dump_all(rendered))
    nothing = RUN.invoke(app, ["policy", "diff", old, "-", *fleet], input=yaml.safe_dump_all(rendered[:1]))

    assert result.exit_code == 1
    assert "newly refused: 1 pod" in result.stdout
    assert isinstance(nothing.exception, BadInput)
    assert "no ConfigMap gpu-usher-policies and no GPUPolicy" in str(nothing.exception)


def test_finished_pods_are_nobody(tmp_path: Path) -> None:
    done = {**bound(4), "status": {"phase": "Succeeded"}}

    result = run(tmp_path, "admission: {maxGPUsPerPod: 2}", [node_document("h-0"), done])

    assert (result.exit_code, result.output) == (0, "0 pods of 0 kinds: 0 unchanged\n")


def test_no_fleet_and_no_log_is_bad_input(tmp_path: Path) -> None:
    assert isinstance(RUN.invoke(app, ["policy", "diff", str(tmp_path), str(tmp_path)]).exception, BadInput)


def test_pods_with_claims_are_compared_by_the_devices_that_they_can_take(tmp_path: Path) -> None:
    """F78, F135, F166: the claims are older than the policy, and may get the product that it denies."""
    old = written(tmp_path, "old", policy("p", "placement: {}"))
    new = written(tmp_path, "new", policy("p", "placement: {products: {deny: [H100]}}"))

    result = RUN.invoke(app, ["policy", "diff", old, new, "--demo-fleet", "gpucluster", "-o", "json"])

    changes = {row["pod"]: (row["change"], row["now"]) for row in json.loads(result.stdout)["differences"]}
    assert result.exit_code == 1
    assert {name for name, (change, _) in changes.items() if change == PodDifference.Refused.value} == {
        "team-a/train-0",
        "team-a/train-1",
        "team-b/notebook",
    }
    assert "team-a/long-context" not in changes


def test_node_without_the_devices_that_a_pod_claims_is_none_for_it() -> None:
    """F135: no GPU of the fleet has the memory that the claim of long-context wants."""
    objects = read(Fleet(demo_fleet="gpucluster"), optional=DRA)
    state = state_of(objects)
    waiting = next(document for document in objects if document["metadata"].get("name") == "long-context")
    demand = side(policies(), state).context.ruling(read_pod(waiting, "team-a"), {}).demand

    assert FleetPlacements(state).best(demand, "long-context") is None
    assert FleetPlacements(state).why(demand).startswith("no node: no device of the node has memory >= 141Gi (5 nodes)")
