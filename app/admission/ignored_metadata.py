# SPDX-License-Identifier: Apache-2.0
"""Warnings of our annotations where nothing reads them: on a workload instead of its pod template, or among the labels.

A pod gets the annotations of the template alone (k8s.io/kubernetes pkg/controller GetPodFromTemplate), and kubectl
annotate writes those of the object. What is only kept by an edit is not warned of again.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from app.admission.review_targets import WORKLOADS, member_at
from app.kube.pods import PREFIX
from app.policy.annotations import ANNOTATIONS
from app.values.json_members import member

KEYS = frozenset(PREFIX + name for name in ANNOTATIONS)
METADATA = ("metadata",)


def ignored_labels(labels: Mapping[str, str]) -> Iterator[str]:
    """Warn of labels of a pod that have the name of one of our annotations."""
    for key in sorted(KEYS.intersection(labels)):
        yield f"label {key} has no effect; make it an annotation"


def ignored_annotations(request: Mapping[str, Any]) -> tuple[str, ...]:
    """Warn of our annotations on a workload, or on a CronJob's Job, that its pod template lacks.

    Raises MalformedPod.
    """
    resource = member(request, "resource", dict, "request.") or {}
    workload = WORKLOADS.get((str(resource.get("group") or ""), str(resource.get("resource"))))
    new, old = member(request, "object", dict, "request."), member(request, "oldObject", dict, "request.")
    if workload is None or new is None or request.get("subResource"):
        return ()
    template, kind = workload[0], str(new.get("kind") or "workload")
    in_template = _annotations(new, (*template, *METADATA))
    warnings = []
    for place, owner in ((METADATA, kind), (("spec", "jobTemplate", *METADATA), "jobTemplate")):
        before = _annotations(old or {}, place)
        for key, value in sorted(_annotations(new, place).items()):
            if key in KEYS and key not in in_template and before.get(key) != value:
                where = ".".join((*template, *METADATA, "annotations"))
                warnings.append(f"{key} on the {owner} itself has no effect; put it in {where}")
    return tuple(warnings)


def _annotations(document: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the annotations of the metadata at a path; a path or annotations that are not there have none."""
    metadata = member_at(document, path) or {}
    return member(metadata, "annotations", dict, "metadata.") or {}
