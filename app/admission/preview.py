# SPDX-License-Identifier: Apache-2.0
"""What admission would do to an object: the object as it would be admitted, and all warnings and reasons."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.admission.claim_conversion import Conversion, NoEquivalent, template_for
from app.admission.json_patch import apply
from app.admission.match_conditions import MIRROR
from app.admission.queued_jobs import review_templates, template_targets_of
from app.admission.review import NOT_DONE, ReviewResult, mutate
from app.admission.review_targets import WORKLOADS, ReviewTarget, ignored_annotations, review_target_of
from app.admission.reviewed_pod import PodForm, ReviewContext, denial_message, limited_warnings
from app.knowledge.tables import Knowledge
from app.knowledge.workload_templates import APP, Workloads
from app.values.errors import BadInput
from app.values.json_members import member, strings


@dataclass(frozen=True, slots=True)
class Preview:
    """The outcome of a preview.

    `what` is the kind, namespace and name. `message` is the denial's message, or empty. `actions` are the changes in
    order; those of `undone` change nothing. `patch` are the operations as RFC 6902 writes them. `object` is the object
    as it would be admitted; where it would be denied, it is unchanged. `pods` are the further changes of the pods that
    are created from its templates.
    """

    what: str
    allowed: bool
    message: str
    warnings: tuple[str, ...]
    actions: tuple[str, ...]
    patch: tuple[Mapping[str, Any], ...]
    object: Mapping[str, Any]
    undone: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()

    def messages(self) -> Iterator[tuple[str, str]]:
        """List everything once: (done, not done, each pod or warning; text). A change stands with its warning."""
        told: set[str] = set()
        for action in self.actions:
            longer = next((warning for warning in self.warnings if warning.startswith(action)), None)
            told |= {longer or action}
            if longer == action or (longer and action in self.undone and not action.startswith(NOT_DONE)):
                yield "warning", longer
            else:
                yield ("not done" if action in self.undone else "done"), (longer or action).removeprefix(NOT_DONE)
        yield from (("each pod", action) for action in self.pods)
        yield from (("warning", warning) for warning in self.warnings if warning not in told)


def preview(
    document: Mapping[str, Any],
    namespace: str,
    labels_of: Callable[[str], Mapping[str, str]],
    context: ReviewContext,
    target: ReviewTarget | None = None,
) -> Preview:
    """Show what creating an object in a namespace would come to.

    `labels_of` returns a namespace's labels. `target` is the part of the object to review; None means the part that
    its kind implies.

    Raises MalformedPod, QuantityError, and BadInput for a kind that is not reviewed.
    """
    request = _request(document)
    templates = () if target else template_targets_of(request, context.world.knowledge.workloads)
    as_created = replace(context, form=PodForm.Pod)
    ignored = ignored_annotations(request)
    if templates:
        result = review_templates(templates, mutate, namespace, labels_of(namespace), context)
        operations = result.operations
    else:
        target = target or _reviewed_part(document)
        context = replace(context, form=target.form, queued=target.queued)
        result = _left_alone(target, context.world.knowledge) or mutate(
            target.document, namespace, labels_of(namespace), context
        )
        operations = tuple(map(target.operation_on_object, result.operations))
    made = [one.document for one in templates or (target,) if one and one.path] if result.allowed else []
    of_pods = [mutate(one, namespace, labels_of(namespace), as_created) for one in made]
    own = (action for one in of_pods for action in one.record if action not in (*result.record, *one.undone))
    metadata = member(document, "metadata", dict, "") or {}
    name = metadata.get("name") or metadata.get("generateName") or "without a name"
    return Preview(
        what=f"{_kind(document)} {namespace}/{name}",
        allowed=result.allowed,
        message="" if result.allowed else denial_message(result.reasons),
        warnings=limited_warnings((*ignored, *result.warnings)),
        actions=result.record,
        patch=tuple(operation.as_json() for operation in operations),
        object=apply(document, operations),
        undone=result.undone,
        pods=tuple(dict.fromkeys(own)),
    )


def _left_alone(target: ReviewTarget, knowledge: Knowledge) -> ReviewResult | None:
    """Answer for a pod of a kubelet or of an operator, which the API server does not send to gpu-usher.

    None for other pods. See app/admission/match_conditions.py.
    """
    metadata, spec = (member(target.document, key, dict, "") or {} for key in ("metadata", "spec"))
    if target.form is not PodForm.Pod or not spec.get("nodeName"):
        return None
    if MIRROR in strings(metadata, "annotations", "metadata."):
        return ReviewResult(True, warnings=("a mirror pod: left alone where a kubelet creates it, else reviewed",))
    app = strings(metadata, "labels", "metadata.").get(APP)
    row = next((row for row in knowledge.operators if row.right and app in row.pods), None)
    if row is None or row.right is None:
        return None
    return ReviewResult(
        True, warnings=(f"left alone where {row.name} creates it, by the right to {row.right.words}; else reviewed",)
    )


def admitted_pod(
    document: Mapping[str, Any], namespace: str, labels_of: Callable[[str], Mapping[str, str]], context: ReviewContext
) -> Mapping[str, Any]:
    """Return a pod, or the pod of a template, as admission admits it; unchanged if denied.

    Raises MalformedPod, QuantityError.
    """
    # A template is reviewed in the form Pod, since the pods that its workload creates are.
    result = mutate(document, namespace, labels_of(namespace), context)
    return document if result.admitted is None else result.admitted.document


@dataclass(frozen=True, slots=True)
class WantedTemplate:
    """What one pod needs to claim its GPUs: a template, or the reason why it has no equivalent.

    Both are empty for a pod that admission would not convert: without GPUs of NVIDIA, of an exempt namespace, of
    another scheduler, or denied.
    """

    template: Mapping[str, Any] | None = None
    reason: str = ""


def wanted_template(
    document: Mapping[str, Any], namespace: str, labels: Mapping[str, str], context: ReviewContext, always: bool = True
) -> WantedTemplate:
    """Find the template for a pod, or a pod template; with `always` also where no policy says that pods are converted.

    A policy that only warns counts, so that templates are there when it is enforced. A pod that is bound is taken as
    it would be created again. Raises MalformedPod, QuantityError.
    """
    context = replace(context, form=PodForm.Pod, without_templates=True)
    review = mutate(unbound(document), namespace, labels, context).admitted
    if review is None or not (review.asks_for_gpu and review.has_our_scheduler):
        return WantedTemplate()
    ruling, demand = review.ruling, review.ruling.demand
    rules = ((ruling.enforced, demand), (ruling.warned, demand.warned or demand), (ruling.audited, demand))
    demands = [demand] if always else [one for rule, one in rules if rule.convert_to_claims]
    outcomes = [
        template_for(review.pod, one, context.world.knowledge, context.world.state.devices.shares) for one in demands
    ]
    template = next((outcome.template for outcome in outcomes if isinstance(outcome, Conversion)), None)
    refused = next((outcome for outcome in outcomes if isinstance(outcome, NoEquivalent)), None)
    return WantedTemplate(template, refused.reasons[0] if refused and template is None else "")


def unbound(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a pod without its node, as it was created."""
    spec = document.get("spec")
    if not isinstance(spec, dict) or "nodeName" not in spec:
        return document
    return {**document, "spec": {key: value for key, value in spec.items() if key != "nodeName"}}


_KINDS = tuple(sorted(name.removesuffix("s") for _, name in WORKLOADS))


def target_of_new_object(document: Mapping[str, Any]) -> ReviewTarget | None:
    """Find the pod, or the pod template, of an object that is to be created; None for kinds that are not reviewed.

    Raises MalformedPod.
    """
    return review_target_of(_request(document))


def templates_of_new_object(document: Mapping[str, Any], workloads: Workloads) -> tuple[ReviewTarget, ...]:
    """List the pod, or the pod templates, of an object that is to be created; none for kinds that are not reviewed.

    Raises MalformedPod.
    """
    request = _request(document)
    target = review_target_of(request)
    return (target,) if target else template_targets_of(request, workloads)


def _reviewed_part(document: Mapping[str, Any]) -> ReviewTarget:
    target = target_of_new_object(document)
    if target is None:
        raise BadInput(f"kind: got {_kind(document)[:60] or 'none'}, wants a Pod or {', '.join(_KINDS)}")
    return target


def _request(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Write the AdmissionRequest that creates an object."""
    version = member(document, "apiVersion", str, "") or "v1"
    group = version.rpartition("/")[0]
    resource = {"group": group, "resource": f"{_kind(document).lower()}s"}
    return {"resource": resource, "operation": "CREATE", "object": document}


def _kind(document: Mapping[str, Any]) -> str:
    kind: str = member(document, "kind", str, "") or "Pod"
    return kind
