# SPDX-License-Identifier: Apache-2.0
"""Which requests are reviewed, and what of their objects: kinds, operations, unchanged templates.

See docs/reference/admission.md#reviewed-objects.
"""

import base64
import json
from collections.abc import Callable
from typing import Any

import jsonpatch
import pytest

from app.api.admission_routes import Reviewed
from app.server.service import Service
from app.values.errors import WireError
from tests.builders import container, gpus, pod
from tests.builders import review as wrap
from tests.finished import review

GPU = "nvidia.com/gpu"
BAD = gpus("500m")
"""A container that is refused wherever it is reviewed."""
Nest = Callable[[Any], dict[str, Any]]


def plain(template: Any) -> dict[str, Any]:
    """Put a template where most workloads have it."""
    return {"metadata": {"name": "w"}, "spec": {"template": template}}


def cron(template: Any) -> dict[str, Any]:
    """Put a template where a CronJob has it."""
    return {
        "metadata": {"name": "w"},
        "spec": {"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": template}}},
    }


WORKLOADS: dict[str, tuple[str, Nest]] = {
    "deployments": ("apps", plain),
    "statefulsets": ("apps", plain),
    "daemonsets": ("apps", plain),
    "replicasets": ("apps", plain),
    "jobs": ("batch", plain),
    "cronjobs": ("batch", cron),
}


def ask(
    service: Service, document: Any, resource: str, group: str = "", verb: str = "mutate", **request: Any
) -> Reviewed:
    """Review an object of a resource."""
    kind = {"group": group, "version": "v1", "resource": resource}
    return review(json.dumps(wrap(document, resource=kind, **request)).encode(), verb, service)


def workload(service: Service, resource: str, template: Any, verb: str = "mutate", **request: Any) -> Reviewed:
    """Review a workload with a template."""
    group, nest = WORKLOADS[resource]
    return ask(service, nest(template), resource, group, verb, **request)


def patched(document: dict[str, Any], answer: Reviewed) -> Any:
    """Apply the patch of an answer as it was sent."""
    response = json.loads(answer.body)["response"]
    return jsonpatch.apply_patch(document, json.loads(base64.b64decode(response["patch"])))


@pytest.mark.parametrize("verb", ["mutate", "validate"])
@pytest.mark.parametrize(
    ("group", "resource", "operation", "subresource", "reviewed"),
    [
        pytest.param("", "pods", "CREATE", "", True, id="pod"),
        pytest.param("", "pods", "CREATE", None, True, id="pod, null subresource"),
        pytest.param(None, "pods", "CREATE", "", True, id="pod, null group"),
        pytest.param("", "pods", "UPDATE", "", False, id="pod updated"),
        pytest.param("", "pods", "DELETE", "", False, id="pod deleted"),
        pytest.param("", "pods", "CREATE", "binding", False, id="bound"),
        pytest.param("", "pods", "CREATE", "eviction", False, id="evicted"),
        pytest.param("", "pods", "UPDATE", "status", False, id="status"),
        pytest.param("", "pods", "CONNECT", "exec", False, id="exec"),
        pytest.param("other.example.com", "pods", "CREATE", "", False, id="somebody else's pods"),
        pytest.param("metrics.k8s.io", "pods", "CREATE", "", False, id="metrics of pods"),
        pytest.param("", "nodes", "CREATE", "", False, id="node"),
        pytest.param("", "podtemplates", "CREATE", "", False, id="pod template"),
        pytest.param("", "replicationcontrollers", "CREATE", "", False, id="replication controller"),
        pytest.param("apps", "pods", "CREATE", "", False, id="wrong group"),
        pytest.param("", "Pods", "CREATE", "", False, id="wrong case"),
        pytest.param("", None, "CREATE", "", False, id="null resource"),
    ],
)
def test_only_pods_that_are_made_are_reviewed_whole(
    service: Service, verb: str, group: Any, resource: Any, operation: str, subresource: Any, reviewed: bool
) -> None:
    """Fault 30."""
    answer = ask(service, pod(BAD), resource, group, verb, operation=operation, subResource=subresource)

    assert reviewed is answer.handled
    assert reviewed is not answer.result.allowed


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE", "CONNECT"])
@pytest.mark.parametrize("resource", WORKLOADS)
def test_templates_are_reviewed_when_made_and_when_changed(service: Service, resource: str, operation: str) -> None:
    """F18: a Job's template is immutable, so only its creation is reviewed."""
    expected = operation == "CREATE" or (operation == "UPDATE" and resource != "jobs")

    answer = workload(service, resource, pod(BAD), operation=operation)

    assert expected is answer.handled
    assert expected is not answer.result.allowed


@pytest.mark.parametrize("subresource", ["scale", "status"])
@pytest.mark.parametrize("resource", WORKLOADS)
def test_subresources_of_workloads_are_let_through(service: Service, resource: str, subresource: str) -> None:
    assert not workload(service, resource, pod(BAD), operation="UPDATE", subResource=subresource).handled


@pytest.mark.parametrize("group", ["", "extensions", "batch"])
def test_deployment_of_another_group_is_let_through(service: Service, group: str) -> None:
    assert not ask(service, plain(pod(BAD)), "deployments", group).handled


@pytest.mark.parametrize("resource", WORKLOADS)
def test_patch_reaches_the_template_where_it_stands(service: Service, resource: str) -> None:
    _, nest = WORKLOADS[resource]
    template = pod(container(None, {GPU: "2"}))

    answer = workload(service, resource, template)

    repaired = {**template, "spec": {"containers": [container({GPU: "2"}, {GPU: "2"})]}}
    assert patched(nest(template), answer) == nest(repaired)


CHANGED = [resource for resource in WORKLOADS if resource != "jobs"]


@pytest.mark.parametrize("resource", CHANGED)
@pytest.mark.parametrize("template", [pod(BAD), pod(container(None, {GPU: "1"}))], ids=["refused", "repaired"])
def test_template_that_is_as_it_was_passes_untouched(service: Service, resource: str, template: dict[str, Any]) -> None:
    """A Deployment must still scale after a policy has become stricter."""
    _, nest = WORKLOADS[resource]
    scaled = nest(template)
    scaled["spec"]["replicas"] = 3

    verdicts = [
        ask(
            service, scaled, resource, WORKLOADS[resource][0], verb, operation="UPDATE", oldObject=nest(template)
        ).result
        for verb in ("mutate", "validate")
    ]

    assert all(verdict.allowed and not verdict.operations for verdict in verdicts)


@pytest.mark.parametrize("before", [None, {}, {"spec": None}, plain(None), plain(pod())], ids=str)
def test_template_that_changed_is_reviewed_whatever_was_before(service: Service, before: Any) -> None:
    assert not workload(service, "deployments", pod(BAD), operation="UPDATE", oldObject=before).result.allowed


@pytest.mark.parametrize("resource", WORKLOADS)
def test_workload_that_is_leaving_passes(service: Service, resource: str) -> None:
    """Its finalizers must be removable."""
    group, nest = WORKLOADS[resource]
    leaving = nest(pod(BAD))
    leaving["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"

    assert ask(service, leaving, resource, group, operation="UPDATE", oldObject=nest(pod())).result.allowed


@pytest.mark.parametrize(
    "document", [None, {}, {"spec": None}, {"spec": {}}, plain(None), plain({}), plain({"spec": None})]
)
@pytest.mark.parametrize("resource", WORKLOADS)
def test_workload_without_a_template_passes(service: Service, resource: str, document: Any) -> None:
    answer = ask(service, document, resource, WORKLOADS[resource][0])

    assert answer.result.allowed
    assert not answer.result.operations


ODD: list[Any] = [5, True, "x", [], [{}], 1.5]


@pytest.mark.parametrize("odd", ODD, ids=str)
@pytest.mark.parametrize(
    "nest",
    [
        pytest.param(lambda odd: odd, id="object"),
        pytest.param(lambda odd: {"spec": odd}, id="spec"),
        pytest.param(lambda odd: {"spec": {"jobTemplate": odd}}, id="jobTemplate"),
        pytest.param(lambda odd: {"spec": {"jobTemplate": {"spec": odd}}}, id="inner spec"),
        pytest.param(cron, id="template"),
        pytest.param(lambda odd: cron({"spec": odd}), id="pod spec"),
        pytest.param(lambda odd: cron({"metadata": odd}), id="pod metadata"),
        pytest.param(lambda odd: cron({"spec": {"containers": [odd]}}), id="container"),
        pytest.param(lambda odd: cron(pod()) | {"metadata": odd}, id="metadata"),
    ],
)
@pytest.mark.parametrize("field", ["object", "oldObject"])
def test_template_of_another_shape_is_bad_input_and_never_a_bug(
    service: Service, nest: Nest, odd: Any, field: str
) -> None:
    documents: dict[str, Any] = {"object": cron(pod()), "oldObject": cron(pod(BAD)), field: nest(odd)}
    request = wrap(None, resource={"group": "batch", "version": "v1", "resource": "cronjobs"}, operation="UPDATE")
    request["request"] |= documents

    for verb in ("mutate", "validate"):
        try:
            review(json.dumps(request).encode(), verb, service)
        except WireError as error:
            assert error.status == 400  # noqa: PT017  # what it must be where it is one


def ephemeral(*names: str) -> dict[str, Any]:
    """Make a pod with ephemeral containers that use every GPU."""
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    return pod(gpus(1), ephemeralContainers=[{"name": name, "env": env} for name in names])


@pytest.mark.parametrize(
    ("before", "made", "spoken"),
    [
        pytest.param(ephemeral(), ephemeral("new"), True, id="the first"),
        pytest.param(ephemeral("old"), ephemeral("old", "new"), True, id="one more"),
        pytest.param(ephemeral("old"), ephemeral("old"), False, id="as it was"),
        pytest.param(None, ephemeral("new"), True, id="no old object"),
    ],
)
def test_new_ephemeral_containers_are_guarded(
    service: Service, before: Any, made: dict[str, Any], spoken: bool
) -> None:
    answer = ask(service, made, "pods", operation="UPDATE", subResource="ephemeralcontainers", oldObject=before)

    assert answer.handled
    assert spoken is any("NVIDIA_VISIBLE_DEVICES" in warning for warning in answer.result.warnings)


@pytest.mark.parametrize("before", [None, pod(gpus(1)), pod(gpus(2))], ids=["no old object", "as it was", "changed"])
def test_resize_is_reviewed_where_the_pod_changes(service: Service, before: Any) -> None:
    answer = ask(service, pod(gpus(1)), "pods", operation="UPDATE", subResource="resize", oldObject=before)

    assert answer.handled is (before != pod(gpus(1)))


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param({"resource": {"group": "", "resource": []}}, id="resource a list"),
        pytest.param({"resource": {"group": ["x"], "resource": "pods"}}, id="group a list"),
        pytest.param({"resource": {"group": "apps", "resource": "deployments"}, "operation": {}}, id="operation"),
    ],
)
def test_envelope_of_another_shape_is_never_a_bug(service: Service, request_: dict[str, Any]) -> None:
    """Fault 30."""
    try:
        review(json.dumps(wrap(plain(pod()), **request_)).encode(), "mutate", service)
    except WireError as error:
        assert error.status == 400  # noqa: PT017  # what it must be where it is one


@pytest.mark.parametrize("actions", ["[[]]", "[{}]", r'["\ud800"]'], ids=["list", "object", "half a character"])
def test_record_of_another_shape_is_never_a_bug(service: Service, actions: str) -> None:
    """As managedFields do not list the annotation, the record counts as our own and is read."""
    document = pod(annotations={"decision": f'{{"v":1,"actions":{actions},"of":"x"}}'})
    document["metadata"]["managedFields"] = [{"manager": "kubectl"}]

    assert ask(service, document, "pods").result.allowed
