# SPDX-License-Identifier: Apache-2.0
"""What admission would do to an object: the object as it would be let in, and everything said about it (F85)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.admission.json_patch import apply
from app.admission.review import ReviewContext, denial, mutate
from app.admission.review_targets import WORKLOADS, ReviewTarget, subject_of
from app.values.errors import BadInput
from app.values.json_members import member


@dataclass(frozen=True, slots=True)
class Preview:
    """What would be done and said. `object`: as it would be let in; where it is denied, as it came.

    `what`: kind, namespace and name. `message`: of a denial, else empty. `actions`: what was done, in order.
    `patch`: as RFC 6902.
    """

    what: str
    allowed: bool
    message: str
    warnings: tuple[str, ...]
    actions: tuple[str, ...]
    patch: tuple[Mapping[str, Any], ...]
    object: Mapping[str, Any]


def preview(
    document: Mapping[str, Any],
    namespace: str,
    labels_of: Callable[[str], Mapping[str, str]],
    setting: ReviewContext,
    subject: ReviewTarget | None = None,
) -> Preview:
    """Show what creating an object in a namespace would come to.

    `labels_of`: gives a namespace's labels. `subject`: what of it is reviewed; None: what its kind says.

    Raises MalformedPod, QuantityError, and BadInput for a kind that is not reviewed.
    """
    subject = subject or created(document)
    if subject is None:
        raise BadInput(f"kind: got {_kind(document)[:60] or 'none'}, wants a Pod or {', '.join(_KINDS)}")
    setting = replace(setting, form=subject.form)
    verdict = mutate(subject.document, namespace, labels_of(namespace), setting)
    operations = tuple(map(subject.placed, verdict.operations))
    metadata = member(document, "metadata", dict, "") or {}
    name = metadata.get("name") or metadata.get("generateName") or "without a name"
    return Preview(
        what=f"{_kind(document)} {namespace}/{name}",
        allowed=verdict.allowed,
        message="" if verdict.allowed else denial(verdict),
        warnings=verdict.warnings,
        actions=verdict.record,
        patch=tuple(each.as_json() for each in operations),
        object=apply(document, operations),
    )


def admitted(
    document: Mapping[str, Any], namespace: str, labels_of: Callable[[str], Mapping[str, str]], setting: ReviewContext
) -> Mapping[str, Any]:
    """Give the pod that an object is, or that a workload makes, as admission lets it in; as it is where it is denied.

    Raises MalformedPod, QuantityError, and BadInput for a kind that is not reviewed.
    """
    subject = created(document)
    if subject is None:
        raise BadInput(f"kind: got {_kind(document)[:60] or 'none'}, wants a Pod or {', '.join(_KINDS)}")
    verdict = mutate(subject.document, namespace, labels_of(namespace), setting)  # as a Pod: the template's own pods
    found: Mapping[str, Any] = apply(subject.document, verdict.operations)
    return found


_KINDS = tuple(sorted(name.removesuffix("s") for _, name in WORKLOADS))


def created(document: Mapping[str, Any]) -> ReviewTarget | None:
    """Find the pod, or the template, of an object that is to be created; None for kinds that are not reviewed.

    Raises MalformedPod.
    """
    version = member(document, "apiVersion", str, "") or "v1"
    group = version.rpartition("/")[0]
    resource = {"group": group, "resource": f"{_kind(document).lower()}s"}
    return subject_of({"resource": resource, "operation": "CREATE", "object": document})


def _kind(document: Mapping[str, Any]) -> str:
    found: str = member(document, "kind", str, "") or "Pod"
    return found
