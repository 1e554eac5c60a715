# SPDX-License-Identifier: Apache-2.0
"""Pods that try to reach a GPU without a request or without the scheduler are guarded.

They do so through their environment or their mounts, by privileges, by host paths, by a node or scheduler of their own,
and by labels and forged annotations.
"""

import zlib
from collections.abc import Iterator, Mapping

import pytest

from tests.builders import container, policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import KubectlResult, Object
from tests.e2e.offers import dra_path
from tests.e2e.stage import (
    OURS,
    Service,
    create_namespace,
    create_pod,
    eventually,
    install_webhooks,
    own_policies,
    plain_pod,
    read_pod,
    serving,
)

PRIVILEGED: Object = {"securityContext": {"privileged": True}}
GPU, VISIBLE = "nvidia.com/gpu", "NVIDIA_VISIBLE_DEVICES"
WAIVER = "{match: {podSelector: {matchLabels: {waived: 'yes'}}}, owner: ops, reason: a test, expires: 2099-01-01}"
GUARDS = {
    "deny": f"admission: {{visibleDevices: Deny, privileged: Deny, bypass: Deny}}, exceptions: [{WAIVER}]",
    "strip": "admission: {visibleDevices: Strip}",
    "void": "admission: {visibleDevices: Void}",
    "few": "admission: {maxGPUsPerPod: 4}",
    "scheduler": f"admission: {{schedulerName: {OURS}, privileged: Deny, bypass: Deny}}",
}
"""Policies by the value of the namespace label `guard`; without the label the shipped policy warns."""


@pytest.fixture(scope="module")
def service(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service with the shipped policies and a policy for each guard, on a cluster of one GPU node."""
    texts = {
        f"guard-{name}": policy(
            f"guard-{name}",
            f"priority: 9, match: {{namespaceSelector: {{matchLabels: {{guard: {name}}}}}}}, {spec}",
        )
        for name, spec in GUARDS.items()
    }
    add_nodes(plane.api, [node_object("h100")])
    plane.api.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    with serving(plane, policies=str(own_policies(tmp_path_factory.mktemp("own"), texts))) as running:
        install_webhooks(plane, running)
        yield running


@pytest.fixture
def namespace(plane: ControlPlane, service: Service, request: pytest.FixtureRequest) -> str:
    """A namespace of the test's own with the guard that it is parametrized by, or else the shipped policy's."""
    made = create_namespace(plane, f"guards-{zlib.crc32(request.node.name.encode()):08x}")
    if getattr(request, "param", "warn") != "warn":
        put_guard(plane, service, made, request.param)
    return made


def put_guard(plane: ControlPlane, service: Service, namespace: str, guard: str) -> None:
    assert plane.kubectl("label", "namespace", namespace, f"guard={guard}").code == 0
    eventually("the service knows the label", lambda: f"guard-{guard}" in str(service.explain(plain_pod(namespace))))


DENIED = 'Error from server (Forbidden): error when creating "STDIN": admission webhook "mutate.gpu-usher.io" denied'
ALL = [{"name": VISIBLE, "value": "all"}]


EVERY = ["deny", "strip", "void", "warn"]


def visible(value: Object) -> Object:
    return {"env": [{"name": VISIBLE, **value}]}


VOID = visible({"value": "void"})["env"]


def debug(plane: ControlPlane, namespace: str, name: str, value: str) -> KubectlResult:
    words = ("--image=x:1", f"--container={name}", f"--env={VISIBLE}={value}", "--profile=general")
    return plane.kubectl("debug", "p", "-n", namespace, *words)


def ephemeral(plane: ControlPlane, namespace: str) -> list[object]:
    pod = read_pod(plane, plain_pod(namespace))
    return [(document["name"], document.get("env")) for document in pod["spec"].get("ephemeralContainers", [])]


DEBUGGED = [("deny", []), ("strip", [("first", None)]), ("void", [("first", VOID)]), ("warn", [("first", ALL)])]


@pytest.mark.parametrize(("namespace", "left"), DEBUGGED, indirect=["namespace"], ids=EVERY)
@pytest.mark.parametrize("limits", [{"cpu": 1}, {GPU: 1}], ids=["CPU pod", "GPU pod"])
def test_ephemeral_container_is_guarded(
    plane: ControlPlane, namespace: str, left: list[object], limits: Object
) -> None:
    """F12, fault 60: `kubectl debug` of an existing pod is judged like a new pod."""
    create_pod(plane, plain_pod(namespace, limits))

    answer = debug(plane, namespace, "first", "all")

    assert (answer.code, ephemeral(plane, namespace)) == (not left, left)
    assert any(f"first{verb} {VISIBLE}" in answer.err for verb in (":", " sets"))


@pytest.mark.parametrize("then", ["deny", "strip", "void"])
def test_existing_ephemeral_container_is_left_as_it_is(
    plane: ControlPlane, service: Service, namespace: str, then: str
) -> None:
    """F12: the API server lets nobody change it, and it must not keep out one that takes no GPU."""
    create_pod(plane, plain_pod(namespace, {"cpu": 1}))
    assert debug(plane, namespace, "first", "all").code == 0
    put_guard(plane, service, namespace, then)

    answer = debug(plane, namespace, "second", "none")

    assert answer.code == 0
    assert ephemeral(plane, namespace) == [("first", ALL), ("second", visible({"value": "none"})["env"])]


IMPLICIT = "deviceclass.resource.kubernetes.io/"


@pytest.mark.parametrize("namespace", ["few"], indirect=True)
def test_gpus_by_a_device_class_of_the_clusters_own_are_counted(plane: ControlPlane, namespace: str) -> None:
    """F26, S13: the selectors of the DeviceClass, which we follow, say whose GPUs it gives."""
    driven = [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]
    made = {"metadata": {"name": "big"}, "spec": {"selectors": driven}}
    plane.api.create(f"{dra_path(plane)}/deviceclasses", made)
    eight = plain_pod(namespace, {f"{IMPLICIT}big": 8})

    eventually("we know the class", lambda: plane.kubectl.create(eight, dry_run=True).code != 0)

    assert "asks for 8 GPUs; at most 4 per pod are allowed" in plane.kubectl.create(eight, dry_run=True).err
    assert plane.kubectl.create(plain_pod(namespace, {f"{IMPLICIT}big": 4}), dry_run=True).code == 0


BYPASSES: Mapping[str, tuple[str, Object]] = {
    "privileged": (
        "main is privileged, which lets it use every GPU",
        {"containers": [container({GPU: 1}, **PRIVILEGED)]},
    ),
    "node": ("spec.nodeName is set, so that no scheduler checks the node", {"nodeName": "h100"}),
}


@pytest.mark.parametrize(("namespace", "code"), [("deny", 1), ("warn", 0)], indirect=["namespace"])
@pytest.mark.parametrize("way", BYPASSES)
def test_gpu_pod_that_goes_around_us_is_guarded(plane: ControlPlane, namespace: str, code: int, way: str) -> None:
    """F14, fault 60, bypass."""
    words, fields = BYPASSES[way]

    answer = plane.kubectl.create(plain_pod(namespace, **fields))

    assert (answer.code, words in answer.err, answer.err.startswith(DENIED)) == (code, True, bool(code))


REACHING: Mapping[str, Object] = {
    "privileged": {"containers": [container({"cpu": 1}, **PRIVILEGED)]},
    "a GPU's device file": {"volumes": [{"name": "v", "hostPath": {"path": "/dev/nvidia0"}}]},
    "all devices": {"volumes": [{"name": "v", "hostPath": {"path": "/dev"}}]},
}


@pytest.mark.parametrize(("namespace", "code"), [("deny", 1), ("warn", 0)], indirect=["namespace"])
@pytest.mark.parametrize("way", REACHING)
def test_pod_that_reaches_the_nodes_devices_is_guarded(
    plane: ControlPlane, namespace: str, code: int, way: str
) -> None:
    """F12, F14: such a pod requests no GPU. A webhook of its own judges it; the shipped policy only warns."""
    answer = plane.kubectl.create(plain_pod(namespace, {"cpu": 1}, **REACHING[way]))

    assert (answer.code, 'webhook "devices.gpu-usher.io" denied' in answer.err) == (code, bool(code)), answer.err
    assert bool(code) or "(warning only)" in answer.err


@pytest.mark.parametrize("namespace", ["scheduler"], indirect=True)
@pytest.mark.parametrize(("name", "code"), [("volcano", 1), ("default-scheduler", 0), (OURS, 0)])
def test_scheduler_that_no_policy_names_is_denied(plane: ControlPlane, namespace: str, name: str, code: int) -> None:
    """F13, fault 60, bypass: the default scheduler is replaced by the policy's, any other is refused."""
    pod = plain_pod(namespace, schedulerName=name)

    answer = plane.kubectl.create(pod)

    assert (answer.code, "is wanted (policy " in answer.err) == (code, bool(code))
    assert code or read_pod(plane, pod)["spec"]["schedulerName"] == OURS
