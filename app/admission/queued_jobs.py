# SPDX-License-Identifier: Apache-2.0
"""The pod templates of workloads of other projects (JobSet, RayJob, MPIJob …), all of which one review judges.

They are reviewed when they are created, as their pods will be. What the pods get is written into them only where Kueue
queues the workload and a policy says so, since Kueue chooses a flavor by the templates alone
(docs/decisions/0013-review-workload-templates-as-their-pods-will-be.md).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from app.admission.json_patch import apply
from app.admission.review import UNCONCERNED, ReviewResult
from app.admission.review_targets import JOBS, WORKLOADS, ReviewTarget, is_queued, is_suspended
from app.admission.reviewed_pod import PodForm, ReviewContext, limited_warnings
from app.knowledge.workload_templates import Path, Workloads, resource_of, values_at
from app.values.computations import T

MOST_TEMPLATES = 32
"""Templates of one object that are reviewed; Kueue takes at most 18 (kueue v0.19.0 api/kueue/v1beta2 PodSets). The pods
of further ones are reviewed when they are created."""
Review = Callable[[Mapping[str, Any], str, Mapping[str, str], ReviewContext], ReviewResult]


def template_targets_of(request: Mapping[str, Any], workloads: Workloads) -> tuple[ReviewTarget, ...]:
    """List the pod templates of an AdmissionReview's request that creates a workload of the table, or queues one.

    A suspended one of some kinds, or a suspended Job, may get the label of a queue later. Of a queued one that is
    updated they are those that differ from what is stored. Raises MalformedPod.
    """
    resource = request.get("resource") or {}
    row = (str(resource.get("group") or ""), str(resource.get("resource")))
    new = request.get("object")
    old = request.get("oldObject")
    operation = request.get("operation")
    if row not in workloads or new is None or request.get("subResource"):
        return ()
    queued = is_queued(new)
    if operation == "UPDATE" and old is not None and queued and not is_queued(old):
        late = workloads[row].late and is_suspended(old) and is_suspended(new)
        found = islice(_templates(new, row, workloads) if late else (), MOST_TEMPLATES)
        return tuple(ReviewTarget(one, PodForm.Template, place, queued=True, entering=True) for place, one in found)
    if row == JOBS:
        return ()
    places = islice(_templates(new, row, workloads), MOST_TEMPLATES)
    if operation == "CREATE":
        return tuple(ReviewTarget(template, PodForm.Template, place, queued=queued) for place, template in places)
    if operation != "UPDATE" or not queued or old is None or new == old:
        return ()
    stored = dict(_templates(old, row, workloads))
    return tuple(
        ReviewTarget(template, PodForm.Template, place, old_template=stored[place], queued=True)
        for place, template in places
        if place in stored and stored[place] != template
    )


def number_of_templates(document: Mapping[str, Any], workloads: Workloads) -> int:
    """Count the pod templates of an object of the table."""
    row = resource_of(document)
    return sum(1 for _ in _templates(document, row, workloads)) if row in workloads else 0


def _templates(
    document: Mapping[str, Any], row: tuple[str, str], workloads: Workloads, place: Path = ()
) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    kind = workloads[row]
    for path in kind.templates:
        yield from values_at(document, path, place)
    for path in kind.objects:
        for where, wrapped in values_at(document, path, place):
            yield from _of_wrapped(wrapped, where, workloads)


def _of_wrapped(
    document: Mapping[str, Any], place: Path, workloads: Workloads
) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the templates of an object in another one: of a pod, of a workload of Kubernetes, or of the table."""
    row = resource_of(document)
    if row == ("", "pods"):
        yield place, document
    elif row in WORKLOADS:
        yield from values_at(document, WORKLOADS[row][0], place)
    elif row in workloads and not workloads[row].objects:
        yield from _templates(document, row, workloads, place)


def review_templates(
    targets: tuple[ReviewTarget, ...],
    review: Review,
    namespace: str,
    labels: Mapping[str, str],
    context: ReviewContext,
) -> ReviewResult:
    """Review each template, and join the results into one for the whole object. `labels` are the namespace's.

    Raises MalformedPod, QuantityError, OversizedPod, PatchError.
    """
    joined = UNCONCERNED
    for target in targets:
        result = review(target.document, namespace, labels, replace(context, form=target.form, queued=target.queued))
        if target.old_template is not None:
            result = _only_restoring(target, result)
        elif target.entering:
            # A suspended workload allows to change where its pods may run, and nothing else (kubernetes
            # pkg/apis/batch/validation/validation.go, AllowMutableSchedulingDirectives).
            where = ("spec", "affinity"), ("spec", "tolerations")
            placing = tuple(one for one in result.operations if one.path[:2] in where)
            result = ReviewResult(True, operations=placing, warnings=result.warnings, policies=result.policies)
        joined = replace(
            joined,
            concerned=joined.concerned or result.concerned,
            operations=(*joined.operations, *map(target.operation_on_object, result.operations)),
            warnings=_distinct(joined.warnings, result.warnings),
            reasons=_distinct(joined.reasons, result.reasons),
            record=_distinct(joined.record, result.record),
            undone=_distinct(joined.undone, result.undone),
            policies=_distinct(joined.policies, result.policies),
            policy_hash=result.policy_hash or joined.policy_hash,
        )
    operations = () if joined.reasons else joined.operations
    return replace(joined, operations=operations, warnings=limited_warnings(joined.warnings))


def _only_restoring(target: ReviewTarget, result: ReviewResult) -> ReviewResult:
    """Keep of the review of a changed template what makes it again what is stored, and nothing else.

    Lists of other projects' kinds are often replaced as a whole, so that applying a manifest again takes away what was
    written at creation (kubectl's JSON merge patch; atomic lists of server-side apply).
    """
    after = apply(target.document, result.operations) if result.operations else None
    restored = after is not None and _comparable(after) == _comparable(target.old_template)
    return ReviewResult(True, operations=result.operations if restored else ())


def _comparable(value: Any) -> Any:
    """Write a template as a webhook written in Go does: amounts as text, and nothing that is empty (JobSet v0.12.0)."""
    if isinstance(value, Mapping):
        return {key: _comparable(item) for key, item in value.items() if item not in (None, {}, [])}
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _distinct(first: tuple[T, ...], second: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(dict.fromkeys((*first, *second)))
