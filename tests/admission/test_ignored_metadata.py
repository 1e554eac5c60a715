# SPDX-License-Identifier: Apache-2.0
"""Warnings of our annotations where nothing reads them: on a workload, among the labels, behind another prefix."""

import json
from typing import Any

import pytest

from app.admission.review import mutate
from app.admission.review_targets import ignored_annotations
from tests.builders import gpus, pod, setting

KEY, VALUE = "gpu-usher.io/products", "H100"
ANNOTATED: dict[str, Any] = {"annotations": {KEY: VALUE}}
KINDS = {"deployments": "apps", "statefulsets": "apps", "daemonsets": "apps", "replicasets": "apps", "jobs": "batch"}


def request(resource: str = "deployments", old: Any = None, **metadata: Any) -> dict[str, Any]:
    """Write the request for a workload whose template has no annotation, with more of its own metadata."""
    template = {"metadata": {}, "spec": pod(gpus(1))["spec"]}
    document = {"kind": "Deployment", "metadata": metadata, "spec": {"template": template}}
    operation = "UPDATE" if old is not None else "CREATE"
    group = KINDS.get(resource, "batch")
    return {
        "resource": {"group": group, "resource": resource},
        "operation": operation,
        "object": document,
        "oldObject": old,
    }


@pytest.mark.parametrize("resource", KINDS)
def test_annotation_of_a_workload_itself_is_told_to_have_no_effect(resource: str) -> None:
    """F19: its pods get the annotations of the template alone."""
    (warning,) = ignored_annotations(request(resource, **ANNOTATED))

    assert warning == f"{KEY} on the Deployment itself has no effect; put it in spec.template.metadata.annotations"


def test_annotation_on_the_job_of_a_cron_job_is_told_too() -> None:
    """F19."""
    job = {"metadata": ANNOTATED, "spec": {"template": {"spec": {}}}}
    document = {"kind": "CronJob", "spec": {"jobTemplate": job}}
    resource = {"group": "batch", "resource": "cronjobs"}

    (warning,) = ignored_annotations({"resource": resource, "operation": "CREATE", "object": document})

    assert warning == (
        f"{KEY} on the jobTemplate itself has no effect; put it in spec.jobTemplate.spec.template.metadata.annotations"
    )


def test_annotation_is_told_when_it_is_written_and_not_at_later_edits() -> None:
    """F19: `kubectl annotate` is an UPDATE that leaves the template as it is, and scaling is another one."""
    before, after = request(), request(**ANNOTATED)

    assert ignored_annotations(request(old=before["object"], **ANNOTATED))
    assert ignored_annotations(request(old=after["object"], **ANNOTATED)) == ()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"annotations": {"team.example/products": VALUE}}, id="another's annotation"),
        pytest.param({"annotations": {"gpu-usher.io/unknown": VALUE}}, id="none of ours"),
        pytest.param({"annotations": None}, id="null"),
        pytest.param({}, id="none"),
    ],
)
def test_other_annotations_of_a_workload_are_no_matter_of_ours(change: dict[str, Any]) -> None:
    """F19."""
    assert ignored_annotations(request(**change)) == ()


def test_annotation_that_the_template_has_too_is_not_told() -> None:
    """F19: Helm charts and Kustomize's commonAnnotations write both."""
    both = request(**ANNOTATED)
    both["object"]["spec"]["template"]["metadata"] = ANNOTATED

    assert ignored_annotations(json.loads(json.dumps(both))) == ()


def warnings(**metadata: Any) -> tuple[str, ...]:
    """Return the warnings about a pod that asks for a GPU."""
    document = pod(gpus(1))
    document["metadata"] |= metadata
    return mutate(document, "team-a", {}, setting()).warnings


def test_label_with_the_name_of_an_annotation_is_told() -> None:
    """F19."""
    assert f"label {KEY} has no effect; make it an annotation" in warnings(labels={KEY: VALUE})


@pytest.mark.parametrize(
    "prefix", ["gpuusher.io", "gpu-usher", "gpu_usher.io", "gpu-user.io", "gpu-usher.com", "gpu-usher.ai", "gpusher.io"]
)
def test_prefix_that_is_nearly_ours_is_told(prefix: str) -> None:
    """F19."""
    assert f"annotation {prefix}/products has no effect; did you mean {KEY}?" in warnings(
        annotations={f"{prefix}/products": VALUE}
    )


@pytest.mark.parametrize(
    "key", ["nvidia.com/products", "products", "example.com/cuda", "kueue.x-k8s.io/sharing", "a/b/cuda"]
)
def test_other_prefixes_are_no_matter_of_ours(key: str) -> None:
    """F19."""
    assert not warnings(annotations={key: VALUE})
