# SPDX-License-Identifier: Apache-2.0
"""Which running pods may be restarted elsewhere: those that a controller makes again and that nothing protects."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.admission.match_conditions import MIRROR
from app.kube.pod_object import PodObject
from app.values.errors import BadInput
from app.values.json_members import JSONObject
from app.values.label_requirements import Requirement, all_allow, selector_requirements

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""The annotation by which cluster-autoscaler leaves a pod where it is: `false`, or `on-completion` until it has ended
(cluster-autoscaler/utils/drain/drain.go)."""
DO_NOT_DISRUPT = ("karpenter.sh/do-not-disrupt", "karpenter.sh/do-not-evict")
"""Karpenter's annotation: `true`, or the time since its start for which a pod is protected; and its former name."""
PREFER_NO_EVICTION = "descheduler.alpha.kubernetes.io/prefer-no-eviction"
"""The descheduler's annotation, whose value it does not read. Its older one, `evict`, only permits."""
"""The annotation of a static pod, which the kubelet makes from a file of its node (core/v1 MirrorPodAnnotationKey)."""
SYSTEM_CRITICAL = 2_000_000_000
"""SystemCriticalPriority (pkg/apis/scheduling/types.go)."""
NODE_BOUND = frozenset({"DaemonSet", "Node"})
"""Kinds whose pods are made again on the same node."""

_NONE: JSONObject = {}


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget. `requirements` is None where its selector cannot be read: then it may select any pod.

    `allowed` is how many of its pods may be disrupted now (status.disruptionsAllowed).
    """

    namespace: str
    name: str
    requirements: tuple[Requirement, ...] | None
    allowed: int

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        return namespace == self.namespace and (self.requirements is None or all_allow(self.requirements, labels))


def read_budgets(documents: Iterable[JSONObject]) -> tuple[DisruptionBudget, ...]:
    """Read the PodDisruptionBudgets among objects. One without a selector selects no pod (policy/v1)."""
    return tuple(
        _budget(document)
        for document in documents
        if document.get("kind") == "PodDisruptionBudget" and (document.get("spec") or _NONE).get("selector") is not None
    )


def _budget(document: JSONObject) -> DisruptionBudget:
    metadata, allowed = document.get("metadata") or _NONE, (document.get("status") or _NONE).get("disruptionsAllowed")
    try:
        requirements = selector_requirements(document["spec"]["selector"])
    except (BadInput, KeyError, TypeError, AttributeError):
        requirements = None
    return DisruptionBudget(
        str(metadata.get("namespace") or "default"),
        str(metadata.get("name")),
        requirements,
        allowed if isinstance(allowed, int) else 0,
    )


def why_kept(pod: PodObject, budgets: Sequence[DisruptionBudget]) -> str:
    """Say why a pod has to stay where it is; "" for a pod that may be restarted."""
    return next((reason for check in KEPT for reason in check(pod, budgets)), "")


def _not_made_again(pod: PodObject, _budgets: Sequence[DisruptionBudget]) -> Iterator[str]:
    owner = pod.metadata.controller
    if owner is None:
        yield "no controller creates it again"
    elif owner.kind in NODE_BOUND or MIRROR in (pod.metadata.annotations or {}):
        yield f"it belongs to its node ({owner.kind})"


def _leaving(pod: PodObject, _budgets: Sequence[DisruptionBudget]) -> Iterator[str]:
    if pod.metadata.deletion_timestamp:
        yield "it is being deleted"


def _critical(pod: PodObject, _budgets: Sequence[DisruptionBudget]) -> Iterator[str]:
    if (pod.spec.priority or 0) >= SYSTEM_CRITICAL:
        yield "it is critical to the system"


def _protected(pod: PodObject, _budgets: Sequence[DisruptionBudget]) -> Iterator[str]:
    """Heed the annotations. A duration of Karpenter counts as long as the pod runs, since the core reads no clock."""
    annotations = pod.metadata.annotations or {}
    if annotations.get(SAFE_TO_EVICT) in ("false", "on-completion"):
        yield f"annotation {SAFE_TO_EVICT}: {annotations[SAFE_TO_EVICT]}"
    for key in DO_NOT_DISRUPT:
        if annotations.get(key, "false") != "false":
            yield f"annotation {key}: {annotations[key]}"
    if PREFER_NO_EVICTION in annotations:
        yield f"annotation {PREFER_NO_EVICTION}"


def _claims(pod: PodObject, _budgets: Sequence[DisruptionBudget]) -> Iterator[str]:
    if pod.spec.resource_claims:
        yield "it has ResourceClaims, and moving claims is not simulated"


def _budgeted(pod: PodObject, budgets: Sequence[DisruptionBudget]) -> Iterator[str]:
    """Heed PodDisruptionBudgets as the eviction API does (pkg/registry/core/pod/storage/eviction.go)."""
    selecting = [budget for budget in budgets if budget.selects(pod.namespace, pod.metadata.labels or {})]
    if len(selecting) > 1:
        yield f"{len(selecting)} PodDisruptionBudgets select it, which the eviction API refuses"
    elif selecting and selecting[0].allowed < 1:
        yield f"PodDisruptionBudget {selecting[0].name} allows no disruption now"


KEPT: tuple[Callable[[PodObject, Sequence[DisruptionBudget]], Iterator[str]], ...] = (
    _not_made_again,
    _leaving,
    _critical,
    _protected,
    _claims,
    _budgeted,
)
"""The rules by which a pod stays; each yields the reason."""
