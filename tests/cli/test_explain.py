# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher explain`: from a file, a snapshot, the demo and a running service; text, wide, JSON, YAML (F83)."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from app.cli.explain_text import print_explanation
from app.cli.explained_objects import waiting_in
from app.cli.verbs import app
from app.cluster.snapshot import fill, read_partial_snapshot, read_snapshot
from app.demo.sample_fleets import demo_fleet
from app.explain.counterfactual import EvictedPod, Fix, FixStep
from app.explain.pending_pod import explain
from app.kube.existing_pods import existing_pods_of
from app.values.computations import finish
from app.values.errors import BadInput
from app.world.state import State
from app.world.world import world_of
from tests.builders import gpus, knowledge, make_service, pod, policies, policy
from tests.running import running

RUN = CliRunner()
NOWHERE = pod(gpus(1), annotations={"products": "H100"}, nodeSelector={"pool": "gold"})


def explained(*words: str) -> Any:
    return RUN.invoke(app, ["explain", *words], env={"COLUMNS": "160"})


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(NOWHERE), "utf-8")
    return str(tmp_path / "pod.yaml")


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    waiting = pod(gpus(1), nodeSelector={"pool": "gold"})
    listed = {"kind": "List", "items": [*demo_fleet(), waiting]}
    (tmp_path / "fleet.json").write_text(json.dumps(listed), "utf-8")
    return str(tmp_path / "fleet.json")


def test_text_says_the_cause_the_funnel_and_the_smallest_change(file: str) -> None:
    """F83, F84."""
    result = explained("-f", file, "--demo", "--details")

    assert result.exit_code == 1
    for words in (
        "team-a/p fits on none of 23 nodes",
        "node(s) didn't match Pod's node affinity/selector: pool=gold",
        "products H100",
        "taints and selectors",
        "drop pool: gold from nodeSelector",
    ):
        assert words in result.output


def test_pod_that_fits_shows_the_best_nodes_and_exits_with_0(tmp_path: Path) -> None:
    """F83."""
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod()), "utf-8")

    file = str(tmp_path / "pod.yaml")
    result, details = explained("-f", file, "--demo"), explained("-f", file, "--demo", "--details")

    assert (result.exit_code, details.exit_code) == (0, 0)
    assert result.output.splitlines()[1] == "  l4-0  NVIDIA-L4, a whole GPU of 22.5 GiB, driver 550.54.15"
    assert "best nodes" not in result.output
    assert "best nodes" in details.output


@pytest.mark.parametrize("words", [["--nodes"], ["-o", "wide"]])
def test_nodes_shows_what_stands_against_each(file: str, words: list[str]) -> None:
    """F83."""
    output = explained("-f", file, "--demo", *words).output

    assert "node by node" in output
    assert [line for line in output.splitlines() if line.endswith(" ")] == []


def test_namespace_without_a_name_lists_what_waits_in_it() -> None:
    """F83: the cause and the first change of each pod; a sample fleet does not say since when."""
    listed, empty = explained("-n", "language", "--demo-fleet", "weekday"), explained("-n", "x", "--demo")

    lines = listed.output.splitlines()
    assert lines[0].startswith("language/distill fits on none of 23 nodes: not enough free GPUs")
    assert lines[1].startswith("  → allow NVIDIA-H100-80GB-HBM3 too")
    assert listed.exit_code == 1
    assert (empty.exit_code, "no pod of namespace x waits" in empty.output) == (0, True)


@pytest.mark.parametrize(
    ("created", "number", "title"),
    [
        pytest.param("2026-11-28T09:00:00Z", 1, "since 2026-11-28T09:00:00Z:", id="a time"),
        pytest.param("2026-11-28T09:00:00Z", 3, "since 2026-11-28T09:00:00Z, as 2 more like it:", id="and others"),
        pytest.param(None, 3, "as 2 more like it:", id="others alone"),
        pytest.param(None, 1, "", id="neither"),
    ],
)
def test_waiting_pod_is_titled_by_what_is_known_of_it(created: str | None, number: int, title: str) -> None:
    """F83: pods of one controller and template are one."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
    pods = [pod(gpus(1)) for _ in range(number)]
    for index, one in enumerate(pods):
        times = {"creationTimestamp": created} if created else {}
        one["metadata"] |= {"name": f"p-{index}", "ownerReferences": [owner], **times}

    assert [one.of for one in waiting_in("team-a", pods)] == [title]


def test_changes_that_are_shown_are_numbered_without_gaps() -> None:
    """F84: a change that ends pods is shown besides the first three, wherever it comes."""
    console, ended = Console(file=io.StringIO(), width=160, record=True), (EvictedPod("other/p", 0, {}),)
    steps = [FixStep("k", "pod", f"change {name}", ended if name == "e" else ()) for name in "abcde"]
    found = finish(explain(NOWHERE, world_of(State(knowledge()), policies())))

    print_explanation(console, replace(found, fixes=tuple(Fix((step,), "n", 1) for step in steps)))

    lines = [line for line in console.export_text().splitlines() if "change " in line]
    assert [line.partition(" →")[0] for line in lines] == [
        "  1 change a",
        "  2 change b",
        "  3 change c",
        "  4 change e",
    ]


def test_json_and_yaml_say_the_same(file: str) -> None:
    """F83."""
    texts = [explained("-f", file, "--demo", "--nodes", "-o", output).output for output in ("json", "yaml")]

    assert json.loads(texts[0]) == yaml.safe_load(texts[1])
    assert len(json.loads(texts[0])["verdicts"]) == 23


def test_pending_pod_of_a_snapshot_is_explained_by_name(snapshot: str) -> None:
    """F83, F86: the pod is judged as it is, without the changes of admission."""
    answer = json.loads(explained("pod", "team-a/p", "--snapshot", snapshot, "-o", "json").output)

    assert answer["fits"] == 0
    assert {cause["reason"] for cause in answer["in_tree"]} == {"NodeAffinityMismatch", "UntoleratedTaint"}


def test_pod_that_a_kubelet_refused_says_so_first(tmp_path: Path) -> None:
    """F83, F86: what happened, why, what to do, and where it would run if it were created again."""
    message = "Pod was rejected: Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. "
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message}
    refused = {**pod(nodeName="a100-1"), "status": status}
    (tmp_path / "fleet.json").write_text(json.dumps({"kind": "List", "items": [*demo_fleet(), refused]}), "utf-8")

    lines = explained("team-a/p", "--snapshot", str(tmp_path / "fleet.json")).output.splitlines()

    assert lines[0] == "team-a/p was refused by the kubelet of a100-1"
    assert "unavailable for nvidia.com/gpu" in lines[1]
    assert "(UnexpectedAdmissionError)" in lines[1]
    assert "fewer free devices" in lines[2]
    assert "likely cause: somebody wrote spec.nodeName" in lines[3]
    assert "delete it" in lines[4]
    assert lines[5] == "if it were created again:"
    assert "team-a/p fits on" in lines[6]


def test_pod_that_has_not_started_begins_with_its_event(tmp_path: Path) -> None:
    """F83: an Event of an earlier pod of the same name is not its own."""
    bound = {**pod(nodeName="a100-1"), "status": {"phase": "Pending"}}
    bound["metadata"] |= {"uid": "2"}
    about = {"kind": "Pod", "namespace": "team-a", "name": "p", "uid": "2"}
    mount = {"kind": "Event", "type": "Warning", "reason": "FailedMount", "message": "no such Secret",
             "involvedObject": about}  # fmt: skip
    earlier = {**mount, "reason": "FailedAttachVolume", "involvedObject": {**about, "uid": "1"}}
    items = [*demo_fleet(), bound, mount, earlier]
    (tmp_path / "fleet.json").write_text(json.dumps({"kind": "List", "items": items}), "utf-8")

    lines = explained("team-a/p", "--snapshot", str(tmp_path / "fleet.json")).output.splitlines()

    assert lines[0] == "team-a/p is bound to a100-1, not started"
    assert lines[1].startswith("  FailedMount: a volume of the pod cannot be mounted (no such Secret); check that")
    assert lines[2].startswith("  without what admission adds, it would not go there: ")
    assert lines[3].startswith(
        "without what admission adds, it would fit on none of 23 nodes; of the 19 that come nearest: "
    )


def test_running_service_answers_as_the_command_does(file: str, tmp_path: Path) -> None:
    """F83."""
    with running(make_service(tmp_path)) as service:
        result = explained("-f", file, "--url", str(service.people.base_url), "-o", "json")
        missing = explained("pod", "team-a/p", "--url", str(service.people.base_url))

    assert json.loads(result.output) == json.loads(explained("-f", file, "--demo", "-o", "json").output)
    assert "post the Pod itself" in str(missing.exception)


def test_service_is_said_not_to_count_the_pods_of_a_workload(tmp_path: Path) -> None:
    """F83, F151: it is sent one pod of each template."""
    template = {
        "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}
    }
    spec = {"parallelism": 3, "suspend": True, "template": template}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "w"}, "spec": spec}
    (tmp_path / "job.json").write_text(json.dumps(job), "utf-8")
    with running(make_service(tmp_path)) as service:
        words = ("-f", str(tmp_path / "job.json"), "--url", str(service.people.base_url), "-o", "json")
        suspended, not_counted, *_ = json.loads(explained(*words).output)["notes"]

    assert suspended.startswith("the Job is suspended")
    assert not_counted.startswith("how many of its 3 pods fit together is not asked of a service; without --url, ")


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ([], "one of them"),
        (["pod", "a/b", "-f", "x"], "one of them"),
        (["-f", "/none/such.yaml", "--demo"], "No such file"),
        (["pod", "team-a/none", "--demo"], "pod team-a/none not found"),
    ],
)
def test_wrong_words_are_answered_with_the_remedy(words: list[str], remedy: str) -> None:
    """F79."""
    result = explained(*words)

    assert isinstance(result.exception, BadInput)
    assert remedy in str(result.exception)


def test_lean_snapshot_fills_the_same_state(snapshot: str) -> None:
    """F86: the fields that the fast reader leaves out decide nothing."""
    data = Path(snapshot).read_bytes()
    lean, whole = State(knowledge()), State(knowledge())

    fill(lean, read_partial_snapshot("x", data))
    fill(whole, read_snapshot("x", data))

    pods = (
        [document for document in read("x", data) if document["kind"] == "Pod"]
        for read in (read_partial_snapshot, read_snapshot)
    )
    assert existing_pods_of(next(pods)) == existing_pods_of(next(pods))
    assert lean.nodes == whole.nodes
    assert lean.node_requests.used == whole.node_requests.used
    assert [lean_node.unschedulable for lean_node in lean.nodes.values()] == [
        lean_node.unschedulable for lean_node in whole.nodes.values()
    ]


def test_lean_reading_keeps_a_wanted_pod_whole_and_leaves_mistakes_to_the_plain_one(snapshot: str) -> None:
    """F86."""
    data = Path(snapshot).read_bytes()

    documents = read_partial_snapshot("x", data, lambda document: document["metadata"]["name"] == "p")

    assert next(
        document for document in documents if document["kind"] == "Pod" and document["metadata"]["name"] == "p"
    )["spec"]["nodeSelector"]
    with pytest.raises(BadInput, match="not YAML"):
        read_partial_snapshot("x", b"a: [")


def test_policies_in_the_snapshot_rule_as_in_the_cluster(tmp_path: Path) -> None:
    """F86, F131: GPUPolicy objects and ConfigMaps with the label count; other ConfigMaps do not."""
    allow = {"placement": {"products": {"allow": ["A10"]}}, "priority": 7}
    text = policy("in-a-map", "priority: 5, placement: {gpuMemory: 8Gi}")
    labels = {"gpu-usher.io/policy": "true"}
    objects = [
        *demo_fleet(),
        {"kind": "GPUPolicy", "metadata": {"name": "only-a10", "uid": "u"}, "spec": allow},
        {"kind": "ConfigMap", "metadata": {"name": "m", "labels": labels}, "data": {"a.yaml": text}},
        {"kind": "ConfigMap", "metadata": {"name": "other"}, "data": {"a.yaml": "a: ["}},
    ]
    (tmp_path / "fleet.json").write_text(json.dumps({"kind": "List", "items": objects}), "utf-8")
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod()), "utf-8")

    result = explained("-f", str(tmp_path / "pod.yaml"), "--snapshot", str(tmp_path / "fleet.json"), "-o", "json")

    assert json.loads(result.output)["policies"][:2] == ["only-a10", "in-a-map"]
    assert {best_node["node"] for best_node in json.loads(result.output)["best"]} == {"a10-0", "a10-1", "a10-shared-0"}


def workload(kind: str, name: str = "w") -> dict[str, Any]:
    template = {"spec": NOWHERE["spec"], "metadata": {"annotations": NOWHERE["metadata"]["annotations"]}}
    spec: dict[str, Any] = {"template": template}
    return {
        "apiVersion": "apps/v1" if kind == "Deployment" else "batch/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "team-a"},
        "spec": {"jobTemplate": {"spec": spec}} if kind == "CronJob" else spec,
    }


@pytest.mark.parametrize("kind", ["Deployment", "Job", "CronJob"])
def test_workload_of_a_file_is_explained_by_its_pod_template(tmp_path: Path, kind: str) -> None:
    """F83."""
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(workload(kind)), "utf-8")

    result = explained("-f", str(tmp_path / "w.yaml"), "--demo")

    assert result.exit_code == 1
    assert f"{kind} team-a/w, its pod template:\nteam-a/w fits on none of 23 nodes" in result.output


RAY = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "metadata": {"name": "ray", "namespace": "team-a"},
    "spec": {
        "headGroupSpec": {"template": {"spec": pod()["spec"]}},
        "workerGroupSpecs": [{"groupName": "big", "template": {"spec": NOWHERE["spec"]}}],
    },
}


def test_each_template_of_a_workload_of_another_project_is_explained(tmp_path: Path) -> None:
    """F83: an ML engineer asks about the RayCluster or PyTorchJob that he is about to create."""
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(RAY), "utf-8")

    result = explained("-f", str(tmp_path / "w.yaml"), "--demo")

    assert result.exit_code == 1
    assert "RayCluster team-a/ray, template spec.headGroupSpec.template:\nteam-a/ray fits on" in result.output
    assert (
        "RayCluster team-a/ray, template spec.workerGroupSpecs[0].template:\nteam-a/ray fits on none" in result.output
    )


@pytest.mark.parametrize("word", ["jobset/train", "jobsets.jobset.x-k8s.io/train", "lws/train"])
def test_workload_of_another_project_has_the_pods_of_its_jobs(tmp_path: Path, word: str) -> None:
    """F83: the pods of a JobSet or LeaderWorkerSet are owned by Jobs and StatefulSets, and have a label of it."""
    label = "leaderworkerset.sigs.k8s.io/name" if word[0] == "l" else "jobset.sigs.k8s.io/jobset-name"
    pods = [
        {**NOWHERE, "metadata": {"name": name, "namespace": "team-a", "labels": {label: of}}}
        for name, of in (("train-0", "train"), ("other-0", "other"))
    ]
    (tmp_path / "fleet.json").write_text(json.dumps({"kind": "List", "items": [*demo_fleet(), *pods, RAY]}), "utf-8")

    result = explained(word, "-n", "team-a", "--snapshot", str(tmp_path / "fleet.json"))
    suspended = explained("raycluster/ray", "-n", "team-a", "--snapshot", str(tmp_path / "fleet.json"))

    assert "train, the newest of its 1 pending pods:\nteam-a/train-0 fits on none of 23 nodes" in result.output
    assert suspended.output.count("RayCluster team-a/ray, template ") == 2


@pytest.mark.parametrize("form", ["List", "several documents"])
def test_every_pod_and_workload_of_a_file_is_explained(tmp_path: Path, form: str) -> None:
    """F83: and the exit code is that of the worst."""
    documents = [workload("Deployment", "first"), pod(gpus(1)), {"apiVersion": "v1", "kind": "Service"}, NOWHERE]
    listed = [{"apiVersion": "v1", "kind": "List", "items": documents}] if form == "List" else documents
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(listed), "utf-8")

    result = explained("-f", str(tmp_path / "all.yaml"), "--demo")

    assert result.exit_code == 1
    assert "team-a/first fits on none" in result.output
    assert result.output.count("team-a/p fits on ") == 2


@pytest.mark.parametrize("word", ["deployment/train", "deploy/train", "deployments.apps/train"])
def test_workload_of_a_fleet_is_its_newest_pending_pod(tmp_path: Path, word: str) -> None:
    """F83: its pods name a ReplicaSet, whose name begins with that of the Deployment."""
    pods = []
    for number, created in enumerate(("2026-11-25T10:00:00Z", "2026-11-25T11:00:00Z")):
        owner = {"kind": "ReplicaSet", "name": "train-7d4b9c6f58", "controller": True, "apiVersion": "apps/v1"}
        made = {"name": f"train-7d4b9c6f58-{number}", "creationTimestamp": created, "ownerReferences": [owner],
                "labels": {"pod-template-hash": "7d4b9c6f58"}, "namespace": "team-a"}  # fmt: skip
        pods.append({**NOWHERE, "metadata": made})
    (tmp_path / "fleet.json").write_text(json.dumps({"kind": "List", "items": [*demo_fleet(), *pods]}), "utf-8")

    result = explained(word, "-n", "team-a", "--snapshot", str(tmp_path / "fleet.json"))

    assert "Deployment team-a/train, the newest of its 2 pending pods:" in result.output
    assert "team-a/train-7d4b9c6f58-1 fits on none of 23 nodes" in result.output
