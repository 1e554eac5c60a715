# SPDX-License-Identifier: Apache-2.0
"""Admission policies in CEL, which the API server evaluates itself, whether or not gpu-usher is up.

`guard_policies` fills in admission_policies.yaml: while no replica answers, the API server itself refuses pods that
take devices which they did not request, or that are privileged, and copies requests of GPUs to limits, without which it
refuses the pod. A guard applies to every pod: it is left out where a policy or an exception says otherwise for some
pods, so that none is stricter than admission. Every other rule is left to gpu-usher, since it needs nodes, annotations
or claims, which CEL does not know.

`exemption_policy` guards the labels and names that exempt a namespace from review (`is_exempt` in reviewed_pod.py).
Without it a tenant who may create or label namespaces could bypass every check, and a webhook on namespaces could block
the cluster. It asks RBAC for the verb `create` on the cluster-scoped resource `exemptions.gpu-usher.io`, which no API
server serves. `cluster-admin` has that right, whichever group a cloud's administrators are in; a Role, even with
wildcards, does not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from string import Template
from typing import Any

from app.admission.device_guard import ALL_FILES, CDI, DEVICE_FOLDER, GPU_FILES, VISIBLE
from app.admission.match_conditions import device_conditions, is_gpu_resource, match_conditions, quoted
from app.admission.reviewed_pod import EXEMPT_LABELS
from app.knowledge.container_toolkit import EXPANDED, ToolkitEnv, ToolkitVariable
from app.knowledge.gpu_resources import Families
from app.knowledge.tables import Knowledge
from app.policy.compiled import CompiledPolicy, PolicySet
from app.policy.schema import Action
from app.policy.schema_placement import Rule
from app.values.reasons import Code

VERSION = "admissionregistration.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Guard:
    """A rule that the API server keeps where its value is one of `values`, and not where it is one of `stricter`."""

    rule: Rule
    path: str
    values: tuple[str, ...]
    stricter: tuple[str, ...] = ()

    def value(self, policy: CompiledPolicy) -> str | None:
        """Return what a policy enforces for the pods that it selects, whether or not exceptions are made."""
        spec = policy.spec
        block, _, name = self.path.rpartition(".")
        holder = attrgetter(block)(spec.admission) if block else spec.admission
        enforced = spec.actions.get(self.rule, spec.action) is Action.Enforce and holder is not None
        return getattr(holder, name) if enforced else None

    def holds(self, policy: CompiledPolicy) -> bool:
        """Tell whether a policy enforces the rule for every pod that it selects."""
        return self.value(policy) in self.values and not any(self.rule in off for _, off in policy.exceptions)


GUARDS = {
    "visibleDevices": Guard(Rule.VisibleDevices, "visible_devices", ("Deny", "Void", "Strip")),
    "privileged": Guard(Rule.Privileged, "privileged", ("Deny",)),
    "extendedResources.requestsOnly": Guard(
        Rule.ExtendedResources, "extended_resources.requests_only", ("CopyToLimits",), ("Deny",)
    ),
}
"""The guards by their fields in a policy, as admission_policies.yaml names them."""


def guards_in_force(policies: PolicySet) -> dict[str, str]:
    """Return the guards that policies enforce, each with one that keeps it from holding for every pod, or "".

    Policies without selectors apply to every pod, and the strictest value counts. Without any, a pod is under those
    that select it, or under the fallback.
    """
    by_labels = [policy for policy in policies.policies if policy.workload_classes is None]
    for_all = [policy for policy in by_labels if not (policy.match.namespace or policy.match.pod)]
    deciding = for_all or [*by_labels, *((policies.fallback,) if policies.fallback else ())]
    guards = {}
    for name, guard in GUARDS.items():
        holding = [policy for policy in deciding if guard.holds(policy)]
        others = [policy for policy in policies.policies if guard.value(policy) in guard.stricter]
        others += [] if for_all and holding else [policy for policy in deciding if policy not in holding]
        if any(guard.value(policy) in guard.values for policy in deciding):
            guards[name] = others[0].name if others else ""
    return guards


def guard_policies(
    written: Mapping[str, Any], guards: Mapping[str, str], knowledge: Knowledge
) -> Iterator[dict[str, Any]]:
    """Fill in the policies of admission_policies.yaml, and bind them, for the guards that hold for every pod."""
    texts = _texts(knowledge)
    for name, text in written["words"].items():
        texts[name] = Template(text).substitute(texts)
    conditions = {"concerns-gpus": match_conditions(knowledge), "reaches-devices": device_conditions(knowledge)}
    kept = [name for name, otherwise in guards.items() if not otherwise]
    for row in written["policies"]:
        validations = [
            {"expression": check["cel"], "message": f"gpu-usher: {check['message']}"}
            for check in row.get("validations", ())
            if check["guard"] in kept
        ]
        if not validations and row.get("guard") not in kept:
            continue
        exempt = [{"key": key, "operator": "NotIn", "values": ["true"]} for key in EXEMPT_LABELS]
        spec = {
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "namespaceSelector": {"matchExpressions": exempt},
                "resourceRules": row["rules"],
            },
            "matchConditions": [*conditions[row["conditions"]], _not_exempt(knowledge.families)],
            "variables": [{"name": key, "expression": _filled(text, texts)} for key, text in row["variables"].items()],
            **_filled(row["fields"], texts),
            **({"validations": _filled(validations, texts)} if validations else {}),
        }
        actions = {"validationActions": ["Deny"]} if validations else {}
        yield _manifest(row["kind"], row["name"], spec)
        yield _manifest(f"{row['kind']}Binding", row["name"], {"policyName": row["name"], **actions})


def _filled(value: Any, texts: Mapping[str, str]) -> Any:
    """Copy a part of the file with the names in all of its texts filled in."""
    if isinstance(value, dict):
        return {key: _filled(item, texts) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, texts) for item in value]
    return Template(value).substitute(texts)


def _manifest(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _texts(knowledge: Knowledge) -> dict[str, str]:
    """Write what the CEL and the messages say of the fact tables."""
    families, table = knowledge.families, knowledge.toolkit_env
    value = "object.metadata.annotations[k]"
    hideable = [row for row in table.values() if row.hidden_by]
    others = [row for row in table.values() if not row.hidden_by]
    return {
        "gpu": is_gpu_resource(families, passthrough=False),
        "gpu_or_passthrough": is_gpu_resource(families),
        "device_class": families.device_class_prefix,
        "of_vendors": " || ".join(f"{value}.contains({quoted(f'{family.name}.com/')})" for family in families.all),
        "always_gives": " || ".join(_gives_devices(row) for row in others if not row.beside_gpu),
        "gives_without_gpu": " || ".join(_gives_devices(row) for row in others if row.beside_gpu),
        "gives_unless_hidden": " || ".join(
            f"(c.env.exists(e, {_gives_devices(row)}) && !{_made_harmless(row, table)})" for row in hideable
        ),
        "hideable": " or ".join(row.name for row in hideable),
        "visible": VISIBLE,
        "remove": Code.VisibleDevicesForbidden.remedy,
        "device_folder": DEVICE_FOLDER,
        "cdi": CDI,
        "gpu_files": GPU_FILES,
        "all_files": ALL_FILES,
    }


def _gives_devices(row: ToolkitVariable) -> str:
    """Write CEL that is true where an entry e is the variable with an effective value."""
    return f"(e.name == {quoted(row.name)} && {_value_gives_devices(row, 'e')})"


def _value_gives_devices(row: ToolkitVariable, entry: str) -> str:
    value = f"{entry}.value"
    listed = f"{value} in [{', '.join(map(quoted, row.effective or row.harmless))}]"
    gives = f"({listed} || {value}.contains({quoted(EXPANDED)}))" if row.effective else f"!({listed})"
    return f"(has({entry}.valueFrom) || (has({value}) && {gives}))"


def _made_harmless(row: ToolkitVariable, table: ToolkitEnv) -> str:
    """Write CEL that is true where other variables of the container make this one harmless.

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


def _not_exempt(families: Families) -> dict[str, str]:
    """Write the matchCondition that is true where the namespace is none of the vendors' own."""
    names = ", ".join(map(quoted, families.infrastructure_namespaces))
    return {"name": "not-exempt", "expression": f"!(request.namespace in [{names}])"}


EXEMPTIONS_NAME = "gpu-usher-exemptions"
SUBRESOURCES = ("namespaces", "namespaces/finalize", "namespaces/status")
"""All of them accept changed labels (pkg/registry/core/namespace/strategy.go: no subresource resets metadata)."""


def exemption_policy(families: Families) -> list[dict[str, Any]]:
    """Write the ValidatingAdmissionPolicy and its ValidatingAdmissionPolicyBinding."""
    keys = ", ".join(map(quoted, EXEMPT_LABELS))
    names = ", ".join(map(quoted, sorted(families.infrastructure_namespaces)))
    new = f"request.operation == 'CREATE' && object.metadata.name in [{names}]"
    labelled = f"[{keys}].exists(k, {_exempting('object')} && !(oldObject != null && {_exempting('oldObject')}))"
    allowed = "authorizer.group('gpu-usher.io').resource('exemptions').check('create').allowed()"
    message = f"gpu-usher: {' and '.join(EXEMPT_LABELS)} and the names of exempt namespaces are reserved"
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "resourceRules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE", "UPDATE"],
                    "resources": list(SUBRESOURCES),
                    "scope": "Cluster",
                }
            ],
        },
        "matchConditions": [{"name": "exempts", "expression": f"({new}) || {labelled}"}],
        "validations": [
            {
                "expression": allowed,
                "message": f"{message}: wants the right to create exemptions.gpu-usher.io",
                "reason": "Forbidden",
            }
        ],
    }
    binding = {"policyName": EXEMPTIONS_NAME, "validationActions": ["Deny"]}
    metadata = {"name": EXEMPTIONS_NAME, "labels": {"app.kubernetes.io/name": "gpu-usher"}}
    return [
        {"apiVersion": VERSION, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": spec},
        {"apiVersion": VERSION, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata, "spec": binding},
    ]


def _exempting(owner: str) -> str:
    """Write the CEL expression that is true where a namespace has the label k with the value that exempts."""
    labels = f"{owner}.metadata.labels"
    return f"has({labels}) && k in {labels} && {labels}[k] == 'true'"
