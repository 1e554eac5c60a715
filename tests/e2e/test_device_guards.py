# SPDX-License-Identifier: Apache-2.0
"""Pods that try to reach a GPU without a request or without the scheduler are guarded.

They do so through their environment or their mounts, by privileges, by host paths, by a node or scheduler of their own,
and by labels and forged annotations.
"""

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from app.kube.pods import DECISION
from tests.builders import container, policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import KubectlResult, Object
from tests.e2e.offers import dra_path
from tests.e2e.stage import (
    OURS,
    Service,
    counted_calls,
    create_namespace,
    create_pod,
    eventually,
    install_webhooks,
    own_policies,
    plain_pod,
    read_pod,
    serving,
)
from tests.e2e.test_workloads import OPERANDS

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


def in_every_container(namespace: str, fields: Object, **more: Any) -> Object:
    """Make a pod whose init container, sidecar and main container have these fields and ask for no GPU."""
    before = [container(name="before", **fields), container(name="side", restartPolicy="Always", **fields)]
    return plain_pod(namespace, initContainers=before, containers=[container(**fields)], **more)


def stored_field(plane: ControlPlane, pod: Object, field: str = "env") -> list[Any] | None:
    """List a field of every container, as stored; None where there is no such pod."""
    answer = plane.api.client.get(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/p")
    if answer.is_error:
        return None
    spec = answer.json()["spec"]
    return [document.get(field) for document in (*spec.get("initContainers", []), *spec["containers"])]


EVERY = ["deny", "strip", "void", "warn"]
TAKING: Mapping[str, Object] = {
    "all": {"value": "all"},
    "indices": {"value": "0,1"},
    "GPU": {"value": "GPU-5a2c1f0e-0000-4a9c-8f7d-1d2e3f405060"},
    "slice": {"value": "MIG-5a2c1f0e-0000-4a9c-8f7d-1d2e3f405060"},
    "elsewhere": {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
}


def visible(value: Object) -> Object:
    return {"env": [{"name": VISIBLE, **value}]}


VOID = visible({"value": "void"})["env"]
WRONG = f"container {{}} sets {VISIBLE} but requests no GPU"


AFTER: Mapping[str, tuple[str, list[Any] | None]] = {
    "deny": (WRONG, None),
    "warn": (
        f"Warning: {WRONG} (policy default); remove it, and request GPUs in resources.limits (warning only)\n",
        [],
    ),
    "strip": (f"Warning: {{}}: {VISIBLE} removed: ask for the GPU in limits\n", [None] * 3),
    "void": (f"Warning: {{}}: {VISIBLE} set to void: ask for the GPU in limits\n", [VOID] * 3),
}
"""Guard → the message about each container, and its stored environment, where [] means unchanged."""


@pytest.mark.parametrize(
    ("namespace", "words", "left"), [(guard, *AFTER[guard]) for guard in EVERY], indirect=["namespace"], ids=EVERY
)
@pytest.mark.parametrize("by", TAKING)
def test_devices_taken_by_the_variable(plane: ControlPlane, namespace: str, words: str, left: object, by: str) -> None:
    """F12: in every kind of container, whatever names the GPUs; the shipped policy only warns."""
    pod = in_every_container(namespace, visible(TAKING[by]))

    answer = plane.kubectl.create(pod)

    assert answer.err.startswith(DENIED) == bool(answer.code) == (left is None)
    assert [name for name in ("before", "side", "main") if words.format(name) not in answer.err] == []
    assert stored_field(plane, pod) == ([visible(TAKING[by])["env"]] * 3 if left == [] else left)


@pytest.mark.parametrize("namespace", EVERY, indirect=True)
@pytest.mark.parametrize("value", ["void", "none", ""])
def test_variable_that_gives_no_gpu_is_left_alone(plane: ControlPlane, namespace: str, value: str) -> None:
    """F12."""
    pod = in_every_container(namespace, visible({"value": value}))

    assert plane.kubectl.create(pod) == KubectlResult(0, "pod/p created\n", "")

    assert stored_field(plane, pod) == [visible({"value": value} if value else {})["env"]] * 3


OTHER_WAYS: Mapping[str, Object] = {
    "NVIDIA_MIG_CONFIG_DEVICES": {"env": [{"name": "NVIDIA_MIG_CONFIG_DEVICES", "value": "all"}]},
    "NVIDIA_MIG_MONITOR_DEVICES": {"env": [{"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"}]},
    "/var/run/nvidia-container-devices": {
        "volumeMounts": [{"name": "null", "mountPath": "/var/run/nvidia-container-devices/all"}]
    },
}


@pytest.mark.parametrize(("namespace", "guard"), [(guard, guard) for guard in EVERY], indirect=["namespace"], ids=EVERY)
@pytest.mark.parametrize("way", OTHER_WAYS)
def test_other_ways_to_devices_are_guarded_alike(plane: ControlPlane, namespace: str, guard: str, way: str) -> None:
    """F12: Strip and Void remove them, as they have no value `void`; Void also hides all devices."""
    (field,) = OTHER_WAYS[way]
    pod = in_every_container(namespace, OTHER_WAYS[way], volumes=[{"name": "null", "hostPath": {"path": "/dev/null"}}])

    answer = plane.kubectl.create(pod)

    hidden = VOID if field == "env" else None
    left = {"deny": None, "warn": [OTHER_WAYS[way][field]] * 3, "strip": [None] * 3, "void": [hidden] * 3}
    assert (answer.code, answer.err.count(way)) == (guard == "deny", 3)
    assert stored_field(plane, pod, field) == left[guard]


LEGACY: Object = {"env": [{"name": "CUDA_VERSION", "value": "12.0"}]}
SHOWN = [*LEGACY["env"], *VOID]


@pytest.mark.parametrize(
    ("namespace", "left"),
    [("deny", None), ("warn", [LEGACY["env"]] * 3), ("strip", [SHOWN] * 3), ("void", [SHOWN] * 3)],
    indirect=["namespace"],
    ids=EVERY,
)
def test_legacy_image_gets_no_gpu_that_it_did_not_ask_for(plane: ControlPlane, namespace: str, left: object) -> None:
    """F12: with CUDA_VERSION and no NVIDIA_VISIBLE_DEVICES the container toolkit would give it every GPU."""
    pod = in_every_container(namespace, LEGACY)

    answer = plane.kubectl.create(pod)

    assert bool(answer.code) == (left is None)
    assert stored_field(plane, pod) == left


@pytest.mark.parametrize("namespace", EVERY, indirect=True)
def test_version_beside_a_gpu_that_was_asked_for_is_left_alone(plane: ControlPlane, namespace: str) -> None:
    """F12: the device plugin sets NVIDIA_VISIBLE_DEVICES of such a container."""
    pod = plain_pod(namespace, **LEGACY)

    assert plane.kubectl.create(pod) == KubectlResult(0, "pod/p created\n", "")
    assert stored_field(plane, pod) == [LEGACY["env"]]


@pytest.mark.parametrize("namespace", ["deny"], indirect=True)
def test_variable_beside_a_gpu_that_was_asked_for_is_denied(plane: ControlPlane, namespace: str) -> None:
    """F12: the pod's own value takes precedence over the device plugin's."""
    answer = plane.kubectl.create(plain_pod(namespace, env=ALL))

    assert f"container main sets {VISIBLE} beside the GPU that it requests" in answer.err


@pytest.mark.parametrize("namespace", ["void"], indirect=True)
def test_container_beside_a_gpu_pods_is_shown_that_it_has_none(plane: ControlPlane, namespace: str) -> None:
    """P40, F12: its image may set the variable to `all`; the container with the GPU is left to the device plugin."""
    pod = create_pod(plane, plain_pod(namespace, containers=[container({GPU: 1}), container(name="other")]))

    assert [document.get("env") for document in pod["spec"]["containers"]] == [None, VOID]


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


denying = pytest.mark.parametrize("namespace", ["deny"], indirect=True)
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


@denying
def test_label_or_annotation_of_a_pod_lifts_nothing(plane: ControlPlane, namespace: str) -> None:
    """F21, fault 60: only the namespace or an exception in a policy exempts a pod."""
    own = {"ignore": "true", "infrastructure": "true"}
    labels = {f"gpu-usher.io/{key}": value for key, value in own.items()}

    answer = plane.kubectl.create(in_every_container(namespace, {"env": ALL}, annotations=own, labels=labels))

    assert (answer.code, answer.err.startswith(DENIED)) == (1, True)


@denying
@pytest.mark.parametrize("fields", [{"env": ALL}, PRIVILEGED])
def test_exception_of_the_policy_lifts_the_guard(plane: ControlPlane, namespace: str, fields: Object) -> None:
    """F21: the exception selects the pod by its labels; the shipped policy still warns."""
    pod = plain_pod(namespace, labels={"waived": "yes"}, containers=[container({GPU: 1}, **fields)])

    answer = plane.kubectl.create(pod)

    assert (answer.code, len(answer.warnings)) == (0, 1)
    assert answer.warnings[0].endswith("(warning only)")


@denying
@pytest.mark.parametrize("name", OPERANDS)
def test_operand_of_the_gpu_operator_passes(plane: ControlPlane, service: Service, namespace: str, name: str) -> None:
    """F21, F12: its namespace is exempt; in another namespace it is denied."""
    infrastructure = create_namespace(
        plane, f"{namespace}-exempt", guard="deny", **{"gpu-usher.io/infrastructure": "true"}
    )
    shape = {**OPERANDS[name][1], "nodeName": "h100"}

    elsewhere = plane.kubectl.create(plain_pod(namespace, **shape))
    with counted_calls(service) as calls:
        answer = plane.kubectl.create(plain_pod(infrastructure, **shape))

    assert (elsewhere.code, calls, answer) == (1, [0, 0], KubectlResult(0, "pod/p created\n", ""))
    expected = [document.get("env") for document in (*shape["initContainers"], *shape["containers"])]
    assert stored_field(plane, plain_pod(infrastructure)) == expected


def test_forged_decision_is_taken_off_a_pod_without_gpus(plane: ControlPlane, namespace: str) -> None:
    """P19, F15."""
    pod = plain_pod(namespace, {"cpu": 1}, annotations={"decision": '{"v":1,"actions":["approved"]}', "cuda": "12.4"})

    answer = plane.kubectl.create(pod)

    assert answer.warnings == [f"{DECISION} did not match the pod and was removed"]
    assert read_pod(plane, pod)["metadata"]["annotations"] == {"gpu-usher.io/cuda": "12.4"}
