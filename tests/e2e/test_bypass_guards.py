# SPDX-License-Identifier: Apache-2.0
"""Pods that go around the scheduler or the policy are guarded: by privileges, by host paths, by a node or scheduler of
their own, by labels and forged annotations.
"""

from collections.abc import Iterator, Mapping

import pytest

from app.kube.pods import DECISION
from tests.builders import container
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import KubectlResult, Object
from tests.e2e.guards import (
    ALL,
    DENIED,
    GPU,
    guarded_namespace,
    in_every_container,
    serving_with_guards,
    stored_field,
)
from tests.e2e.offers import dra_path
from tests.e2e.stage import OURS, Service, counted_calls, create_namespace, eventually, plain_pod, read_pod
from tests.e2e.test_workloads import OPERANDS

PRIVILEGED: Object = {"securityContext": {"privileged": True}}


@pytest.fixture(scope="module")
def service(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service with the shipped policies and a policy for each guard."""
    with serving_with_guards(plane, tmp_path_factory.mktemp("own")) as running:
        yield running


@pytest.fixture
def namespace(plane: ControlPlane, service: Service, request: pytest.FixtureRequest) -> str:
    """A namespace of the test's own with the guard that it is parametrized by, or else the shipped policy's."""
    return guarded_namespace(plane, service, request)


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
