# SPDX-License-Identifier: Apache-2.0
"""The doctor: each check has one finding for many nodes, and none on a healthy fleet."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.verbs import app
from app.doctor.fleet_checks import CHECKS, Finding, FindingLevel, examine
from app.doctor.held_gpus import pods_that_fail_to_start, with_pods
from app.nodes.gpu_health import Health
from app.values.errors import BadInput
from tests.builders import knowledge, node, node_document, pod
from tests.cluster.fake_exporter import fake_exporter
from tests.doctor.healthy_cluster import examined
from tests.kube.test_finished_pods import UNAVAILABLE

GPU = "nvidia.com/gpu"
TAINT = [{"key": GPU, "value": "present", "effect": "NoSchedule"}]
SOFT = [{"key": GPU, "value": "present", "effect": "PreferNoSchedule"}]


def nodes_by_check(*nodes: Any, **more: Any) -> dict[str, tuple[str, ...]]:
    """Return the names of the nodes that each check reports."""
    return {finding.check: finding.nodes for finding in examine(examined(*nodes, **more))}


HEALTHY: dict[str, Any] = {"taints": TAINT, "capacity": {GPU: 8}}


@pytest.mark.parametrize(
    ("made", "check"),
    [
        pytest.param({}, None, id="healthy"),
        pytest.param({"taints": None}, "UntaintedGPUNodes", id="F47: no taint"),
        pytest.param({"taints": SOFT}, "UntaintedGPUNodes", id="F47: a taint that only prefers"),
        pytest.param({"offers": {GPU: 0}, "capacity": {GPU: 0}}, "GhostGPUs", id="F46"),
        pytest.param({"offers": {GPU: 7}}, "GPUUnhealthy", id="F70"),
        pytest.param({"offers": {GPU: 0}}, "GPUUnhealthy", id="F70: all of them"),
        pytest.param({"conditions": {"GPUMissing": "True"}}, "GPUUnhealthy", id="F72: a condition"),
        pytest.param({"conditions": {"GPUMissing": "False"}}, None, id="F72: a condition that is good"),
        pytest.param({"offers": {GPU: 4}, "capacity": {GPU: 4}}, "GPUCountsDiffer", id="F73"),
        pytest.param({"product": "NVIDIA-A100-SXM4-40GB-MIG-INVALID"}, "MIGInvalid", id="F62"),
        pytest.param({"labels": {"nvidia.com/mig.config.state": "failed"}}, "MIGLayoutFailed", id="F45"),
        pytest.param(
            {"labels": {"nvidia.com/gpu-driver-upgrade-state": "upgrade-failed"}}, "DriverUpgrading", id="F44"
        ),
        pytest.param({"driver": None}, "DriverUnknown", id="no driver label"),
    ],
)
def test_each_check_finds_what_it_is_for_and_nothing_else(made: dict[str, Any], check: str | None) -> None:
    assert nodes_by_check(node("n", **{**HEALTHY, **made})) == ({check: ("n",)} if check else {})


def test_cpu_node_has_no_finding() -> None:
    """F47."""
    assert nodes_by_check(node("cpu", product=None, driver=None, offers={})) == {}


def test_condition_of_the_network_is_advice_and_one_of_a_gpu_a_problem() -> None:
    """F72, F87."""
    both = node("n", taints=TAINT, conditions={"GPUMissing": "True", "IBLinkFlapping": "True"})

    found = {finding.level: finding.what for finding in examine(examined(both))}

    assert (
        "GPUMissing=True: nvidia-smi sees fewer GPUs than the VM size has, as AKS says" in found[FindingLevel.Problem]
    )
    assert "IBLinkFlapping=True" in found[FindingLevel.Advice]


def test_node_without_facts_is_named() -> None:
    assert nodes_by_check(node("n", product=None, driver=None, taints=TAINT)) == {"GPUFactsMissing": ("n",)}


def refused(name: str, node: str, **spec: Any) -> dict[str, Any]:
    """Write a pod that the kubelet of a node refused."""
    document = pod(nodeName=node, **spec)
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": f"Pod was rejected: {UNAVAILABLE}"}
    return {**document, "metadata": {**document["metadata"], "name": name}, "status": status}


@pytest.mark.parametrize(
    ("made", "second", "cause"),
    [
        pytest.param({}, "default-scheduler", "somebody wrote spec.nodeName", id="not known"),
        pytest.param({}, "other", "several schedulers place GPU pods there: default-scheduler, other", id="schedulers"),
        pytest.param({"offers": {GPU: 7}}, "other", "withdrawn 1 of 8 nvidia.com/gpu on that node", id="withdrawn"),
    ],
)
def test_pods_that_kubelets_refused_are_counted_with_their_nodes(made: dict[str, Any], second: str, cause: str) -> None:
    """F87: one finding for all pods of one likely cause."""
    nodes = tuple(node(name, **{**HEALTHY, **made}) for name in ("n", "m"))
    pods = [
        refused(f"{name}-{n}", name, schedulerName=("default-scheduler", second)[n]) for name in "nm" for n in (0, 1)
    ]

    findings = examine(with_pods(examined(*nodes), [*pods, pod()]))
    (finding,) = (finding for finding in findings if finding.check == "RefusedByKubelet")

    assert (finding.level, finding.nodes) == (FindingLevel.Advice, ("m", "n"))
    assert finding.objects == ("Pod team-a/n-0", "Pod team-a/n-1", "Pod team-a/m-0", "Pod team-a/m-1")
    assert "4 GPU pods refused by the kubelet (UnexpectedAdmissionError)" in finding.what
    assert finding.what.endswith("; most on n (2), m (2)")
    assert f"likely cause: {cause}" in finding.what.replace("the device plugin has ", "")


HOOK = "failed to create containerd task: OCI runtime create failed: error running prestart hook #0: exit status 1: "
MISMATCH = f"{HOOK}nvidia-container-cli: initialization error: nvml error: driver/library version mismatch"
LOST = f"{HOOK}nvidia-container-cli: device error: GPU-4c1f: unknown device"
TOO_NEW = f"{HOOK}nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver"
NO_CDI = "failed to generate spec: failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=0"


def waits(name: str, message: str, on: str = "n", reason: str = "RunContainerError") -> dict[str, Any]:
    """Write a GPU pod whose container waits for its start."""
    return starting(name, on, "Pending", {"state": {"waiting": {"reason": reason, "message": message}}})


def backs_off(name: str, message: str, on: str = "n", ended: str = "StartError") -> dict[str, Any]:
    """Write a GPU pod that the kubelet tries to start again, whose last start says the cause."""
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}
    last = {"terminated": {"reason": ended, "exitCode": 128, "message": message}}
    return starting(name, on, "Running", {"state": state, "lastState": last})


def gives_up(name: str, message: str, on: str = "n") -> dict[str, Any]:
    """Write a GPU pod of a Job with restartPolicy Never."""
    ended = {"reason": "StartError", "exitCode": 128, "message": message}
    return starting(name, on, "Failed", {"state": {"terminated": ended}})


def starting(name: str, on: str, phase: str, container: dict[str, Any]) -> dict[str, Any]:
    document = {**pod(nodeName=on), "status": {"phase": phase, "containerStatuses": [{"name": "main", **container}]}}
    document["metadata"]["name"] = name
    return document


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param(
            [backs_off("a", MISMATCH), waits("b", MISMATCH), gives_up("c", MISMATCH)],
            {"n": ("3 GPU pods of n cannot start: the driver's libraries", ("a", "b", "c"))},
            id="one cause on one node",
        ),
        pytest.param(
            [backs_off("a", MISMATCH), backs_off("b", MISMATCH, "m")],
            {
                "n": ("1 GPU pod of n cannot start: the driver's libraries", ("a",)),
                "m": ("1 GPU pod of m cannot start: the driver's libraries", ("b",)),
            },
            id="one cause on two nodes",
        ),
        pytest.param([waits("a", LOST)], {"n": ("the driver no longer knows the GPU", ("a",))}, id="unknown device"),
        pytest.param([gives_up("a", TOO_NEW)], {"n": ("cuda>=12.8", ("a",))}, id="unsatisfied condition"),
        pytest.param(
            [backs_off("a", TOO_NEW, ended="ContainerCannotRun")], {"n": ("newer CUDA", ("a",))}, id="of CRI-O"
        ),
        pytest.param(
            [waits("a", NO_CDI, reason="CreateContainerError")], {"n": ("no CDI specification", ("a",))}, id="CDI"
        ),
        pytest.param([waits("a", "pull access denied", reason="ErrImagePull")], {}, id="a cause in the pod"),
        pytest.param([backs_off("a", "exit status 1", ended="Error")], {}, id="a program that crashes"),
        pytest.param([{**pod(nodeName="n"), "status": {"phase": "Running"}}], {}, id="runs"),
    ],
)
def test_pods_that_their_node_cannot_start_are_counted_by_node_and_cause(
    pods: list[dict[str, Any]], expected: dict[str, tuple[str, tuple[str, ...]]]
) -> None:
    """F87. Sources: NVIDIA/gpu-operator#898, NVIDIA/nvidia-container-toolkit#147, kserve/kserve#4513."""
    found = list(pods_that_fail_to_start(pods, knowledge()))

    assert {(finding.check, finding.level) for finding in found} <= {("PodsFailToStart", FindingLevel.Problem)}
    assert {finding.nodes[0]: finding.objects for finding in found} == {
        name: tuple(f"Pod team-a/{one}" for one in names) for name, (_, names) in expected.items()
    }
    assert all(expected[finding.nodes[0]][0] in finding.what for finding in found)


def test_failed_starts_come_before_the_gpus_that_the_same_cause_withdrew(tmp_path: Path) -> None:
    document = node_document("n", taints=TAINT, offers={GPU: 0}, capacity={GPU: 0})
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps({"kind": "List", "items": [document, {"kind": "Pod", **backs_off("a", MISMATCH)}]}))

    done = CliRunner().invoke(app, ["doctor", "--snapshot", str(file), "-o", "json"])

    assert [finding["check"] for finding in json.loads(done.output)][:2] == ["PodsFailToStart", "GhostGPUs"]


def test_pod_that_failed_while_it_ran_is_no_finding() -> None:
    """F87."""
    evicted = {**pod(nodeName="n"), "status": {"phase": "Failed", "reason": "Evicted", "message": "The node was low"}}

    fleet = with_pods(examined(node("n", **HEALTHY)), [evicted])

    assert (len(fleet.finished), examine(fleet)) == (1, ())


def test_what_dcgm_reports_is_named_with_its_cause() -> None:
    """F72."""
    reported = {"a": Health(1, 0, ("XID 79: GPU has fallen off the bus",)), "b": Health(0, 2, ("throttled",))}

    findings = examine(examined(health=reported))

    assert [(finding.level, finding.nodes) for finding in findings] == [
        (FindingLevel.Problem, ("a",)),
        (FindingLevel.Advice, ("b",)),
    ]
    assert "XID 79" in findings[0].what


def test_overrun_of_memory_is_reported() -> None:
    """F65: pods declare more than the GPUs have (docs/reference/sharing-and-memory.md#memory-budgets)."""
    cluster = examined(node("n", **HEALTHY))
    cluster.world.state.overrun.add("n")

    assert [(finding.check, finding.nodes) for finding in examine(cluster)] == [("GPUMemoryBudgetExceeded", ("n",))]


def test_same_finding_on_many_nodes_is_one() -> None:
    nodes = [node(f"n{index}", capacity={GPU: 8}) for index in range(30)]

    [finding] = examine(examined(*nodes))

    assert len(finding.nodes) == 30
    assert len(CHECKS) == len(set(CHECKS))


@pytest.mark.parametrize("output", ["text", "json"])
def test_command_names_problems_and_ends_with_1(output: str) -> None:
    """F47, F87."""
    done = CliRunner().invoke(app, ["doctor", "--demo", "-o", output])

    assert done.exit_code == 1
    assert "GhostGPUs" in done.output
    assert "h100-ghost-0" in done.output
    if output == "json":
        *levels, last = (finding["level"] for finding in json.loads(done.output))
        assert (set(levels), last) == ({"problem"}, "info")


def test_command_asks_the_exporters_and_names_what_is_ill() -> None:
    """F72, F87."""
    with fake_exporter() as exporter:
        exporter.say("DCGM_FI_DEV_XID_ERRORS", 79, Hostname="h100-0")

        done = CliRunner().invoke(app, ["doctor", "--demo", "--dcgm-exporters", exporter.url, "-o", "json"])

    of_node = [finding for finding in json.loads(done.output) if finding["nodes"] == ["h100-0"]]
    assert [finding["what"] for finding in of_node] == ["1 GPU unhealthy: XID 79: GPU has fallen off the bus"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        pytest.param(["--snapshot"], 0, id="advice alone"),
        pytest.param(["--strict", "--snapshot"], 1, id="advice, strictly"),
    ],
)
def test_advice_fails_only_when_asked_to(tmp_path: Path, words: list[str], code: int) -> None:
    """F87: the exit codes are for CI."""
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps(node_document("n", capacity={GPU: 8})), "utf-8")

    done = CliRunner().invoke(app, ["doctor", *words, str(file)])

    assert done.exit_code == code
    assert "UntaintedGPUNodes" in done.output


@pytest.mark.parametrize(
    "words",
    [
        pytest.param([], id="no fleet"),
        pytest.param(["--demo", "--scheduler-config", "x"], id="a scheduler without its cluster"),
        pytest.param(["--demo", "-o", "xml"], id="unknown output"),
        pytest.param(["--kubeconfig", "/no/such"], id="no such kubeconfig"),
    ],
)
def test_bad_input_is_an_error_of_its_own(words: list[str]) -> None:
    """F87: the exit code is 2, by app/cli/main.py."""
    done = CliRunner().invoke(app, ["doctor", *words], env={"KUBECONFIG": "/no/such"})

    assert isinstance(done.exception, BadInput)


def test_cloud_that_labels_its_gpus_itself_needs_no_feature_discovery() -> None:
    """F87: GKE's labels name the product, or the candidates; an unknown value of them names nothing."""
    found = {
        name: [finding.check for finding in gke_findings(name)]
        for name in ("nvidia-l4", "nvidia-tesla-v100", "nvidia-unheard-of")
    }

    assert found == {"nvidia-l4": [], "nvidia-tesla-v100": [], "nvidia-unheard-of": ["GPUFactsMissing"]}


def gke_findings(accelerator: str) -> list[Finding]:
    """Examine a node that GKE alone has labelled."""
    labels = {"cloud.google.com/gke-accelerator": accelerator}
    facts = examined(node("gke", product=None, driver=None, labels=labels, taints=TAINT))
    return list(examine(with_pods(facts, ())))


def test_component_that_is_installed_is_not_advised() -> None:
    """F87: nor is any other remedy that is in force."""
    bare = node("n", taints=None, capacity={GPU: 8})

    remedies = [examine(with_pods(examined(bare, cpu_guard=guard), ()))[0].remedy for guard in (False, True)]

    assert ["cpu-guard" in remedy for remedy in remedies] == [True, False]


@pytest.mark.parametrize("content", ["", '{"kind": "List", "items": []}', "kind: Pod\nmetadata: {name: a}\n"])
@pytest.mark.parametrize("verb", ["doctor", "inventory", "plan driver --to 580.65.06"])
def test_file_without_a_node_is_bad_input(tmp_path: Path, verb: str, content: str) -> None:
    """F82, F87: a gate of a CI must not pass on the wrong file."""
    file = tmp_path / "train.yaml"
    file.write_text(content, "utf-8")

    done = CliRunner().invoke(app, [*verb.split(), "--snapshot", str(file)])

    assert isinstance(done.exception, BadInput)
    assert "train.yaml: no Node in it" in str(done.exception)


def test_nodes_that_pass_gpus_through_are_counted(tmp_path: Path) -> None:
    """F87: they have no GPU for containers."""
    file = tmp_path / "vms.json"
    document = node_document("vm", product=None, driver=None, offers={"nvidia.com/GH100_H100_PCIE": 8})
    file.write_text(json.dumps(document), "utf-8")

    done = CliRunner().invoke(app, ["doctor", "--snapshot", str(file)])

    assert done.output.startswith("1 node, 0 with GPUs, 1 that pass GPUs through to virtual machines: no problems")
