# SPDX-License-Identifier: Apache-2.0
"""The ResourceClaimTemplate that admission would look for if a policy had it convert a pod to claims."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.admission.claims.mutator import NOT_CONVERTED
from app.admission.review import mutate
from app.admission.reviewed_pod import PodForm, ReviewContext
from app.kube.pods import Pod
from app.kube.resource_claims import ClaimedDevices
from app.policy.compiled import PolicySet
from app.policy.match import Ruling

Template = Mapping[str, Any]
Rule = Callable[[Pod, Mapping[str, str], PolicySet, Any, ClaimedDevices], Ruling]


@dataclass(frozen=True, slots=True)
class WantedTemplate:
    """What one pod needs to claim its GPUs: a template, or the reason why it has no equivalent.

    Both are empty for a pod that admission would not convert: without GPUs of NVIDIA, of an exempt namespace, of
    another scheduler, or denied.
    """

    template: Template | None
    reason: str = ""


def wanted_template(
    document: Mapping[str, Any], namespace: str, labels: Mapping[str, str], context: ReviewContext, always: bool = True
) -> WantedTemplate:
    """Find the template for a pod, or a pod template; with `always` also where no policy says that pods are converted.

    A policy that only warns counts, so that templates are there when it is enforced. A pod that is bound is taken as
    it would be created again. Raises MalformedPod, QuantityError.
    """
    wanted: list[Template] = []

    def note(template: Template) -> bool:
        wanted.append(template)
        return False

    rule = _always_converting(context.rule) if always else context.rule
    result = mutate(unbound(document), namespace, labels, replace(
        context, form=PodForm.Pod, has_template=note, rule=rule))  # fmt: skip
    reasons = (line.removeprefix(NOT_CONVERTED) for line in result.record if line.startswith(NOT_CONVERTED))
    return WantedTemplate(wanted[0] if wanted and result.allowed else None, next(reasons, ""))


def unbound(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a pod without its node, as it was created."""
    spec = document.get("spec")
    if not isinstance(spec, dict) or "nodeName" not in spec:
        return document
    return {**document, "spec": {key: value for key, value in spec.items() if key != "nodeName"}}


def _always_converting(rule: Rule) -> Rule:
    """Rule on pods as `rule` does, and have them converted."""

    def converting(pod: Pod, labels: Mapping[str, str], policies: PolicySet, knowledge: Any, claimed: Any) -> Ruling:
        ruling = rule(pod, labels, policies, knowledge, claimed)
        return replace(ruling, enforced=replace(ruling.enforced, convert_to_claims=True))

    return converting
