# SPDX-License-Identifier: Apache-2.0
"""Remedies for what policies and admission object to: what the pod must not say, and which rule would have to give."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from app.explain.edits import Document, Edit, NearMiss, annotated, containers_of
from app.kube.pods import PREFIX
from app.policy.compiled import PolicySet
from app.policy.merge import ANNOTATION
from app.policy.schema import Action, Rule
from app.policy.schema_placement import ProductsWish
from app.values.reasons import Code

RULES: Mapping[Code, tuple[tuple[str, Rule], ...]] = {
    Code.ProductNotAllowed: (("allow", Rule.Products), ("deny", Rule.Products)),
    Code.NoProductLeft: (("allow", Rule.Products), ("deny", Rule.Products)),
    Code.DriverTooOld: (("cuda", Rule.CUDA),),
    Code.GPUMemoryTooSmall: (("memory_mib", Rule.GPUMemory),),
    Code.ComputeCapabilityTooLow: (("compute_capability", Rule.ComputeCapability),),
    Code.SharingNotAllowed: (("sharing", Rule.Sharing),),
    Code.InterconnectAbsent: (("nvlink", Rule.Interconnect),),
    Code.FormFactorNotAllowed: (("form_factors", Rule.FormFactor),),
    Code.NodeExcluded: (("node_selector", Rule.NodeSelector),),
    Code.TooManyGPUs: (("max_gpus_per_pod", Rule.MaxGPUsPerPod),),
}
"""By which fields of a policy a code comes about, and the rules that they are."""


def relax_policy(near_miss: NearMiss) -> Iterator[Edit]:
    """Have the policy that states the need allow the node's product too, or turn its rule off."""
    for field, rule in RULES.get(near_miss.code, ()) if isinstance(near_miss.code, Code) else ():
        for origin in (
            who for name, who in near_miss.scheduled_pod.ruling.origins if name == field and who != ANNOTATION
        ):
            product = near_miss.node.node_class.product
            row = near_miss.world.setting.knowledge.products.by_form.get(product or "")
            if rule is Rule.Products and field == "allow" and row is not None:
                text = f"allow {row.label} in policy {origin} (spec.placement.products.allow)"
                yield Edit("allow-in-policy", text, 60, policies=_allowing(origin, row.label))
            else:
                text = f"turn rule {rule.value} off in policy {origin} (spec.actions), or add an exception for the pod"
                yield Edit("relax-policy", text, 61, policies=_without(origin, rule))


def _changed(name: str, update: Callable[[Any], dict[str, Any]]) -> Callable[[PolicySet], PolicySet]:
    def change(known: PolicySet) -> PolicySet:
        changed = (
            replace(each, spec=each.spec.model_copy(update=update(each.spec))) if each.name == name else each
            for each in (*known.policies, *((known.fallback,) if known.fallback else ()))
        )
        policies = tuple(changed)
        count = len(known.policies)
        return replace(known, policies=policies[:count], fallback=next(iter(policies[count:]), None))

    return change


def _without(name: str, rule: Rule) -> Callable[[PolicySet], PolicySet]:
    return _changed(name, lambda spec: {"actions": {**spec.actions, rule: Action.Off}})


def _allowing(name: str, product: str) -> Callable[[PolicySet], PolicySet]:
    def allow(spec: Any) -> dict[str, Any]:
        wish = spec.placement.products or ProductsWish()
        products = wish.model_copy(update={"allow": (*(wish.allow or ()), product)})
        return {"placement": spec.placement.model_copy(update={"products": products})}

    return _changed(name, allow)


def obey(near_miss: NearMiss) -> Iterator[Edit]:
    """Take out of the pod what admission refuses."""
    change = FORBIDDEN.get(near_miss.code) if isinstance(near_miss.code, Code) else None
    if change is not None:
        yield Edit("obey", change[0], 12, change[1])


def drop_annotations(near_miss: NearMiss) -> Iterator[Edit]:
    """Drop an annotation that does not parse, or contradicts a policy."""
    if near_miss.code not in (Code.InvalidAnnotation, Code.NoProductLeft, Code.PolicyConflict, Code.ReservedAnnotation):
        return
    for key, value in near_miss.scheduled_pod.pod.annotations.items():
        if key.startswith(PREFIX):
            yield Edit("drop-annotation", f"drop the annotation {key}: {value}", 15, annotated(key, None))


def _unprivileged(pod: Document) -> None:
    for each in containers_of(pod):
        if each.get("securityContext"):
            each["securityContext"]["privileged"] = False


def _undevised(pod: Document) -> None:
    for each in containers_of(pod):
        if each.get("env"):
            each["env"] = [one for one in each["env"] if one.get("name") != "NVIDIA_VISIBLE_DEVICES"]


def _unbound(pod: Document) -> None:
    pod["spec"].pop("nodeName", None)
    pod["spec"].pop("schedulerName", None)


def _limited(pod: Document) -> None:
    """Take the larger of requests and limits for both."""
    for each in containers_of(pod):
        resources = each.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        gpus = {key: value for key, value in {**requests, **limits}.items() if "/" in key}
        each["resources"] = {"limits": {**limits, **gpus}, "requests": {**requests, **gpus}}


FORBIDDEN: Mapping[Code, tuple[str, Callable[[Document], None]]] = {
    Code.PrivilegedGPUPod: ("set privileged: false", _unprivileged),
    Code.VisibleDevicesForbidden: ("remove NVIDIA_VISIBLE_DEVICES from the environment", _undevised),
    Code.BypassesScheduling: ("remove spec.nodeName and spec.schedulerName", _unbound),
    Code.RequestsOnly: ("set GPU limits equal to the requests", _limited),
    Code.RequestLimitMismatch: ("set GPU requests equal to the limits", _limited),
}

POLICY = (obey, drop_annotations, relax_policy)
