# SPDX-License-Identifier: Apache-2.0
"""What the API server itself refuses, as a table; tests/e2e/test_api_server_refusals.py asks a real one the same."""

from typing import Any

import pytest

from app.cluster.snapshot import fill
from app.intree.api_server import NewPod, api_server_refusals, completed, counts_for_pods
from app.kube.admission_objects import ADMISSION_TYPES, AdmissionObjects
from app.kube.objects import Overhead, RuntimeClass, Scheduling
from app.kube.records import read_record
from app.values.errors import MalformedPod
from app.world.state import State
from tests.builders import knowledge

Object = dict[str, Any]
GPU = "nvidia.com/gpu"
CLASSES = {"kata": RuntimeClass("kata", Scheduling({"kata": "true"}, ({"key": "kata"},)), Overhead({"memory": "2Gi"}))}


def pod(limits: Object | None = None, requests: Object | None = None, **spec: Any) -> Object:
    container = {"name": "main", "resources": {"limits": limits or {}, "requests": requests or {}}}
    return {"metadata": {"name": "p", "namespace": "a"}, "spec": {"containers": [container], **spec}}


def quota(hard: Object, used: Object | None = None, **spec: Any) -> Object:
    status = {"status": {"hard": hard, "used": used}} if used is not None else {}
    return {
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": "a"},
        "spec": {"hard": hard, **spec},
        **status,
    }


def limits(**item: Any) -> Object:
    item = {"type": "Container", **item}
    return {"kind": "LimitRange", "metadata": {"name": "l", "namespace": "a"}, "spec": {"limits": [item]}}


def known(*documents: Object) -> AdmissionObjects:
    objects = AdmissionObjects()
    for document in documents:
        metadata = document["metadata"]
        key = f"{metadata['namespace']}/{metadata['name']}" if "namespace" in metadata else metadata["name"]
        objects.put(document["kind"], key, read_record(ADMISSION_TYPES[document["kind"]], document))
        objects.listed.add(document["kind"])
    return objects


def refused(document: Object, *documents: Object, labels: dict[str, str] | None = None) -> list[str]:
    objects = known(*documents)
    new = completed(document, "a", objects, CLASSES)
    new_pod = NewPod(new, "a", labels or {}, objects, CLASSES, knowledge().pod_security, {"gpu.nvidia.com": 2})
    return [refusal.message for refusal in api_server_refusals(new_pod)]


TRAIN = {"kind": "PriorityClass", "metadata": {"name": "train"}, "value": 1, "globalDefault": True}
ACCOUNT = {"kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "a"}}
SIDECAR = [{"name": "i", "restartPolicy": "Always", "resources": {"limits": {GPU: 1}}}]


@pytest.mark.parametrize(
    ("document", "objects", "message"),
    [
        pytest.param(pod({GPU: 2}), [quota({f"requests.{GPU}": "2"}, {f"requests.{GPU}": "0"})], "", id="enough"),
        pytest.param(pod({GPU: 2}), [quota({f"requests.{GPU}": "2"})], "", id="no status"),
        pytest.param(
            pod({GPU: 2}), [quota({f"requests.{GPU}": "2"}, {})], "status unknown for quota: q", id="not counted yet"
        ),
        pytest.param(pod({GPU: 9}), [quota({GPU: "1", f"limits.{GPU}": "1"}, {})], "", id="names that count nothing"),
        pytest.param(
            pod({GPU: 2}, initContainers=SIDECAR), [quota({f"requests.{GPU}": "2"})], f"{GPU}=3, used", id="sidecar"
        ),
        pytest.param(
            pod({"memory": "3Gi"}, runtimeClassName="kata"),
            [quota({"requests.memory": "4Gi"})],
            "=5Gi, used",
            id="overhead",
        ),
        pytest.param(
            pod(), [quota({"cpu": "4"}, {"cpu": "0"})], "failed quota: q: must specify cpu for: main", id="must specify"
        ),
        pytest.param(
            pod(), [limits(defaultRequest={"cpu": "1"}), quota({"requests.cpu": "4"})], "", id="default first"
        ),
        pytest.param(pod(), [quota({"pods": "0"}, scopes=["BestEffort"])], "exceeded quota", id="best effort"),
        pytest.param(pod({"cpu": 1}), [quota({"pods": "0"}, scopes=["BestEffort"])], "", id="not best effort"),
        pytest.param(pod(), [quota({"pods": "0"}, scopes=["Terminating"])], "", id="not terminating"),
        pytest.param(
            pod(activeDeadlineSeconds=5), [quota({"pods": "0"}, scopes=["Terminating"])], "pods=1", id="terminating"
        ),
        pytest.param(pod(), [TRAIN, quota({"pods": "0"}, scopes=["PriorityClass"])], "pods=1", id="default class"),
        pytest.param(pod(), [quota({"pods": "0"}, scopes=["PriorityClass"])], "", id="no class"),
        pytest.param(
            pod(), [quota({"gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "1"})], "devices=2", id="claims"
        ),
        pytest.param(
            pod({GPU: 2}), [limits(max={GPU: 1})], f"maximum {GPU} usage per Container is 1, but limit is 2", id="max"
        ),
        pytest.param(pod({GPU: 1}), [limits(max={GPU: 1})], "", id="as many as the maximum"),
        pytest.param(
            pod({"cpu": 4}), [limits(type="Pod", max={"cpu": "2"})], "maximum cpu usage per Pod is 2", id="of a pod"
        ),
        pytest.param(pod(), [limits(type="Pod", max={"cpu": "2"})], "No limit is specified", id="no limit"),
        pytest.param(
            pod({"cpu": "100m"}), [limits(min={"cpu": "1"})], "minimum cpu usage per Container is 1", id="min"
        ),
        pytest.param(
            pod({"cpu": 4}, {"cpu": 1}), [limits(maxLimitRequestRatio={"cpu": "2"})], "ratio is 4.000000", id="ratio"
        ),
        pytest.param(
            pod(requests={"cpu": 4}),
            [limits(default={"cpu": "1"})],
            "must be less than or equal to cpu limit",
            id="default below the request",
        ),
        pytest.param(pod(priorityClassName="batch"), [TRAIN], "no PriorityClass with name batch was found", id="class"),
        pytest.param(pod(priorityClassName="batch"), [], "", id="no classes known"),
        pytest.param(pod(priorityClassName="system-node-critical"), [TRAIN], "", id="class of the system"),
        pytest.param(pod(serviceAccountName="ann"), [ACCOUNT], 'serviceaccount "ann" not found', id="account"),
        pytest.param(pod(serviceAccountName="ann"), [], "", id="no accounts known"),
        pytest.param(pod(runtimeClassName="gone"), [], 'RuntimeClass "gone" not found', id="runtime class"),
        pytest.param(
            pod(runtimeClassName="kata", nodeSelector={"kata": "no"}), [], "conflict: runtimeClass", id="conflict"
        ),
        pytest.param(pod(overhead={"cpu": "1"}, runtimeClassName="kata"), [], "doesn't match", id="own overhead"),
    ],
)
def test_api_server_refuses(document: Object, objects: list[Object], message: str) -> None:
    """F83."""
    found = refused(document, *objects)

    assert (bool(found), message in "".join(found)) == (bool(message), True), found


GOOD = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.mark.parametrize(
    ("level", "version", "spec", "context", "violated"),
    [
        pytest.param("privileged", "latest", {"hostPID": True}, {}, [], id="privileged"),
        pytest.param("baseline", "latest", {}, {}, [], id="baseline"),
        pytest.param(
            "baseline", "latest", {}, {"capabilities": {"add": ["IPC_LOCK"]}}, ["non-default capabilities"], id="RDMA"
        ),
        pytest.param("baseline", "latest", {"hostNetwork": True}, {}, ["host namespaces"], id="network of the host"),
        pytest.param("restricted", "latest", {}, GOOD, [], id="restricted"),
        pytest.param(
            "restricted", "v1.21", {}, {}, ["allowPrivilegeEscalation", "runAsNonRoot", "seccompProfile"], id="old"
        ),
        pytest.param("restricted", "latest", {"securityContext": {"runAsUser": 0}}, GOOD, ["runAsUser=0"], id="root"),
        pytest.param(
            "restricted",
            "v1.34",
            {"hostUsers": False},
            {**GOOD, "runAsNonRoot": False},
            ["runAsNonRoot"],
            id="own users, old",
        ),
        pytest.param("restricted", "v1.35", {"hostUsers": False}, {**GOOD, "runAsNonRoot": False}, [], id="own users"),
        pytest.param(
            "restricted", "latest", {"volumes": [{"name": "v", "nfs": {}}]}, GOOD, ["restricted volume types"], id="NFS"
        ),
    ],
)
def test_pod_security_level_forbids(
    level: str, version: str, spec: Object, context: Object, violated: list[str]
) -> None:
    document = pod(**spec)
    document["spec"]["containers"][0]["securityContext"] = context
    prefix = "pod-security.kubernetes.io/enforce"

    found = "".join(refused(document, labels={prefix: level, f"{prefix}-version": version}))

    assert bool(found) == bool(violated)
    assert found.count("(spec") == len(violated)
    assert [words for words in violated if words not in found] == []


def test_nothing_is_written_into_a_pod_that_nothing_concerns() -> None:
    document = pod({GPU: 1})

    assert completed(document, "a", known(limits(max={"cpu": 1}), quota({"pods": 1})), {}) is not document
    assert completed(document, "b", known(limits(max={"cpu": 1})), CLASSES) is document


def test_port_of_a_pod_in_the_network_of_the_host_is_a_port_of_the_host() -> None:
    document = pod(hostNetwork=True)
    document["spec"]["containers"][0]["ports"] = [{"containerPort": 8000}]

    new = completed(document, "a", AdmissionObjects(), {})

    assert new["spec"]["containers"][0]["ports"] == [{"containerPort": 8000, "hostPort": 8000}]
    assert document["spec"]["containers"][0]["ports"] == [{"containerPort": 8000}]


def test_odd_object_of_a_snapshot_is_named() -> None:
    with pytest.raises(MalformedPod) as raised:
        fill(State(knowledge()), [quota({"pods": ["many"]})])

    place = "spec.hard[pods]"
    assert str(raised.value) == f"ResourceQuota a/q: {place}: got a list, wants an integer or a number or a string"


@pytest.mark.parametrize(
    "spec",
    [
        {"overhead": 1},
        {"affinity": {"podAffinity": [1]}},
        {"activeDeadlineSeconds": "5"},
        {"resources": [1]},
        {"os": 5},
        {"securityContext": "odd"},
    ],
)
def test_odd_members_of_a_pod_do_not_stop_the_checks(spec: Object) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}

    assert refused(pod(**spec), quota({"pods": "9"}, scopes=["NotTerminating", "NotBestEffort"]), labels=labels)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("pods", True),
        ("count/pods", True),
        ("requests.cpu", True),
        ("limits.memory", True),
        (f"requests.{GPU}", True),
        (GPU, False),
        (f"limits.{GPU}", False),
        ("hugepages-2Mi", True),
        ("configmaps", False),
        ("requests.storage", False),
        ("requests.deviceclass.resource.kubernetes.io/gpu", True),
    ],
)
def test_quota_counts_by_name(name: str, counts: bool) -> None:
    assert counts_for_pods(name) is counts


@pytest.mark.parametrize(
    ("annotations", "selector"),
    [
        pytest.param({"openshift.io/node-selector": "tier=gpu, zone=a"}, {"tier": "gpu", "zone": "a"}, id="OpenShift"),
        pytest.param({"scheduler.alpha.kubernetes.io/node-selector": "tier=gpu"}, {"tier": "gpu"}, id="upstream"),
        pytest.param({"openshift.io/node-selector": ""}, None, id="empty"),
        pytest.param(None, None, id="none"),
    ],
)
def test_node_selector_of_a_namespace_is_added(annotations: Object | None, selector: Object | None) -> None:
    namespace = {"kind": "Namespace", "metadata": {"name": "a", "annotations": annotations}}

    assert completed(pod(), "a", known(namespace), {})["spec"].get("nodeSelector") == selector
