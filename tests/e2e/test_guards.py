# SPDX-License-Identifier: Apache-2.0
"""Ways to a GPU that go around the scheduler: the environment, mounts, privileges, a node or scheduler of one's own."""

import shutil
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from app.cluster.files import shipped_policies
from app.kube.pods import DECISION
from tests.builders import container, policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Object, Said
from tests.e2e.stage import (
    OURS,
    Service,
    counted,
    create_pod,
    eventually,
    install_webhooks,
    namespace,
    plain_pod,
    read_pod,
    serving,
)
from tests.e2e.test_workloads import OPERANDS

GPU, VISIBLE = "nvidia.com/gpu", "NVIDIA_VISIBLE_DEVICES"
PRIVILEGED: Object = {"securityContext": {"privileged": True}}
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
    """The service with the shipped policies and a policy for each guard."""
    folder = shutil.copytree(shipped_policies(), tmp_path_factory.mktemp("own") / "policies")
    for name, spec in GUARDS.items():
        match = f"match: {{namespaceSelector: {{matchLabels: {{guard: {name}}}}}}}"
        (folder / f"guard-{name}.yaml").write_text(policy(f"guard-{name}", f"priority: 9, {match}, {spec}"), "utf-8")
    add_nodes(plane.api, [node_object("h100")])
    plane.api.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    with serving(plane, policies=str(folder)) as running:
        install_webhooks(plane, running)
        yield running


@pytest.fixture
def where(plane: ControlPlane, service: Service, request: pytest.FixtureRequest) -> str:
    """A namespace of the test's own with the guard that it is parametrized by, or else the shipped policy's."""
    made = namespace(plane, f"guards-{zlib.crc32(request.node.name.encode()):08x}")
    if getattr(request, "param", "warn") != "warn":
        put_guard(plane, service, made, request.param)
    return made


def put_guard(plane: ControlPlane, service: Service, where: str, guard: str) -> None:
    assert plane.kubectl("label", "namespace", where, f"guard={guard}").code == 0
    eventually("we know the label", lambda: f"guard-{guard}" in str(service.explain(plain_pod(where))))


denying = pytest.mark.parametrize("where", ["deny"], indirect=True)
EVERY = ["deny", "strip", "void", "warn"]
TAKING: Mapping[str, Object] = {
    "all": {"value": "all"},
    "indices": {"value": "0,1"},
    "GPU": {"value": "GPU-5a2c1f0e-0000-4a9c-8f7d-1d2e3f405060"},
    "slice": {"value": "MIG-5a2c1f0e-0000-4a9c-8f7d-1d2e3f405060"},
    "elsewhere": {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
}
DENIED = 'Error from server (Forbidden): error when creating "STDIN": admission webhook "mutate.gpu-usher.io" denied'


def everywhere(where: str, fields: Object, **more: Any) -> Object:
    """Make a pod whose init container, sidecar and main container have these fields and ask for no GPU."""
    before = [container(name="before", **fields), container(name="side", restartPolicy="Always", **fields)]
    return plain_pod(where, initContainers=before, containers=[container(**fields)], **more)


def visible(value: Object) -> Object:
    return {"env": [{"name": VISIBLE, **value}]}


def left_of(plane: ControlPlane, pod: Object, field: str = "env") -> list[Any] | None:
    """List a field of every container, as stored; None where there is no such pod."""
    found = plane.api.client.get(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/p").json().get("spec")
    return [each.get(field) for each in (*found.get("initContainers", []), *found["containers"])] if found else None


ALL = visible(TAKING["all"])["env"]
VOID = visible({"value": "void"})["env"]
WRONG = f"container {{}}: {VISIBLE} without a GPU: wants no such setting"


AFTER: Mapping[str, tuple[str, list[Any] | None]] = {
    "deny": (WRONG, None),
    "warn": (f"Warning: {WRONG} (policy only warns)\n", []),
    "strip": (f"Warning: {{}}: {VISIBLE} removed: ask for the GPU in limits\n", [None] * 3),
    "void": (f"Warning: {{}}: {VISIBLE} set to void: ask for the GPU in limits\n", [VOID] * 3),
}
"""By guard: what is said of each container, and what is left of its environment; [] for all of it."""


@pytest.mark.parametrize(
    ("where", "words", "left"), [(each, *AFTER[each]) for each in EVERY], indirect=["where"], ids=EVERY
)
@pytest.mark.parametrize("by", TAKING)
def test_devices_taken_by_the_variable(plane: ControlPlane, where: str, words: str, left: object, by: str) -> None:
    """F12: in every kind of container, whatever names the GPUs; the shipped policy changes and refuses nothing."""
    pod = everywhere(where, visible(TAKING[by]))

    answer = plane.kubectl.create(pod)

    assert answer.err.startswith(DENIED) == bool(answer.code) == (left is None)
    assert [name for name in ("before", "side", "main") if words.format(name) not in answer.err] == []
    assert left_of(plane, pod) == ([visible(TAKING[by])["env"]] * 3 if left == [] else left)


@pytest.mark.parametrize("where", EVERY, indirect=True)
@pytest.mark.parametrize("value", ["void", "none", ""])
def test_variable_that_gives_no_gpu_is_left_alone(plane: ControlPlane, where: str, value: str) -> None:
    """F12."""
    pod = everywhere(where, visible({"value": value}))

    assert plane.kubectl.create(pod) == Said(0, "pod/p created\n", "")

    assert left_of(plane, pod) == [visible({"value": value} if value else {})["env"]] * 3


OTHER_WAYS: Mapping[str, Object] = {
    "NVIDIA_MIG_CONFIG_DEVICES": {"env": [{"name": "NVIDIA_MIG_CONFIG_DEVICES", "value": "all"}]},
    "NVIDIA_MIG_MONITOR_DEVICES": {"env": [{"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"}]},
    "/var/run/nvidia-container-devices": {
        "volumeMounts": [{"name": "null", "mountPath": "/var/run/nvidia-container-devices/all"}]
    },
}


@pytest.mark.parametrize(("where", "guard"), [(each, each) for each in EVERY], indirect=["where"], ids=EVERY)
@pytest.mark.parametrize("way", OTHER_WAYS)
def test_other_ways_to_devices_are_guarded_alike(plane: ControlPlane, where: str, guard: str, way: str) -> None:
    """F12: there is no `void` for them, they go; Void hides all devices besides."""
    (field,) = OTHER_WAYS[way]
    pod = everywhere(where, OTHER_WAYS[way], volumes=[{"name": "null", "hostPath": {"path": "/dev/null"}}])

    answer = plane.kubectl.create(pod)

    hidden = VOID if field == "env" else None
    left = {"deny": None, "warn": [OTHER_WAYS[way][field]] * 3, "strip": [None] * 3, "void": [hidden] * 3}
    assert (answer.code, answer.err.count(way)) == (guard == "deny", 3)
    assert left_of(plane, pod, field) == left[guard]


LEGACY: Object = {"env": [{"name": "CUDA_VERSION", "value": "12.0"}]}
SHOWN = [*LEGACY["env"], *VOID]


@pytest.mark.parametrize(
    ("where", "left"),
    [("deny", None), ("warn", [LEGACY["env"]] * 3), ("strip", [SHOWN] * 3), ("void", [SHOWN] * 3)],
    indirect=["where"],
    ids=EVERY,
)
def test_legacy_image_gets_no_gpu_that_it_did_not_ask_for(plane: ControlPlane, where: str, left: object) -> None:
    """F12: with CUDA_VERSION and no NVIDIA_VISIBLE_DEVICES the container toolkit gives every GPU."""
    pod = everywhere(where, LEGACY)

    answer = plane.kubectl.create(pod)

    assert bool(answer.code) == (left is None)
    assert left_of(plane, pod) == left


@pytest.mark.parametrize("where", EVERY, indirect=True)
def test_version_beside_a_gpu_that_was_asked_for_is_let_be(plane: ControlPlane, where: str) -> None:
    """F12: the device plugin sets NVIDIA_VISIBLE_DEVICES there."""
    pod = plain_pod(where, **LEGACY)

    assert plane.kubectl.create(pod) == Said(0, "pod/p created\n", "")
    assert left_of(plane, pod) == [LEGACY["env"]]


@denying
def test_variable_beside_a_gpu_that_was_asked_for_is_denied(plane: ControlPlane, where: str) -> None:
    """F12: the pod's own value counts before the device plugin's."""
    answer = plane.kubectl.create(plain_pod(where, env=ALL))

    assert f"container main: {VISIBLE} beside a GPU: wants no such setting" in answer.err


@pytest.mark.parametrize("where", ["void"], indirect=True)
def test_container_beside_a_gpu_pods_is_shown_that_it_has_none(plane: ControlPlane, where: str) -> None:
    """P40, F12: its image may say `all`; the container that asks for the GPU is left to the device plugin."""
    pod = create_pod(plane, plain_pod(where, containers=[container({GPU: 1}), container(name="other")]))

    assert [each.get("env") for each in pod["spec"]["containers"]] == [None, VOID]


def debug(plane: ControlPlane, where: str, name: str, value: str) -> Said:
    words = ("--image=x:1", f"--container={name}", f"--env={VISIBLE}={value}", "--profile=general")
    return plane.kubectl("debug", "p", "-n", where, *words)


def ephemeral(plane: ControlPlane, where: str) -> list[object]:
    pod = read_pod(plane, plain_pod(where))
    return [(each["name"], each.get("env")) for each in pod["spec"].get("ephemeralContainers", [])]


DEBUGGED = [("deny", []), ("strip", [("first", None)]), ("void", [("first", VOID)]), ("warn", [("first", ALL)])]


@pytest.mark.parametrize(("where", "left"), DEBUGGED, indirect=["where"], ids=EVERY)
@pytest.mark.parametrize("limits", [{"cpu": 1}, {GPU: 1}], ids=["CPU pod", "GPU pod"])
def test_ephemeral_container_is_guarded(plane: ControlPlane, where: str, left: list[object], limits: Object) -> None:
    """F12, fault 60: `kubectl debug` of a pod that is there is no way around."""
    create_pod(plane, plain_pod(where, limits))

    answer = debug(plane, where, "first", "all")

    assert (answer.code, ephemeral(plane, where)) == (not left, left)
    assert f"first: {VISIBLE}" in answer.err


@pytest.mark.parametrize("then", ["deny", "strip", "void"])
def test_ephemeral_container_there_is_left(plane: ControlPlane, service: Service, where: str, then: str) -> None:
    """F12: the API server lets nobody change it, nor must it keep out an innocent one."""
    create_pod(plane, plain_pod(where, {"cpu": 1}))
    assert debug(plane, where, "first", "all").code == 0
    put_guard(plane, service, where, then)

    answer = debug(plane, where, "second", "none")

    assert answer.code == 0
    assert ephemeral(plane, where) == [("first", ALL), ("second", visible({"value": "none"})["env"])]


IMPLICIT = "deviceclass.resource.kubernetes.io/"


@pytest.mark.parametrize("where", ["few"], indirect=True)
def test_gpus_by_a_device_class_of_the_clusters_own_are_counted(plane: ControlPlane, where: str) -> None:
    """F26, S13: whose GPUs a class gives stands in the class, which we follow."""
    driven = [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]
    made = {"metadata": {"name": "big"}, "spec": {"selectors": driven}}
    plane.api.create("/apis/resource.k8s.io/v1/deviceclasses", made)
    eight = plain_pod(where, {f"{IMPLICIT}big": 8})

    eventually("we know the class", lambda: plane.kubectl.create(eight, dry_run=True).code != 0)

    assert "8 GPUs asked: wants at most 4 per pod" in plane.kubectl.create(eight, dry_run=True).err
    assert plane.kubectl.create(plain_pod(where, {f"{IMPLICIT}big": 4}), dry_run=True).code == 0


BYPASSES: Mapping[str, tuple[str, Object]] = {
    "privileged": ("main: privileged in a GPU pod: wants ", {"containers": [container({GPU: 1}, **PRIVILEGED)]}),
    "node": ("spec.nodeName is set: wants none, so that the scheduler chooses", {"nodeName": "h100"}),
}


@pytest.mark.parametrize(("where", "code"), [("deny", 1), ("warn", 0)], indirect=["where"])
@pytest.mark.parametrize("way", BYPASSES)
def test_gpu_pod_that_goes_around_us_is_guarded(plane: ControlPlane, where: str, code: int, way: str) -> None:
    """F14, fault 60, bypass."""
    words, fields = BYPASSES[way]

    answer = plane.kubectl.create(plain_pod(where, **fields))

    assert (answer.code, words in answer.err, answer.err.startswith(DENIED)) == (code, True, bool(code))


REACHING: Mapping[str, Object] = {
    "privileged": {"containers": [container({"cpu": 1}, **PRIVILEGED)]},
    "a GPU's device file": {"volumes": [{"name": "v", "hostPath": {"path": "/dev/nvidia0"}}]},
    "all devices": {"volumes": [{"name": "v", "hostPath": {"path": "/dev"}}]},
}


@pytest.mark.parametrize(("where", "code"), [("deny", 1), ("warn", 0)], indirect=["where"])
@pytest.mark.parametrize("way", REACHING)
def test_pod_that_reaches_the_nodes_devices_is_guarded(plane: ControlPlane, where: str, code: int, way: str) -> None:
    """F12, F14: without asking for a GPU; by a webhook of its own, and as shipped told of alone."""
    answer = plane.kubectl.create(plain_pod(where, {"cpu": 1}, **REACHING[way]))

    assert (answer.code, 'webhook "devices.gpu-usher.io" denied' in answer.err) == (code, bool(code)), answer.err
    assert bool(code) or "(policy only warns)" in answer.err


@pytest.mark.parametrize("where", ["scheduler"], indirect=True)
@pytest.mark.parametrize(("name", "code"), [("volcano", 1), ("default-scheduler", 0), (OURS, 0)])
def test_scheduler_that_no_policy_names_is_denied(plane: ControlPlane, where: str, name: str, code: int) -> None:
    """F13, fault 60, bypass: the default one is replaced, one that was chosen is refused."""
    pod = plain_pod(where, schedulerName=name)

    answer = plane.kubectl.create(pod)

    assert (answer.code, "another scheduler than the policy's: wants schedulerName" in answer.err) == (code, bool(code))
    assert code or read_pod(plane, pod)["spec"]["schedulerName"] == OURS


@denying
def test_label_or_annotation_of_a_pod_lifts_nothing(plane: ControlPlane, where: str) -> None:
    """F21, fault 60: exemptions are the namespace's, or a policy's to give."""
    own = {"ignore": "true", "infrastructure": "true"}
    labels = {f"gpu-usher.io/{key}": value for key, value in own.items()}

    answer = plane.kubectl.create(everywhere(where, {"env": ALL}, annotations=own, labels=labels))

    assert (answer.code, answer.err.startswith(DENIED)) == (1, True)


@denying
@pytest.mark.parametrize("fields", [{"env": ALL}, PRIVILEGED])
def test_exception_of_the_policy_lifts_the_guard(plane: ControlPlane, where: str, fields: Object) -> None:
    """F21: by the selector of the policy; what the shipped policy warns of it still warns of."""
    pod = plain_pod(where, labels={"waived": "yes"}, containers=[container({GPU: 1}, **fields)])

    answer = plane.kubectl.create(pod)

    assert (answer.code, len(answer.warnings)) == (0, 1)
    assert answer.warnings[0].endswith("(policy only warns)")


@denying
@pytest.mark.parametrize("name", OPERANDS)
def test_operand_of_the_gpu_operator_passes(plane: ControlPlane, service: Service, where: str, name: str) -> None:
    """F21, F12: its namespace is exempt; elsewhere it would be denied."""
    infrastructure = namespace(plane, f"{where}-exempt", guard="deny", **{"gpu-usher.io/infrastructure": "true"})
    shape = {**OPERANDS[name][1], "nodeName": "h100"}

    elsewhere = plane.kubectl.create(plain_pod(where, **shape))
    with counted(service) as calls:
        answer = plane.kubectl.create(plain_pod(infrastructure, **shape))

    assert (elsewhere.code, calls, answer) == (1, [0, 0], Said(0, "pod/p created\n", ""))
    expected = [each.get("env") for each in (*shape["initContainers"], *shape["containers"])]
    assert left_of(plane, plain_pod(infrastructure)) == expected


def test_forged_decision_is_taken_off_a_pod_without_gpus(plane: ControlPlane, where: str) -> None:
    """P19, F15."""
    pod = plain_pod(where, {"cpu": 1}, annotations={"decision": '{"v":1,"actions":["approved"]}', "cuda": "12.4"})

    answer = plane.kubectl.create(pod)

    assert answer.warnings == [f"{DECISION} did not fit the pod and was removed"]
    assert read_pod(plane, pod)["metadata"]["annotations"] == {"gpu-usher.io/cuda": "12.4"}
