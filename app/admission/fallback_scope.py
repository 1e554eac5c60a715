# SPDX-License-Identifier: Apache-2.0
"""What the policies for the API server are made of: the rules for a pod of no selector, where they hold, shared CEL.

A policy or an exception that selects pods may say less than the rules for all others. A rule is then not applied to
these pods, so that no policy for the API server is stricter than admission, or changes what admission would not. A
policy that selects pods and only says more is left to admission.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.admission.match_conditions import AMOUNTS, is_gpu_resource, quoted
from app.admission.reviewed_pod import EXEMPT_LABELS
from app.knowledge.container_toolkit import EXPANDED, ToolkitEnv, ToolkitVariable
from app.knowledge.gpu_resources import Families
from app.knowledge.tables import Knowledge
from app.kube.pods import PREFIX, read_pod
from app.policy.annotations import WORKLOAD_CLASS_NAME
from app.policy.compiled import CompiledPolicy, PodSelection, PolicySet
from app.policy.match import Ruling, ruling_for
from app.policy.merge_admission import AdmissionRules
from app.values.label_requirements import Requirement

FALLBACK_NAME = "gpu-usher-fallback"
VERSION = "admissionregistration.k8s.io/v1"
AMOUNT_MAPS = "(has(c.resources) ? {} : [])".format(
    " + ".join(f"(has(c.resources.{kind}) ? [c.resources.{kind}] : [])" for kind in AMOUNTS)
)
"""CEL: the limits and the requests of a container c, as maps m."""
GENERATED = (
    *("requests_only", "mismatch", "visible_devices", "privileged", "bypass", "max_gpus_per_pod"),
    *("memory_requests", "scheduler_name", "priority_class_name", "runtime_class_name", "tolerate", "override"),
)
"""Rules that policies for the API server have, of both kinds."""
Resources = tuple[tuple[str, str, tuple[str, ...]], ...]
"""API group, operation, and names of the resources that a policy matches."""


def gives_devices(row: ToolkitVariable, entry: str = "e") -> str:
    """Write CEL that is true where an entry is the variable with an effective value (ToolkitVariable.is_effective)."""
    return f"({entry}.name == {quoted(row.name)} && {_value_gives_devices(row, entry)})"


def _value_gives_devices(row: ToolkitVariable, entry: str) -> str:
    value = f"{entry}.value"
    listed = f"{value} in [{', '.join(map(quoted, row.effective or row.harmless))}]"
    gives = f"({listed} || {value}.contains({quoted(EXPANDED)}))" if row.effective else f"!({listed})"
    return f"(has({entry}.valueFrom) || (has({value}) && {gives}))"


def made_harmless(row: ToolkitVariable, table: ToolkitEnv) -> str:
    """Write CEL that is true where other variables of the container make this one harmless (_made_harmless there).

    Of a hiding variable that is given twice the last value counts.
    """
    hides = f"size(l) > 0 && !{_value_gives_devices(table[row.hidden_by], 'l[size(l) - 1]')}"
    hidden = f"[c.env.filter(h, h.name == {quoted(row.hidden_by)})].exists(l, {hides})"
    if not row.required_by:
        return f"({hidden})"
    named = f"h.name == {quoted(row.required_by)}"
    literal = f"has(h.value) && h.value != '' && !h.value.contains({quoted(EXPANDED)})"
    required = f"(c.env.exists(h, {named}) && c.env.all(h, !({named}) || ({literal})))"
    return f"({hidden} || {required})"


def container_asks_for_gpu(families: Families) -> str:
    """Write CEL that is true where a container requests a GPU, by resource or by any claim (asks_for_gpu there)."""
    amount = "quantity(string(c.resources.limits[k])).isGreaterThan(quantity('0'))"
    gpu = is_gpu_resource(families, passthrough=False)
    limits = f"(has(c.resources.limits) && c.resources.limits.exists(k, ({gpu}) && {amount}))"
    return f"(has(c.resources) && ({limits} || (has(c.resources.claims) && size(c.resources.claims) > 0)))"


@dataclass(frozen=True, slots=True)
class FallbackScope:
    """The rules that policies for the API server have, and the pods to which they do not apply.

    `enforced` and `warned` are the rules for a pod that no selector matches. `schedulers` are those that policies name.
    `selections` are CEL expressions by name, each true for the pods that a policy or an exception selects. `looser` are
    the names of the selections, by the field of AdmissionRules in which the rules for their pods say less or another
    thing. `selectors` are the policies of the selections, by name.
    """

    enforced: AdmissionRules
    warned: AdmissionRules
    schedulers: frozenset[str]
    selections: Mapping[str, str] = field(default_factory=dict)
    looser: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    selectors: Mapping[str, str] = field(default_factory=dict)

    def limited(self, expression: str, fields: tuple[str, ...], otherwise: str) -> str:
        """Write CEL that is `otherwise` for the pods to which the rules of these fields do not apply."""
        names = sorted({name for rule in fields for name in self.looser.get(rule, ())})
        if not names:
            return expression
        return f"({' || '.join(f'variables.{name}' for name in names)}) ? {otherwise} : ({expression})"

    def exceptions(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """List (policy, fields): the pods that the policy selects are left to admission in these fields."""
        for policy in dict.fromkeys(self.selectors.values()):
            yield policy, tuple(rule for rule, names in self.looser.items() if policy in map(self.selectors.get, names))


_ANY_POD = {"metadata": {"name": "any"}, "spec": {"containers": [{"name": "any"}]}}
_EVERY = PodSelection(None, None)
_STRICTEST_FIRST = ("Deny", "Void", "Strip", "UseLimits", "CopyToLimits", "Leave")


def fallback_scope(policies: PolicySet, knowledge: Knowledge) -> FallbackScope:
    """Rule on a pod that no selector matches, and compare what each policy and exception that selects pods changes."""
    base = _ruling({}, policies, knowledge)
    selections: dict[str, str] = {}
    selectors: dict[str, str] = {}
    looser: dict[str, tuple[str, ...]] = {}
    for policy, condition, ruling in _alternatives(policies, base, knowledge):
        fields = [rule for rule in GENERATED if _says_less(rule, base, ruling)]
        if fields:
            name = f"selected{len(selections)}"
            selections[name], selectors[name] = condition, policy
            looser |= {rule: (*looser.get(rule, ()), name) for rule in fields}
    named = frozenset(filter(None, (policy.spec.admission.scheduler_name for policy in policies.policies)))
    return FallbackScope(base.enforced, base.warned, named, selections, looser, selectors)


def _ruling(annotations: Mapping[str, str], policies: PolicySet, knowledge: Knowledge) -> Ruling:
    document = {**_ANY_POD, "metadata": {"name": "any", "annotations": dict(annotations)}}
    return ruling_for(read_pod(document), {}, policies, knowledge)


def _alternatives(policies: PolicySet, base: Ruling, knowledge: Knowledge) -> Iterator[tuple[str, str, Ruling]]:
    """Yield (policy, CEL for its pods, the ruling on them) for each policy that selects pods, and each exception."""

    def ruling(changed: CompiledPolicy | None, policy: CompiledPolicy) -> Ruling:
        others = (other if other.name != policy.name else changed for other in policies.policies)
        fallback = (
            changed if policies.fallback is not None and policies.fallback.name == policy.name else policies.fallback
        )
        chosen = replace(policies, policies=tuple(filter(None, others)), fallback=fallback)
        classes = sorted(policy.workload_classes or ())
        return _ruling({PREFIX + WORKLOAD_CLASS_NAME: classes[0]} if classes else {}, chosen, knowledge)

    for policy in policies.policies:
        condition = _selection(policy.match, policy.workload_classes)
        if condition and policy.name not in base.policies:
            yield policy.name, condition, ruling(replace(policy, match=_EVERY), policy)
        elif condition and (policies.fallback is None or policies.fallback.name != policy.name):
            yield policy.name, f"!({condition})", ruling(None, policy)
    for policy in (*policies.policies, *((policies.fallback,) if policies.fallback else ())):
        condition = _selection(policy.match, policy.workload_classes)
        for selected, rules in policy.exceptions:
            both = " && ".join(filter(None, (condition, _selection(selected, None)))) or "true"
            yield policy.name, both, ruling(replace(policy, match=_EVERY, exceptions=((_EVERY, rules),)), policy)


def _says_less(rule: str, base: Ruling, other: Ruling) -> bool:
    """Tell whether a rule is milder in the other ruling, or another one; a stricter one of the same kind is not."""
    for one, two in ((base.enforced, other.enforced), (base.warned, other.warned)):
        mine, theirs = getattr(one, rule), getattr(two, rule)
        if mine == theirs:
            continue
        if rule == "max_gpus_per_pod" and mine is None:
            continue
        if rule == "max_gpus_per_pod" and theirs is not None and theirs < mine:
            continue
        guarded = mine in _STRICTEST_FIRST and theirs in _STRICTEST_FIRST
        if not guarded or _STRICTEST_FIRST.index(theirs) > _STRICTEST_FIRST.index(mine):
            return True
    return False


def _selection(selected: PodSelection, classes: frozenset[str] | None) -> str:
    """Write CEL that is true for the pods of a selection; empty if it selects every pod."""
    parts = [
        _requirement(requirement, f"{owner}.metadata.labels")
        for owner, requirements in (("namespaceObject", selected.namespace), ("object", selected.pod))
        for requirement in requirements or ()
    ]
    if classes is not None:
        key, held = quoted(PREFIX + WORKLOAD_CLASS_NAME), "object.metadata.annotations"
        listed = ", ".join(map(quoted, sorted(classes)))
        parts.append(f"(has({held}) && {key} in {held} && {held}[{key}].lowerAscii().trim() in [{listed}])")
    return " && ".join(parts)


def _requirement(requirement: Requirement, labels: str) -> str:
    """Write CEL that is true where labels fulfil a requirement of a label selector (Requirement.allows)."""
    key = quoted(requirement.key)
    listed = f"{labels}[{key}] in [{', '.join(map(quoted, sorted(requirement.values)))}]"
    value = f"!({listed})" if requirement.complement else listed
    return f"(has({labels}) && {key} in {labels} ? {value} : {str(requirement.absent_allowed).lower()})"


def policy_and_binding(
    kind: str,
    name: str,
    resources: Resources,
    conditions: list[dict[str, str]],
    variables: Mapping[str, str],
    fields: Mapping[str, Any],
    binding: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Write a policy of a kind, with its further fields, and the binding that puts it in force."""
    spec = {
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "namespaceSelector": {
                "matchExpressions": [{"key": key, "operator": "NotIn", "values": ["true"]} for key in EXEMPT_LABELS]
            },
            "resourceRules": [
                {
                    "apiGroups": [group],
                    "apiVersions": ["v1"],
                    "operations": [operation],
                    "resources": list(names),
                    "scope": "Namespaced",
                }
                for group, operation, names in resources
            ],
        },
        "matchConditions": conditions,
        "variables": [{"name": key, "expression": expression} for key, expression in variables.items()],
        **fields,
    }
    return [
        {"apiVersion": VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec},
        {
            "apiVersion": VERSION,
            "kind": f"{kind}Binding",
            "metadata": {"name": name},
            "spec": {"policyName": name, **binding},
        },
    ]


def not_exempt(families: Families) -> dict[str, str]:
    """Write the matchCondition that is true where the namespace is none of the vendors' own."""
    names = ", ".join(map(quoted, families.infrastructure_namespaces))
    return {"name": "not-exempt", "expression": f"!(request.namespace in [{names}])"}
