# SPDX-License-Identifier: Apache-2.0
"""For which requests the API server calls us, how often, and what becomes of pods when it cannot reach us."""

from collections.abc import Iterator
from typing import Any

import pytest

from app.admission.match_conditions import MIRROR
from tests.builders import container
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import KubectlResult, Object
from tests.e2e.stage import (
    Service,
    counted_calls,
    create_namespace,
    create_pod,
    decision,
    eventually,
    install_webhooks,
    plain_pod,
    read_pod,
    remove_webhooks,
    serving,
    tolerated,
)

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
IMPLICIT = "deviceclass.resource.kubernetes.io/"
ONE_EACH, NONE = [1, 1], [0, 0]


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """The service as it is shipped, on a cluster that has no GPU node yet."""
    plane.api.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia-cdi"}, "handler": "cdi"})
    with serving(plane) as running:
        install_webhooks(plane, running)
        yield running


@pytest.fixture
def restored_webhooks(plane: ControlPlane, service: Service) -> Iterator[None]:
    """Leave the service running and the webhooks as shipped, whatever the test does to them."""
    yield
    if not service.process.running:
        service.restart()
    remove_webhooks(plane)
    eventually("the API server has forgotten them", lambda: calls_of_a_gpu_pod(plane, service) == NONE)
    install_webhooks(plane, service)


def calls_of_a_gpu_pod(plane: ControlPlane, service: Service) -> list[float]:
    """Return the number of calls that the creation of a GPU pod costs, by a dry run."""
    with counted_calls(service) as calls:
        plane.api.try_create("/api/v1/namespaces/default/pods?dryRun=All", plain_pod("default"))
    return calls


def create_status(plane: ControlPlane, namespace: str, pod: Object) -> int:
    """Create a pod, as kubectl without its own checks would, and return the HTTP status."""
    metadata = {"name": "p", **(pod.get("metadata") or {})}
    return plane.api.try_create(f"/api/v1/namespaces/{namespace}/pods", {**pod, "metadata": metadata}).status_code


def bare_pod(annotations: Object | None = None, **spec: Any) -> Object:
    """Write the smallest valid pod, with these fields in its spec."""
    filled = {"automountServiceAccountToken": False, "containers": [{"name": "main", "image": "x:1"}], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "spec": filled, "metadata": {"annotations": annotations}}


def one_container_pod(**fields: Any) -> Object:
    """Write a pod of one container with these fields."""
    return bare_pod(containers=[{"name": "main", "image": "x:1", **fields}])


GPU_CONTAINER = container({GPU: 1}, name="asks")
CLAIM = {"name": "gpu", "resourceClaimTemplateName": "one-gpu"}


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(one_container_pod(resources={"limits": {GPU: 1}}), id="GPU in limits"),
        pytest.param(one_container_pod(resources={"requests": {GPU: 1}}), id="GPU in requests only"),
        pytest.param(one_container_pod(resources={"limits": {SLICE: 1}}), id="slice"),
        pytest.param(one_container_pod(resources={"limits": {"amd.com/gpu": 1}}), id="AMD"),
        pytest.param(bare_pod(initContainers=[GPU_CONTAINER]), id="GPU of an init container"),
        pytest.param(one_container_pod(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]), id="NVIDIA variable"),
        pytest.param(
            one_container_pod(resources={"limits": {f"{IMPLICIT}gpu.nvidia.com": 1}}), id="GPU by its DeviceClass"
        ),
        pytest.param(one_container_pod(resources={"limits": {f"{IMPLICIT}any": 1}}), id="a class that may give GPUs"),
        pytest.param(
            one_container_pod(resources={"limits": {"nvidia.com/GH100_H100_PCIE": 1}}), id="GPU of a virtual machine"
        ),
        pytest.param(one_container_pod(env=[{"name": "CUDA_VERSION", "value": "12.0"}]), id="CUDA version"),
        pytest.param(bare_pod(resourceClaims=[CLAIM]), id="resource claim"),
        pytest.param(bare_pod(runtimeClassName="nvidia-cdi"), id="runtime class of NVIDIA"),
        pytest.param(bare_pod({"gpu-usher.io/products": "H100"}), id="annotation of ours"),
        pytest.param(
            bare_pod({MIRROR: "x"}, nodeName="n", containers=[GPU_CONTAINER]), id="mirror pod that no kubelet wrote"
        ),
    ],
)
def test_pod_that_concerns_gpus_reaches_us_once(
    plane: ControlPlane, service: Service, namespace: str, pod: Object
) -> None:
    """F22: each pod has only one thing that concerns GPUs."""
    with counted_calls(service) as calls:
        status = create_status(plane, namespace, pod)

    assert (status, calls) == (201, ONE_EACH)


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(bare_pod(), id="no resources, labels, annotations"),
        pytest.param(
            one_container_pod(resources={"limits": {"example.com/fpga": 1, "memory": "1Gi"}}), id="other resources"
        ),
        pytest.param(one_container_pod(resources={"limits": None, "requests": {}}), id="nulls"),
        pytest.param(bare_pod(resources={"limits": {"cpu": 1}}), id="resources of the pod"),
        pytest.param(
            bare_pod(initContainers=[{"name": "a", "image": "x:1", "env": [{"name": "A"}]}]), id="other variable"
        ),
        pytest.param(bare_pod({"example.com/gpu-usher.io": "x"}), id="annotation of others"),
    ],
)
def test_pod_that_concerns_none_costs_no_call(
    plane: ControlPlane, service: Service, namespace: str, pod: Object
) -> None:
    """F22: no condition fails on a field that is absent, which `Fail` would turn into a refusal."""
    with counted_calls(service) as calls:
        status = create_status(plane, namespace, pod)

    assert (status, calls) == (201, NONE)


def deployment_of(pod: Object) -> Object:
    """Write a Deployment whose pods have the spec of this one."""
    labels = {"app": "d"}
    template = {"metadata": {"labels": labels}, "spec": pod["spec"]}
    return {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}


@pytest.mark.parametrize("resource", [GPU, SLICE, "amd.com/gpu", f"{IMPLICIT}gpu.nvidia.com", "nvidia.com/pgpu"])
@pytest.mark.parametrize("amounts", ["limits", "requests"])
def test_gpu_in_the_resources_of_the_pod_itself_is_refused_by_us_first_with_what_helps(
    plane: ControlPlane, service: Service, namespace: str, resource: str, amounts: str
) -> None:
    """F17, F22: the API server's own refusal comes after mutating webhooks and before validating ones.

    It says what is supported there, and nothing of containers (kubernetes pkg/apis/core/validation/validation.go
    validatePodResourceRequirements).
    """
    ignored = create_namespace(plane, f"{namespace}-ignored", **{"gpu_usher.io__ignore": "true"})
    pod = bare_pod(resources={amounts: {resource: "1"}})
    for kind, document in (
        ("/api/v1/namespaces/{}/pods", {**pod, "metadata": {"name": "p"}}),
        ("/apis/apps/v1/namespaces/{}/deployments", deployment_of(pod)),
    ):
        with counted_calls(service) as calls:
            answer = plane.api.try_create(kind.format(namespace), document)
        own = plane.api.try_create(kind.format(ignored), document)

        told = f"spec.resources of the pod names {resource}, which the API server refuses there; ask in the resources"
        assert (answer.status_code, calls) == (403, [1, 0])
        assert told in answer.json()["message"]
        assert own.status_code == 422
        assert f"spec.resources.{amounts}[{resource}]: Unsupported value" in own.json()["message"].replace('"', "")


@pytest.mark.parametrize(
    ("label", "value", "expected"),
    [("ignore", "true", NONE), ("infrastructure", "true", NONE), ("ignore", "false", ONE_EACH)],
    ids=["ignored", "infrastructure", "not ignored"],
)
def test_namespace_is_exempt_by_its_label_and_never_the_pod_by_its_own(
    plane: ControlPlane, service: Service, namespace: str, label: str, value: str, expected: list[float]
) -> None:
    """F21: the pod has the label in every case."""
    labelled = create_namespace(plane, f"{namespace}-labelled", **{f"gpu-usher.io/{label}": value})
    pod = plain_pod(labelled, labels={f"gpu-usher.io/{label}": "true"})

    with counted_calls(service) as calls:
        created = create_pod(plane, pod)

    assert (calls, bool(tolerated(created)), bool(decision(created))) == (expected, any(expected), any(expected))


def test_change_of_an_existing_pod_costs_no_call(plane: ControlPlane, service: Service, namespace: str) -> None:
    """F22: its change, its status and its deletion cost no call, and our webhook cannot make them fail."""
    create_pod(plane, plain_pod(namespace))
    path = f"/api/v1/namespaces/{namespace}/pods/p"

    with counted_calls(service) as calls:
        plane.api.patch(path, {"metadata": {"labels": {"changed": "yes"}, "annotations": {"gpu-usher.io/x": "1"}}})
        plane.api.patch(f"{path}/status", {"status": {"phase": "Running"}})
        plane.api.delete(path)

    assert calls == NONE


DOWN = 'Error from server (InternalError): error when creating "STDIN": Internal error occurred: failed calling webhook'
VALIDATE = f'{DOWN} "validate.gpu-usher.io": failed to call webhook: Post "{{}}/validate?timeout=3s": '


@pytest.mark.usefixtures("restored_webhooks")
def test_while_we_are_away_gpu_pods_wait_and_cpu_pods_pass(
    plane: ControlPlane, service: Service, namespace: str
) -> None:
    """P43, F106, F22, fault 38: mutate fails open, validate closed; after the restart pods are repaired again."""
    service.process.stop()

    asking, other = (
        plane.kubectl.create(plain_pod(namespace)),
        plane.kubectl.create(plain_pod(namespace, {"cpu": 1}, "cpu")),
    )
    service.restart()
    back = create_pod(plane, plain_pod(namespace))

    assert asking.err.startswith(VALIDATE.format(service.url))
    assert asking.err.endswith("connect: connection refused\n")
    assert other == KubectlResult(0, "pod/cpu created\n", "")
    assert tolerated(back)


@pytest.mark.usefixtures("restored_webhooks")
def test_under_ignore_pods_are_created_unrepaired_while_we_are_away(
    plane: ControlPlane, service: Service, namespace: str
) -> None:
    """F106: the API server refuses with its own message what it does not accept."""
    install_webhooks(plane, service, failurePolicy="Ignore")
    service.process.stop()

    eventually("the change of policy has arrived", lambda: create_status(plane, namespace, plain_pod(namespace)) == 201)
    asking = plane.kubectl.create(plain_pod(namespace, name="q", requests={GPU: 1}))

    unrepaired = read_pod(plane, plain_pod(namespace))
    assert (tolerated(unrepaired), decision(unrepaired)) == ([], {})
    assert "limits: Required value: Limit must be set for non overcommitable resources\n" in asking.err
