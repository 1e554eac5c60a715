# SPDX-License-Identifier: Apache-2.0
"""Remedies for objections of policies and admission: what to remove from the pod, and which policy rule to change."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from app.explain.edits import Edit, EditedDocument, NearMiss, containers_of, set_annotation
from app.kube.pods import PREFIX
from app.policy.compiled import PolicySet
from app.policy.merge import ANNOTATION
from app.policy.needs import ALLOWED_PRODUCTS, NEEDS
from app.policy.schema import Action
from app.policy.schema_placement import ProductsWish, Rule
from app.values.reasons import Code

TOO_MANY_GPUS = ("spec.admission.maxGPUsPerPod", Rule.MaxGPUsPerPod)
"""The field of a policy's admission block that limits the GPUs of a pod, and its rule."""


def stated_by(code: Code) -> Iterator[tuple[str, Rule]]:
    """List the fields of a policy that lead to a reason code, and their rules."""
    yield from ((need.path, need.rule) for need in NEEDS if need.rule and code in need.codes)
    if code is Code.TooManyGPUs:
        yield TOO_MANY_GPUS


def relax_policy(near_miss: NearMiss) -> Iterator[Edit]:
    """Allow the node's product in the policy that states the need, or turn the policy's rule off."""
    for field, rule in stated_by(near_miss.code) if isinstance(near_miss.code, Code) else ():
        for origin in (
            policy for path, policy in near_miss.scheduled_pod.ruling.origins if path == field and policy != ANNOTATION
        ):
            product = near_miss.node.node_class.product
            row = near_miss.snapshot.knowledge.products.by_form.get(product or "")
            if field == ALLOWED_PRODUCTS.path and row is not None:
                text = f"allow {row.label} in policy {origin} (spec.placement.products.allow)"
                yield Edit("allow-in-policy", text, 60, policies=_with_product_allowed(origin, row.label))
            else:
                text = f"turn rule {rule.value} off in policy {origin} (spec.actions), or add an exception for the pod"
                yield Edit("relax-policy", text, 61, policies=_with_rule_off(origin, rule))


def _changed(name: str, update: Callable[[Any], dict[str, Any]]) -> Callable[[PolicySet], PolicySet]:
    def change(policy_set: PolicySet) -> PolicySet:
        changed = (
            replace(policy, spec=policy.spec.model_copy(update=update(policy.spec))) if policy.name == name else policy
            for policy in (*policy_set.policies, *((policy_set.fallback,) if policy_set.fallback else ()))
        )
        policies = tuple(changed)
        count = len(policy_set.policies)
        return replace(policy_set, policies=policies[:count], fallback=next(iter(policies[count:]), None))

    return change


def _with_rule_off(name: str, rule: Rule) -> Callable[[PolicySet], PolicySet]:
    return _changed(name, lambda spec: {"actions": {**spec.actions, rule: Action.Off}})


def _with_product_allowed(name: str, product: str) -> Callable[[PolicySet], PolicySet]:
    def allow(spec: Any) -> dict[str, Any]:
        wish = spec.placement.products or ProductsWish()
        products = wish.model_copy(update={"allow": (*(wish.allow or ()), product)})
        return {"placement": spec.placement.model_copy(update={"products": products})}

    return _changed(name, allow)


def remove_forbidden(near_miss: NearMiss) -> Iterator[Edit]:
    """Remove from the pod what admission refuses."""
    change = FORBIDDEN.get(near_miss.code) if isinstance(near_miss.code, Code) else None
    if change is not None:
        yield Edit("obey", change[0], 12, change[1])


def drop_annotations(near_miss: NearMiss) -> Iterator[Edit]:
    """Drop annotations that do not parse, or that contradict a policy."""
    if near_miss.code not in (Code.InvalidAnnotation, Code.NoProductLeft, Code.PolicyConflict, Code.ReservedAnnotation):
        return
    for key, value in near_miss.scheduled_pod.pod.annotations.items():
        if key.startswith(PREFIX):
            yield Edit("drop-annotation", f"drop the annotation {key}: {value}", 15, set_annotation(key, None))


def _unprivileged(pod: EditedDocument) -> None:
    for container in containers_of(pod):
        if container.get("securityContext"):
            container["securityContext"]["privileged"] = False


def _without_visible_devices(pod: EditedDocument) -> None:
    for container in containers_of(pod):
        if container.get("env"):
            container["env"] = [entry for entry in container["env"] if entry.get("name") != "NVIDIA_VISIBLE_DEVICES"]


def _without_node_and_scheduler(pod: EditedDocument) -> None:
    pod["spec"].pop("nodeName", None)
    pod["spec"].pop("schedulerName", None)


def _with_equal_limits(pod: EditedDocument) -> None:
    """Set requests and limits of extended resources equal; where both exist, the limit counts."""
    for container in containers_of(pod):
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        gpus = {key: value for key, value in {**requests, **limits}.items() if "/" in key}
        container["resources"] = {"limits": {**limits, **gpus}, "requests": {**requests, **gpus}}


FORBIDDEN: Mapping[Code, tuple[str, Callable[[EditedDocument], None]]] = {
    Code.PrivilegedGPUPod: ("set privileged: false", _unprivileged),
    Code.VisibleDevicesForbidden: ("remove NVIDIA_VISIBLE_DEVICES from the environment", _without_visible_devices),
    Code.BypassesScheduling: ("remove spec.nodeName and spec.schedulerName", _without_node_and_scheduler),
    Code.RequestsOnly: ("set GPU limits equal to the requests", _with_equal_limits),
    Code.RequestLimitMismatch: ("set GPU requests equal to the limits", _with_equal_limits),
}

POLICY = (remove_forbidden, drop_annotations, relax_policy)
