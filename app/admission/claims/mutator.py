# SPDX-License-Identifier: Apache-2.0
"""The mutator by which a pod claims its GPUs through DRA instead of requesting them as resources (S13).

Admission creates no objects. A pod is only changed where the ResourceClaimTemplate that it needs is known to exist in
its namespace, with the content that it would have, since a pod with a missing template stays Pending.
"""

from collections.abc import Iterator
from typing import Any

from app.admission.claims.conversion import CLAIM, Conversion, NoEquivalent, asks_for_known_devices, convert
from app.admission.json_patch import Operation, append, apply
from app.admission.reviewed_pod import PodChange, ReviewedPod
from app.kube.pods import Container

NOT_CONVERTED = "not made a claim: "
"""What begins the record of a pod that has no equivalent."""
REMEDY = "gpu-usher plan claim-templates writes it"


def convert_to_claims(review: ReviewedPod) -> Iterator[PodChange]:
    """Replace requests for NVIDIA's resources by claims, where that loses nothing and the template exists."""
    demand, knowledge = review.ruling.demand, review.context.knowledge
    if not review.rules.convert_to_claims or not asks_for_known_devices(demand, knowledge):
        return
    outcome = convert(review.pod, demand, knowledge)
    if isinstance(outcome, NoEquivalent):
        problem = f"{NOT_CONVERTED}{outcome.reasons[0]}"
        yield PodChange((), problem, problem)
    elif not review.context.has_template(outcome.template):
        problem = f"not done: no ResourceClaimTemplate {outcome.name} here"
        yield PodChange((), problem, f"{problem}: {REMEDY}")
    else:
        names = " and ".join(outcome.resources)
        yield PodChange(tuple(_operations(review, outcome)), f"{names} made a claim by {outcome.name}")


def _operations(review: ReviewedPod, conversion: Conversion) -> Iterator[Operation]:
    """Write the patch: the entry of resourceClaims, the claims of the containers, the resources that go."""
    document: Any = review.document
    entry = {"name": CLAIM, "resourceClaimTemplateName": conversion.name}
    operations = [append(document, ("spec", "resourceClaims"), entry)]
    document = apply(document, operations)
    several = len({request for _, request in conversion.uses}) > 1
    for container, request in conversion.uses:
        used = {"name": CLAIM, "request": request} if several else {"name": CLAIM}
        operation = append(document, (*_resources(container), "claims"), used)
        document = apply(document, [operation])
        operations.append(operation)
    for container in review.pod.containers:
        operations += _removals(container, conversion)
    yield from operations


def _removals(container: Container, conversion: Conversion) -> Iterator[Operation]:
    for side, amounts in (("limits", container.limits), ("requests", container.requests)):
        for resource in conversion.resources:
            if resource in amounts:
                yield Operation("remove", (*_resources(container), side, resource))


def _resources(container: Container) -> tuple[str, ...]:
    return ("spec", container.list_name, str(container.index), "resources")
