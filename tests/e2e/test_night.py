# SPDX-License-Identifier: Apache-2.0
"""A night with failures: of each scene the first line of `doctor` is its cause, on a real API server and controllers.

The node lifecycle controller runs here, so that a node whose Lease nobody renews is NotReady as in a cluster.
"""

import base64
import contextlib
import datetime as dt
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager

import httpx
import pytest

from app.doctor.node_states import NOT_READY
from app.telemetry.logs import now
from app.tls.authority import KeyPair, issue_leaf, make_authority, service_names
from tests.controlplane.binaries import Binaries
from tests.controlplane.cluster import CONTROLLERS, ControlPlane, control_plane
from tests.controlplane.kubectl import Object
from tests.e2e.certificate_stage import MUTATING, SECRETS, VALIDATING, data
from tests.e2e.stage import DEPLOY, eventually
from tests.e2e.test_doctor import (
    DEPLOYMENT,
    FIRST,
    NODE,
    SLICES,
    failing_checks,
    findings_of,
    make_endpoint,
    make_ready,
    patched_object,
    replaced,
)
from tests.e2e.test_doctor import cluster as cluster_to_examine
from tests.realnodes.object_nodes import LEASES, lease_term, renew_leases, report_ready

cluster = cluster_to_examine
DEPLOYMENTS = "/apis/apps/v1/namespaces/gpu-usher/deployments"
POLICIES = "/api/v1/namespaces/gpu-usher/configmaps/gpu-usher-policies"
SECOND = """\
apiVersion: gpu-usher.io/v1beta1
kind: GPUPolicy
metadata: {name: second}
spec: {admission: {schedulerName: gpu-usher-scheduler}}
"""


class NightPlane(ControlPlane):
    """A control plane that watches over its nodes."""

    controllers: tuple[str, ...] = (*CONTROLLERS, "node-lifecycle-controller")


HEARTBEAT_SECONDS = 2
NODES = ("h100-0", "cpu-0")
SILENT: set[str] = set()
"""The nodes whose kubelets are dead."""


@pytest.fixture(scope="module")
def plane(binaries: Binaries) -> Iterator[ControlPlane]:
    """Two nodes are kept Ready, as by kubelets, but for those in SILENT."""
    with control_plane(binaries, make=NightPlane) as running:
        terms = [{"metadata": {"name": name}, "spec": {"holderIdentity": name, **lease_term()}} for name in NODES]
        eventually(
            "the namespace is there",
            lambda: all(running.api.try_create(LEASES, one).status_code in (201, 409) for one in terms),
        )
        stop = threading.Event()

        def beat() -> None:
            with running.api.like() as own:
                while not stop.wait(HEARTBEAT_SECONDS):
                    with contextlib.suppress(AssertionError, httpx.HTTPError):
                        living = [name for name in NODES if name not in SILENT]
                        renew_leases(own, living)
                        report_ready(own, frozenset(living))

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        yield running
        stop.set()
        thread.join(10)


def first_problem(plane: ControlPlane) -> tuple[str, str, list[str]]:
    """Return the check, the text and the objects of the first line; it is a problem, but for one of a young node."""
    found = findings_of(plane)
    assert found, "doctor has found nothing"
    assert found[0]["level"] == ("advice" if found[0]["check"] == NOT_READY else "problem")
    return found[0]["check"], found[0]["what"], found[0]["objects"]


def mend(plane: ControlPlane) -> None:
    """Let the pods of Deployments that were scaled become ready, as kubelets would."""

    def mended() -> bool:
        make_ready(plane, "gpu-usher")
        return failing_checks(plane) == set()

    eventually("nothing is said", mended)


@contextmanager
def no_replicas(plane: ControlPlane) -> Iterator[None]:
    plane.api.delete(f"{SLICES}/gpu-usher-x")
    with patched_object(plane, DEPLOYMENT, replaced("/spec/replicas", 0)):
        yield
    make_endpoint(plane)
    mend(plane)


@contextmanager
def replica_that_crashes(plane: ControlPlane) -> Iterator[None]:
    """A replica ends at its start; the kubelet writes the end of its log into the status."""
    plane.api.delete(f"{SLICES}/gpu-usher-x")
    pods = "/api/v1/namespaces/gpu-usher/pods"
    serving = [
        pod
        for pod in plane.api.items(pods)
        if pod["metadata"]["labels"].get("app.kubernetes.io/component") == "admission"
    ]
    ended = {"exitCode": 1, "reason": "Error", "message": "starting\ntls.crt: valid until 18:00Z, not now\n"}
    status = {"name": "gpu-usher", "image": "gpu-usher", "imageID": "", "ready": False, "restartCount": 4}
    status |= {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended}}
    for pod in serving:
        plane.api.patch(f"{pods}/{pod['metadata']['name']}/status", {"status": {"containerStatuses": [status]}})
    yield
    for pod in serving:
        plane.api.patch(f"{pods}/{pod['metadata']['name']}/status", {"status": {"containerStatuses": []}})
    make_endpoint(plane)


def long_ago() -> dt.datetime:
    return now() - dt.timedelta(days=4000)


@contextmanager
def expired_and_no_keeper(plane: ControlPlane) -> Iterator[None]:
    """The certificates controller is scaled to 0, and the certificate has expired."""
    authority = KeyPair(data(plane, "ca", "ca.crt"), data(plane, "ca", "ca.key"))
    leaf = issue_leaf(authority, service_names(), long_ago())
    crt = replaced("/data/tls.crt", base64.b64encode(leaf.certificate).decode())
    with ExitStack() as stack:
        stack.enter_context(patched_object(plane, f"{SECRETS}/gpu-usher-tls", crt))
        keeper = f"{DEPLOYMENTS}/gpu-usher-certificates"
        stack.enter_context(patched_object(plane, keeper, replaced("/spec/replicas", 0)))
        eventually("it has no pod", lambda: not plane.api.get(keeper)["status"].get("availableReplicas"))
        yield
    mend(plane)


@contextmanager
def misnamed_profile(plane: ControlPlane) -> Iterator[None]:
    text = (DEPLOY / "components" / "second-scheduler" / "config.yaml").read_text("utf-8")
    misnamed = text.replace("schedulerName: gpu-usher-scheduler", "schedulerName: gpu-schedular")
    document: Object = {"metadata": {"name": "gpu-usher-scheduler"}, "data": {"config.yaml": misnamed}}
    configmaps = "/api/v1/namespaces/gpu-usher/configmaps"
    plane.api.create(configmaps, document)
    with patched_object(plane, POLICIES, replaced("/data/second.yaml", SECOND)):
        yield
    plane.api.delete(f"{configmaps}/gpu-usher-scheduler")


def misspelt_policy(plane: ControlPlane) -> AbstractContextManager[None]:
    return patched_object(plane, POLICIES, replaced("/data/own.yaml", "kind: GPUPolicy"))


def foreign_ca(plane: ControlPlane) -> AbstractContextManager[None]:
    other = base64.b64encode(make_authority(now()).certificate).decode()
    return patched_object(plane, VALIDATING, replaced(f"{FIRST}/clientConfig/caBundle", other))


@contextmanager
def no_webhook(plane: ControlPlane) -> Iterator[None]:
    before = plane.api.get(MUTATING)
    plane.api.delete(MUTATING)
    with misspelt_policy(plane):
        yield
    before["metadata"] = {key: before["metadata"][key] for key in ("name", "labels")}
    plane.api.create(MUTATING.rpartition("/")[0], before)


@contextmanager
def kubelet_gone(plane: ControlPlane) -> Iterator[None]:
    """Nobody renews its Lease any more: the node lifecycle controller says that the kubelet has stopped.

    The node is minutes old here, so that it may be starting: its line, alone, is advice.
    """
    SILENT.add("h100-0")
    eventually("the node is not Ready", lambda: ready_state(plane) == "Unknown")
    yield
    SILENT.clear()
    eventually("it is Ready again", lambda: ready_state(plane) == "True")


def ready_state(plane: ControlPlane) -> str:
    conditions = plane.api.get(NODE)["status"]["conditions"]
    return next((str(one["status"]) for one in conditions if one["type"] == "Ready"), "")


Scene = Callable[[ControlPlane], AbstractContextManager[None]]
MIG, UPGRADE = "nvidia.com~1mig.config.state", "nvidia.com~1gpu-driver-upgrade-state"
"""Labels, as JSON patches write them."""
FIRST_LINES: Mapping[str, tuple[str, str]] = {
    "replicas 0": ("NoReadyEndpoint", "Deployment gpu-usher is scaled to 0"),
    "replica crashes": ("NoReadyEndpoint", "gpu-usher: tls.crt: valid until 18:00Z, not now"),
    "certificates": ("ReplicasUnavailable", "scaled to 0, so that our certificates are not"),
    "MIG failed": ("MIGLayoutFailed", "MIG Manager failed"),
    "MIG pending": ("MIGReconfiguring", "nvidia.com/mig.config.state=pending for 3 h"),
    "upgrade failed": ("DriverUpgrading", "driver upgrade failed"),
    "profile misnamed": ("SchedulerConfiguration", "none is named gpu-usher-scheduler"),
    "policy unreadable": ("PolicyUnreadable", "own.yaml"),
    "no webhook": ("WebhookAbsent", "GPU pods are created without being reviewed"),
    "caBundle of another": ("Certificate", "none of the 1 CAs"),
    "kubelet gone": (NOT_READY, "1 GPU node with 8 GPUs does not answer since"),
}
"""Scene → the check and a part of the text of its first line."""


def label(node: str, key: str, value: str) -> Scene:
    """Set a label of a node, which is named by its path."""
    return lambda plane: patched_object(plane, node, replaced(f"/metadata/labels/{key}", value))


def pending_for_hours(node: str) -> Scene:
    """Leave a change of the MIG layout pending for three hours.

    Another writer sets the time back, with an annotation: a request that changes times alone changes nothing.
    """

    @contextmanager
    def scene(plane: ControlPlane) -> Iterator[None]:
        with label(node, MIG, "pending")(plane):
            document = plane.api.get(node)
            for writer in document["metadata"]["managedFields"]:
                writer["time"] = (now() - dt.timedelta(hours=3)).strftime("%Y-%m-%dT%H:%M:%SZ")
            document["metadata"].setdefault("annotations", {})["example.com/clock"] = "set back"
            plane.api.client.put(node, json=document, params={"fieldManager": "clock"}).raise_for_status()
            yield

    return scene


SCENES: Mapping[str, Scene] = {
    "replicas 0": no_replicas,
    "replica crashes": replica_that_crashes,
    "certificates": expired_and_no_keeper,
    "MIG failed": label(NODE, MIG, "failed"),
    "MIG pending": pending_for_hours(NODE),
    "upgrade failed": label(NODE, UPGRADE, "upgrade-failed"),
    "profile misnamed": misnamed_profile,
    "policy unreadable": misspelt_policy,
    "no webhook": no_webhook,
    "caBundle of another": foreign_ca,
    "kubelet gone": kubelet_gone,
}


@pytest.mark.parametrize("name", SCENES)
def test_first_line_is_the_cause(cluster: ControlPlane, name: str) -> None:
    """F87."""
    check, words = FIRST_LINES[name]
    with SCENES[name](cluster):
        found, what, objects = first_problem(cluster)

    assert (found, words in what) == (check, True), what
    if check == "PolicyUnreadable":
        assert objects == ["ConfigMap gpu-usher/gpu-usher-policies, key own.yaml"]
