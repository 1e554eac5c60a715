# SPDX-License-Identifier: Apache-2.0
"""`explain` beside the real scheduler: the same verdict on the same nodes for the same reasons, and fixes that work."""

import base64
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import pytest
import yaml
from typer.testing import CliRunner

from app.cli.verbs import app
from app.explain.explanation import NodeVerdict
from app.kube.pod_object import REQUIRED_TERMS
from tests.controlplane.cluster import TOKENS, ControlPlane
from tests.controlplane.fleet import add_nodes, kubelets, node_object, pod_path
from tests.controlplane.kubectl import Object
from tests.e2e.scheduler_messages import FITS_NOT, LACKING, predicted_reasons
from tests.e2e.stage import (
    DEPLOY,
    Service,
    create_namespace,
    create_pod,
    eventually,
    gpu_pod,
    install_webhooks,
    remove_webhooks,
    serving,
    start_scheduler,
    wait_for_node,
    wait_for_refusal,
)

BARE, ADMITTED = "bare", "admitted"
PODS = 60
GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """The service on twelve nodes of four makes in two zones; one is cordoned, two are tainted, one has little CPU."""
    add_nodes(plane.api, fleet())
    with serving(plane) as running, kubelets(plane.api):
        install_webhooks(plane, running)
        start_scheduler(plane, running)
        create_namespace(plane, ADMITTED)
        create_namespace(plane, BARE, **{"gpu_usher.io__ignore": "true"})
        yield running


def fleet() -> Iterator[Object]:
    makes: tuple[tuple[str | None, dict[str, int]], ...] = (
        ("NVIDIA-A10", {GPU: 4}),
        ("NVIDIA-H100-80GB-HBM3", {GPU: 8}),
        ("Tesla-T4", {GPU: 2}),
        (None, {}),
    )
    for index in range(12):
        product, offers = makes[index % 4]
        labels = {"zone": "ab"[index % 2], "cores": str(32 * (1 + index % 3))}
        made = node_object(f"n-{index}", product, "570.124.06" if product else None, offers, labels=labels)
        if index == 4:
            made["spec"] |= {"unschedulable": True}
        if index in (5, 6):
            made["spec"] |= {"taints": [{"key": "team", "value": "b", "effect": "NoSchedule"}]}
        if index == 8:
            made["status"]["allocatable"] = {**made["status"]["allocatable"], "cpu": "2"}
        yield made


def draw_pod(random: Random, index: int) -> Object:
    """Draw a pod with a random choice of the scheduler's constraints and of ours."""
    annotations = random.choice([{}, {}, {"products": "H100"}, {"products": "A10"}, {"gpu-memory": "40Gi"}])
    limits = {GPU: random.choice([1, 1, 2, 4, 9]), "cpu": random.choice([1, 1, 3, 50, 70])}
    pod = gpu_pod(f"drawn-{index}", BARE, limits, annotations=annotations)
    spec = pod["spec"]
    if random.random() < 0.3:
        spec["nodeSelector"] = random.choice([{"zone": "a"}, {"zone": "b"}, {"zone": "c"}])
    if random.random() < 0.4:
        spec["affinity"] = {"nodeAffinity": {REQUIRED_TERMS: {
            "nodeSelectorTerms": [{"matchExpressions": [random.choice(EXPRESSIONS)]} for _ in range(2)]}}}  # fmt: skip
    if random.random() < 0.5:
        spec["tolerations"] = [{"key": "team", "operator": "Exists"}]
    return pod


EXPRESSIONS = (
    {"key": "zone", "operator": "In", "values": ["a", "c"]},
    {"key": "zone", "operator": "NotIn", "values": ["a"]},
    {"key": "cores", "operator": "Gt", "values": ["32"]},
    {"key": "cores", "operator": "Lt", "values": ["64"]},
    {"key": "nvidia.com/gpu.product", "operator": "Exists"},
    {"key": "nvidia.com/gpu.product", "operator": "DoesNotExist"},
)


def as_the_scheduler_counts(verdict: Object) -> NodeVerdict:
    """Read a verdict of explain; a lack of GPUs becomes kube-scheduler's own refusal for it."""
    told = zip(verdict["reasons"], verdict["messages"], strict=True)
    reasons = [(FITS_NOT, f"Insufficient {GPU}") if code in LACKING else (code, text) for code, text in told]
    codes, messages = zip(*reasons, strict=True) if reasons else ((), ())
    return NodeVerdict(verdict["node"], verdict["fits"], codes, messages)


def counted_reasons(text: str) -> Counter[str]:
    """Read the scheduler's message as the number of nodes per reason; some versions name each taint for itself."""
    histogram = text.partition(" available: ")[2].partition(". ")[0]
    counts: Counter[str] = Counter()
    for number, words in re.findall(r"(\d+) ((?:(?!, \d+ ).)+)", histogram):
        counts[re.sub(r"taint \{[^}]*\}", "taint(s)", words).rstrip(",")] += int(number)
    return counts


def test_explain_agrees_with_the_real_scheduler_on_every_pod(plane: ControlPlane, service: Service) -> None:
    """F83: a bound pod fits by explain; of a refused one, explain counts the same nodes for the same reasons."""
    random, refusals = Random(83), 0
    left = {made["metadata"]["name"]: int(made["status"]["allocatable"]["cpu"]) for made in fleet()}
    for index in range(PODS):
        pod = draw_pod(random, index)
        explanation = service.explain(pod, nodes="true")
        create_pod(plane, pod)
        if explanation["fits"]:
            node = wait_for_node(plane, pod)
            assert node in {verdict["node"] for verdict in explanation["verdicts"] if verdict["fits"]}
            left[node] -= int(pod["spec"]["containers"][0]["resources"]["limits"]["cpu"])
            wait_for_booking(service, node, left[node])
        else:
            reasons = predicted_reasons(list(map(as_the_scheduler_counts, explanation["verdicts"])))
            message = wait_for_refusal(plane, pod)
            assert reasons == counted_reasons(message), (pod["spec"], message)
            refusals += 1
            plane.api.delete(pod_path(pod))

    assert 10 < refusals < PODS - 10


def wait_for_booking(service: Service, node: str, left: int) -> None:
    """Wait until the service knows that this much CPU is left on a node, or less."""
    probe = gpu_pod("probe", BARE, {"cpu": f"{left * 1000 + 1}m"}, nodeSelector={"kubernetes.io/hostname": node})
    probe["spec"]["tolerations"] = [{"operator": "Exists"}]
    eventually("the booking is known", lambda: not service.explain(probe)["fits"])


def create_waiting_pod(plane: ControlPlane, service: Service, name: str, **more: object) -> tuple[Object, Object]:
    """Create a pod that cannot be placed; return it, and the explanation of it by its name."""
    pod = gpu_pod(name, ADMITTED, **more)  # type: ignore[arg-type]
    create_pod(plane, pod)
    wait_for_refusal(plane, pod)
    return pod, service.explain({"namespace": ADMITTED, "name": name})


def fix_of_kind(explanation: Object, kind: str) -> Mapping[str, object]:
    """Return the fix that consists of one edit of this kind."""
    return next(fix for fix in explanation["fixes"] if [edit["kind"] for edit in fix["edits"]] == [kind])


def cordoned(name: str, product: str) -> Object:
    made = node_object(name, product, "580.95.05")
    made["spec"] |= {"unschedulable": True}
    return made


def test_pod_named_as_holding_the_gpus_gone_the_other_is_bound(plane: ControlPlane, service: Service) -> None:
    """F84."""
    add_nodes(plane.api, [node_object("only-l40s", "NVIDIA-L40S", "580.95.05", {GPU: 1})])
    holder = gpu_pod("holder", ADMITTED, annotations={"products": "L40S"})
    create_pod(plane, holder)
    assert wait_for_node(plane, holder) == "only-l40s"
    pod, explanation = create_waiting_pod(plane, service, "waits", annotations={"products": "L40S"})

    freed = fix_of_kind(explanation, "free-gpus")
    assert [victim["pod"] for victim in freed["edits"][0]["evicts"]] == [f"{ADMITTED}/holder"]  # type: ignore[index]
    plane.api.delete(pod_path(holder))
    assert wait_for_node(plane, pod) == "only-l40s"


@pytest.mark.usefixtures("service")
def test_command_reads_the_cluster_once_and_says_the_same(plane: ControlPlane) -> None:
    """F83: the command also names the volume's node affinity, which the service does not follow."""
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["nowhere"]}]}]
    volume = {
        "metadata": {"name": "far"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/far"},
                 "storageClassName": "none", "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}},
    }  # fmt: skip
    claim = {
        "metadata": {"name": "far", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"storageClassName": "none", "volumeName": "far", "accessModes": ["ReadWriteOnce"],
                 "resources": {"requests": {"storage": "1Gi"}}},
    }  # fmt: skip
    plane.api.create("/api/v1/persistentvolumes", volume)
    plane.api.create(f"/api/v1/namespaces/{ADMITTED}/persistentvolumeclaims", claim)
    mount = [{"name": "v", "persistentVolumeClaim": {"claimName": "far"}}]
    pod = gpu_pod("mounts", ADMITTED, volumes=mount)
    create_pod(plane, pod)
    text = wait_for_refusal(plane, pod)

    words = ["explain", "pod", f"{ADMITTED}/mounts", "-o", "json", "--kubeconfig", str(plane.kubeconfig("admin"))]
    done = subprocess.run([sys.executable, "-m", "app.cli.main", *words], capture_output=True, text=True, timeout=60)
    explanation = json.loads(done.stdout or "{}")
    plane.api.delete(pod_path(pod))

    assert done.returncode == 1, done.stderr
    assert "node(s) didn't match PersistentVolume's node affinity" in text
    assert "VolumeNodeAffinityConflict" in {objection["reason"] for objection in explanation["in_tree"]}


@pytest.fixture
def service_without_endpoints(plane: ControlPlane, service: Service) -> Iterator[None]:
    """Point the webhooks at our Service as deploy/ does, which no pod serves; at the process again afterwards."""
    create_pod(plane, gpu_pod("earlier", ADMITTED, {GPU: 9}))
    plane.kubectl("create", "namespace", "gpu-usher")  # it may be there
    ports = {"ports": [{"port": 443, "targetPort": 8443}], "selector": {"app.kubernetes.io/name": "gpu-usher"}}
    plane.api.create("/api/v1/namespaces/gpu-usher/services", {"metadata": {"name": "gpu-usher"}, "spec": ports})
    for configuration in yaml.safe_load_all((DEPLOY / "base" / "webhooks.yaml").read_text("utf-8")):
        for webhook in configuration["webhooks"]:
            webhook["clientConfig"] |= {"caBundle": base64.b64encode(service.ca.read_bytes()).decode(), "url": None}
        result = plane.kubectl("replace", "-f", "-", stdin=json.dumps(configuration))
        assert result.code == 0, result.err
    yield
    plane.api.delete("/api/v1/namespaces/gpu-usher/services/gpu-usher")
    remove_webhooks(plane)
    install_webhooks(plane, service)


@pytest.mark.usefixtures("service_without_endpoints")
def test_what_nobody_reviews_is_said_to_be_refused_as_the_api_server_refuses_it(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """F83, F87: of a file, a pod and a workload; not to a user who may not read webhooks, and not of a CPU pod."""
    pods = [gpu_pod("new", ADMITTED), gpu_pod("cpu", ADMITTED, {"cpu": 1}), gpu_pod("exempt", BARE)]
    template = {"metadata": {"labels": {"app": "d"}}, "spec": pods[0]["spec"]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "asleep", "namespace": BARE},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "d"}}, "template": template},
    }
    plane.api.create(f"/apis/apps/v1/namespaces/{BARE}/deployments", deployment)
    reader, (user, _) = "claim-templates", TOKENS["claim-templates"]
    resources = "--resource=nodes,pods,namespaces,runtimeclasses.node.k8s.io"
    for words in (
        ("clusterrole", "fleet", "--verb=get,list", resources),
        ("clusterrolebinding", "fleet", "--clusterrole=fleet", f"--user={user}"),
    ):
        assert plane.kubectl("create", *words).code == 0

    def notes(*words: str, user: str = "admin") -> list[str]:
        command = ["explain", *words, "-o", "json", "--kubeconfig", str(plane.kubeconfig(user))]
        done = CliRunner().invoke(app, command)
        assert done.exit_code in (0, 1), done.output
        notes: list[str] = json.loads(done.stdout)["notes"]
        return [note for note in notes if "creat" in note]

    def of_file(document: Object, user: str = "admin") -> list[str]:
        file = tmp_path / "pod.json"
        file.write_text(json.dumps(document), "utf-8")
        return notes("-f", str(file), user=user)

    refused = 'failed calling webhook "validate.gpu-usher.io"'
    eventually("the webhooks are replaced", lambda: refused in plane.kubectl.create(pods[0]).err)

    [told] = of_file(pods[0])

    assert told == (
        "each creation of a GPU pod is refused now: no replica of gpu-usher is ready to answer (Service "
        "gpu-usher/gpu-usher), and webhook validate.gpu-usher.io has failurePolicy Fail; gpu-usher doctor says more"
    )
    assert of_file({**deployment, "metadata": {"name": "new", "namespace": ADMITTED}}) == [told]
    assert notes("pod", f"{ADMITTED}/earlier") == [told]
    assert of_file(pods[0], user=reader) == []
    assert [of_file(pod) for pod in pods[1:]] == [[], []]
    assert [plane.kubectl.create(pod).code for pod in pods[1:]] == [0, 0]
    assert notes("deployment", f"{BARE}/asleep") == []
