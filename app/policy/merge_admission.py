# SPDX-License-Identifier: Apache-2.0
"""Merging the admission blocks of all policies that apply, field by field (docs/reference/policy.md#merge)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from app.policy.merge import AppliedPolicy, highest_priority_value
from app.policy.schema import Action
from app.policy.schema_admission import Admission, Defaults, Idle, PerGPU
from app.policy.schema_placement import Rule
from app.values.quantity import parse_quantity
from app.values.reasons import Code, Reason, reason

_AMOUNT_ACTIONS = ("Deny", "UseLimits", "CopyToLimits", "Leave")
_GUARD_ACTIONS = ("Deny", "Void", "Strip", "Leave")
"""Actions on wrong amounts, and actions of guards, strictest first (docs/reference/policy.md#merge)."""


NO_DEFAULTS = Defaults()


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """What admission does to a pod; None, False, "Leave" and "Off" mean nothing.

    Only `affinity_keys` is other: None stands for the labels of GFD and of the dialects of the fleet.

    `override` are the fields that also replace values which the pod itself sets. `set_by` names for each field of
    NAMED the policy of highest priority that sets it to the merged value; it only serves messages.
    """

    runtime_class_name: str | None = None
    scheduler_name: str | None = None
    tolerate: bool = False
    from_node_taints: bool = False
    toleration_keys: tuple[str, ...] = ()
    requests_only: str = "Leave"
    mismatch: str = "Leave"
    fractional: str = "Leave"
    affinity_mode: str = "Off"
    affinity_keys: tuple[str, ...] | None = None
    max_gpus_per_pod: int | None = None
    priority_class_name: str | None = None
    defaults: Defaults = NO_DEFAULTS
    right_sizing: bool = False
    mig_fallback: str | None = None
    convert_to_claims: bool = False
    visible_devices: str = "Leave"
    privileged: str = "Leave"
    bypass: str = "Leave"
    shared_replicas: str = "Leave"
    queued_templates: str | None = None
    memory_requests: str = "Leave"
    per_gpu: PerGPU | None = None
    idle: Idle | None = None
    override: frozenset[str] = frozenset()
    set_by: Mapping[str, str] = field(default_factory=dict, compare=False)

    def by(self, name: str) -> str:
        """Write ` (policy NAME)` for the policy that sets a field; empty where none is known."""
        return f" (policy {self.set_by[name]})" if name in self.set_by else ""

    def too_many(self, units: int, claimed: int | None, by_whom: str = "") -> Reason | None:
        """Refuse more GPUs than a pod may have: units of resources, and GPUs of claims, None for all of a node."""
        allowed = self.max_gpus_per_pod
        if allowed is None or (claimed is not None and units + claimed <= allowed):
            return None
        by = self.by("max_gpus_per_pod")
        most = f"at most {allowed} per pod {'is' if allowed == 1 else 'are'} allowed{by}"
        most = most if allowed else f"none are allowed here{by}"
        if claimed is None and units <= allowed:
            return reason(Code.TooManyGPUs, f"claims all GPUs of a node; {most}")
        return reason(Code.TooManyGPUs, f"asks for {units + (claimed or 0)} GPUs{by_whom}; {most}")


def merge_admission(
    applied: list[AppliedPolicy], level: Action, stricter: AdmissionRules | None = None
) -> AdmissionRules:
    """Merge the admission blocks of the policies whose rules have the action `level` or a stricter one.

    What the rules of a `stricter` level say already is said by the policies that are named there.
    """

    def parts(rule: Rule, name: str) -> list[Any]:
        values = (getattr(policy.spec.admission, name) for policy in applied if policy.applies(rule, level))
        return [value for value in values if value is not None]

    def single(rule: Rule, name: str) -> Any:
        return highest_priority_value(applied, rule, level, lambda spec: getattr(spec.admission, name))

    resources = parts(Rule.ExtendedResources, "extended_resources")
    tolerations = parts(Rule.Tolerations, "tolerations")
    from_taints = [part.from_node_taints for part in tolerations if part.from_node_taints is not None]
    affinities = parts(Rule.Affinity, "affinity")
    modes = [part.mode for part in affinities if part.mode is not None]
    keys = [part.keys for part in affinities if part.keys is not None]

    def strictest(field: str) -> str:
        return min((getattr(part, field) or "Leave" for part in resources), key=_AMOUNT_ACTIONS.index, default="Leave")

    def guard(rule: Rule, name: str) -> str:
        return min(parts(rule, name), key=_GUARD_ACTIONS.index, default="Leave")

    rules = AdmissionRules(
        runtime_class_name=single(Rule.RuntimeClassName, "runtime_class_name"),
        scheduler_name=single(Rule.SchedulerName, "scheduler_name"),
        tolerate=bool(tolerations),
        from_node_taints=next(iter(from_taints), False),
        toleration_keys=tuple(sorted({key for part in tolerations for key in part.keys})),
        requests_only=strictest("requests_only"),
        mismatch=strictest("mismatch"),
        fractional=strictest("fractional"),
        affinity_mode=next(iter(modes), "Off"),
        affinity_keys=next(iter(keys), None),
        max_gpus_per_pod=min(parts(Rule.MaxGPUsPerPod, "max_gpus_per_pod"), default=None),
        priority_class_name=single(Rule.PriorityClassName, "priority_class_name"),
        defaults=_joined(parts(Rule.Defaults, "defaults"), NO_DEFAULTS),
        right_sizing=bool(single(Rule.RightSizing, "right_sizing")),
        mig_fallback=single(Rule.MIGFallback, "mig_fallback"),
        convert_to_claims=bool(single(Rule.ConvertToClaims, "convert_to_claims")),
        visible_devices=guard(Rule.VisibleDevices, "visible_devices"),
        privileged=guard(Rule.Privileged, "privileged"),
        bypass=guard(Rule.Bypass, "bypass"),
        shared_replicas=guard(Rule.SharedReplicas, "shared_replicas"),
        queued_templates=single(Rule.QueuedTemplates, "queued_templates"),
        memory_requests=min(parts(Rule.MemoryRequests, "memory_requests"), key=_AMOUNT_ACTIONS.index, default="Leave"),
        per_gpu=_narrowest(parts(Rule.PerGPU, "per_gpu")),
        idle=_joined(parts(Rule.Idle, "idle"), None),
        override=frozenset(_overriding_fields(applied, level)),
    )
    setters = dict(_setters(applied, level, rules))
    if stricter is not None:
        setters |= {name: by for name, by in stricter.set_by.items() if getattr(stricter, name) == getattr(rules, name)}
    return replace(rules, set_by=setters)


NAMED = (
    (Rule.ExtendedResources, "extended_resources.requests_only", "requests_only"),
    (Rule.ExtendedResources, "extended_resources.mismatch", "mismatch"),
    (Rule.ExtendedResources, "extended_resources.fractional", "fractional"),
    (Rule.SchedulerName, "scheduler_name", "scheduler_name"),
    (Rule.MaxGPUsPerPod, "max_gpus_per_pod", "max_gpus_per_pod"),
    (Rule.VisibleDevices, "visible_devices", "visible_devices"),
    (Rule.Privileged, "privileged", "privileged"),
    (Rule.Bypass, "bypass", "bypass"),
    (Rule.SharedReplicas, "shared_replicas", "shared_replicas"),
    (Rule.MemoryRequests, "memory_requests", "memory_requests"),
    (Rule.PerGPU, "per_gpu", "per_gpu"),
    (Rule.Idle, "idle", "idle"),
)
"""Fields for which a pod can be refused: rule, field in a policy's admission block, and field in AdmissionRules."""


def _setters(applied: list[AppliedPolicy], level: Action, rules: AdmissionRules) -> Iterator[tuple[str, str]]:
    for rule, path, name in NAMED:
        read, merged = attrgetter(path), getattr(rules, name)
        for policy in applied:
            sets = policy.applies(rule, level) and _sets(policy.spec.admission, read)
            if sets and (name in ("idle", "per_gpu") or read(policy.spec.admission) == merged):
                yield name, policy.name
                break


def _narrowest(parts: list[PerGPU]) -> PerGPU | None:
    """Take the highest of the lower bounds, and the lowest of the upper ones."""
    merged = {}
    for name in PerGPU.model_fields:
        values = [value for part in parts if (value := getattr(part, name)) is not None]
        if values:
            merged[name] = (max if name.startswith("min") else min)(values, key=parse_quantity)
    return PerGPU.model_validate(merged, by_name=True) if merged else None


def _joined(parts: list[Any], default: Any) -> Any:
    """Take each field from the policy of highest priority that sets it; `default` where no policy has the block."""
    if not parts:
        return default
    merged: dict[str, Any] = {}
    for part in reversed(parts):
        merged |= part.model_dump(exclude_none=True, by_alias=False)
    return type(parts[0]).model_validate(merged, by_name=True)


_OVERRIDABLE = (
    (Rule.RuntimeClassName, "runtime_class_name"),
    (Rule.SchedulerName, "scheduler_name"),
    (Rule.PriorityClassName, "priority_class_name"),
    (Rule.Defaults, "defaults.cpu_per_gpu"),
    (Rule.Defaults, "defaults.memory_per_gpu"),
    (Rule.Defaults, "defaults.driver_capabilities"),
)


def _overriding_fields(applied: list[AppliedPolicy], level: Action) -> Iterator[str]:
    """List the fields whose value comes from a policy with `override: true`."""
    for rule, name in _OVERRIDABLE:
        read = attrgetter(name)
        setters = (policy for policy in applied if policy.applies(rule, level) and _sets(policy.spec.admission, read))
        winner = next(setters, None)
        if winner is not None and winner.spec.admission.override:
            yield name


def _sets(admission: Admission, read: Callable[[Admission], Any]) -> bool:
    try:
        return read(admission) is not None
    except AttributeError:  # the whole block is absent
        return False
