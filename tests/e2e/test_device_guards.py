# SPDX-License-Identifier: Apache-2.0
"""Containers that take GPUs without a request, through their environment or their mounts, are guarded."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.builders import container
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import KubectlResult, Object
from tests.e2e.guards import (
    ALL,
    DENIED,
    GPU,
    VISIBLE,
    guarded_namespace,
    in_every_container,
    put_guard,
    serving_with_guards,
    stored_field,
)
from tests.e2e.stage import Service, create_pod, plain_pod, read_pod


@pytest.fixture(scope="module")
def service(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service with the shipped policies and a policy for each guard."""
    with serving_with_guards(plane, tmp_path_factory.mktemp("own")) as running:
        yield running


@pytest.fixture
def namespace(plane: ControlPlane, service: Service, request: pytest.FixtureRequest) -> str:
    """A namespace of the test's own with the guard that it is parametrized by, or else the shipped policy's."""
    return guarded_namespace(plane, service, request)


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
    "warn": (f"Warning: {WRONG} (policy guards); remove it, and request GPUs in resources.limits (warning only)\n", []),
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
    assert f"first: {VISIBLE}" in answer.err


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
