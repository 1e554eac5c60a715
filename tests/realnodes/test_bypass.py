# SPDX-License-Identifier: Apache-2.0
"""What pods get that go around gpu-usher, on real nodes: without it the devices, with its guards a refusal."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from app.cluster.files import shipped_policies
from tests.builders import policy
from tests.controlplane.kubectl import Object
from tests.e2e.stage import (
    SOON_SECONDS,
    Service,
    create_namespace,
    create_pod,
    eventually,
    install_webhooks,
    remove_webhooks,
    serving,
)
from tests.realnodes.bypass_cases import BYPASSES
from tests.realnodes.cluster import Cluster
from tests.realnodes.nvml_config import report_xid
from tests.realnodes.results import Results
from tests.realnodes.seen_devices import container_pod, delete_pod, read_seen, wait_for_phase
from tests.realnodes.whole_path_cases import GPU

FATAL_XID = 79
"""The GPU has fallen off the bus (NVIDIA's XID catalog)."""
GUARD = "priority: 9, admission: {visibleDevices: Deny, privileged: Deny, bypass: Deny}"
DENIED = "denied the request: "


@pytest.fixture(scope="module")
def service(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service with the shipped policies and one that denies what goes around the scheduler."""
    policies = shutil.copytree(shipped_policies(), tmp_path_factory.mktemp("guards") / "policies")
    (policies / "guard.yaml").write_text(policy("guard", GUARD), "utf-8")
    with serving(cluster.plane, policies=str(policies)) as running:
        install_webhooks(cluster.plane, running)
        yield running
        remove_webhooks(cluster.plane)


@pytest.fixture(scope="module")
def guarded(cluster: Cluster, service: Service) -> str:
    assert service.ready()
    return create_namespace(cluster.plane, "guarded")


@pytest.fixture(scope="module")
def unguarded(cluster: Cluster, service: Service) -> str:
    """A namespace that an administrator has exempted, as it would be without gpu-usher."""
    assert service.ready()
    return create_namespace(cluster.plane, "unguarded", **{"gpu_usher.io__ignore": "true"})


@pytest.mark.parametrize("way", BYPASSES)
def test_container_that_goes_around_gets_what_the_guards_refuse(
    cluster: Cluster, guarded: str, unguarded: str, results: Results, way: str
) -> None:
    """F12, F14: what the container may open without us, and what our guards say of its pod."""
    bypass, node = BYPASSES[way], cluster.nodes["node-1"]
    pod = bypass.pod(unguarded, nodeName=node.name)
    node.toolkit.configure(*bypass.toolkit)
    try:
        create_pod(cluster.plane, pod)
        wait_for_phase(cluster, pod)
        seen = read_seen(cluster, pod)
        delete_pod(cluster, pod)
    finally:
        node.toolkit.configure()
    answer = cluster.plane.kubectl.create(bypass.pod(guarded), dry_run=True)

    assert (len(seen.gpus), len([file for file in seen.denied if "caps" not in file])) == (bypass.opened, bypass.denied)
    assert (answer.code, DENIED in answer.err) == (bool(bypass.refusal), bool(bypass.refusal)), answer.err
    assert bypass.refusal in answer.err
    results.add_bypass(way, bypass, answer.err.partition(DENIED)[2].strip())


def bind(cluster: Cluster, pod: Object, node: str) -> None:
    """Bind a pod that no scheduler takes, as a scheduler does that knows nothing of the others."""
    metadata = {"name": pod["metadata"]["name"]}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
    namespace = pod["metadata"]["namespace"]
    cluster.plane.api.create(f"/api/v1/namespaces/{namespace}/pods/{metadata['name']}/binding", binding)


def doctor_findings(cluster: Cluster) -> list[Object]:
    """Run `gpu-usher doctor` with the administrator's KUBECONFIG, and return its findings."""
    command = [sys.executable, "-m", "app.cli.main", "doctor", "-o", "json"]
    environment = {**os.environ, "KUBECONFIG": str(cluster.plane.kubeconfig("admin"))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SOON_SECONDS, check=False)
    findings: list[Object] = json.loads(done.stdout)
    return findings


@pytest.mark.parametrize(
    ("by_hand", "cause"),
    [(True, " wrote spec.nodeName, so that no scheduler was asked"), (False, "two schedulers count on the same node")],
    ids=["by hand", "by another scheduler"],
)
def test_pod_bound_beyond_what_is_free_is_refused_by_the_kubelet_and_explained(
    cluster: Cluster, service: Service, unguarded: str, by_hand: bool, cause: str
) -> None:
    """F13, F83, F87: UnexpectedAdmissionError; the pod holds no GPU, and explain and doctor say who bound it."""
    node: Object = {"nodeName": "node-1"}
    first = container_pod("first", unguarded, {GPU: 5}, **node)
    second = container_pod("second", unguarded, {GPU: 5}, schedulerName="another", **(node if by_hand else {}))
    create_pod(cluster.plane, first)
    wait_for_phase(cluster, first)
    create_pod(cluster.plane, second)
    if not by_hand:
        bind(cluster, second, "node-1")
    status = wait_for_phase(cluster, second, "Failed")["status"]

    assert status["reason"] == "UnexpectedAdmissionError"
    reference = {"namespace": unguarded, "name": "second"}
    explanation = service.explain(reference)
    assert (explanation["fits"], explanation["ending"]["refused"], explanation["ending"]["node"]) == (0, True, "node-1")
    assert "Requested: 5, Available: 3" in explanation["ending"]["message"]
    assert "fewer free devices" in explanation["ending"]["why"]
    assert cause in explanation["ending"]["cause"]
    assert "no controller creates another" in explanation["ending"]["remedy"]
    (finding,) = (finding for finding in doctor_findings(cluster) if finding["check"] == "RefusedByKubelet")
    assert (finding["nodes"], finding["objects"]) == (["node-1"], [f"Pod {unguarded}/second"])
    if by_hand:
        assert cause in finding["what"]
    else:
        assert "several schedulers place GPU pods there: another, gpu-usher-scheduler" in finding["what"]

    delete_pod(cluster, first)
    eventually("the refused pod holds no GPU", lambda: service.explain(reference)["fits"] == 1)
    delete_pod(cluster, second)


@pytest.mark.parametrize(
    ("reason", "cpu", "selector", "words"),
    [
        ("OutOfcpu", "1000", {}, "too little was left"),
        ("NodeAffinity", "1m", {"gpu-usher.test/absent": "true"}, "labels did not match"),
    ],
)
def test_other_refusals_of_a_kubelet_are_explained(
    cluster: Cluster, service: Service, unguarded: str, reason: str, cpu: str, selector: dict[str, str], words: str
) -> None:
    """F83: what a kubelet looks at besides devices."""
    amounts = {"nvidia.com/gpu": 1, "cpu": cpu}
    pod = container_pod("refused", unguarded, amounts, nodeName="node-1", nodeSelector=selector)
    create_pod(cluster.plane, pod)
    wait_for_phase(cluster, pod, "Failed")

    ending = service.explain({"namespace": unguarded, "name": "refused"})["ending"]
    delete_pod(cluster, pod)

    assert (ending["refused"], ending["reason"], ending["node"]) == (True, reason, "node-1")
    assert words in ending["why"]
    assert "wrote spec.nodeName" in ending["cause"]


@pytest.fixture
def withdrawn(cluster: Cluster) -> Iterator[None]:
    """One GPU of node-1 has fallen off the bus, so that its device plugin offers seven; put right afterwards."""
    node = cluster.nodes["node-1"]

    def offers_seven() -> bool:
        report_xid(node.folder / "machine", node.world.machine.gpus[5], FATAL_XID)
        return node.allocatable().get(GPU) == "7"

    eventually("the device plugin has withdrawn it", offers_seven)
    yield
    node.restart_device_plugin()
    eventually("all GPUs are offered", lambda: node.allocatable().get(GPU) == "8")


@pytest.mark.usefixtures("withdrawn")
def test_withdrawn_gpu_is_named_as_the_cause_of_a_refusal(cluster: Cluster, service: Service, unguarded: str) -> None:
    """F83, F70: the pod was bound to eight GPUs, of which an XID had taken one."""
    pod = container_pod("eight", unguarded, {GPU: 8}, schedulerName="another")
    create_pod(cluster.plane, pod)
    bind(cluster, pod, "node-1")
    wait_for_phase(cluster, pod, "Failed")
    reference = {"namespace": unguarded, "name": "eight"}

    eventually("the service has seen it", lambda: "withdrawn" in service.explain(reference)["ending"]["cause"])
    ending = service.explain(reference)["ending"]
    delete_pod(cluster, pod)

    assert "Requested: 8, Available: 7" in ending["message"]
    assert ending["cause"] == "the device plugin has withdrawn 1 of 8 nvidia.com/gpu on that node"
