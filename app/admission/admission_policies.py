# SPDX-License-Identifier: Apache-2.0
"""The two ValidatingAdmissionPolicies, which the API server evaluates itself, whether or not gpu-usher is up.

The fallback has the part of our validation that CEL can express. It is evaluated after all mutating webhooks: while
gpu-usher is up and repairs a pod, it has nothing to refuse. It knows neither nodes nor annotations and cannot repair;
LIMITATIONS lists what is missing. It does not check fractions, negative amounts, or GPU requests that lack limits or
differ from them: the API server refuses those before any validating admission (pkg/apis/core/validation
ValidateResourceRequirements; tests/e2e/test_fallback.py). In the checks of variables `c` is a container and `e` an
entry of its env.

The other guards the labels and names that exempt a namespace from review (`is_exempt` in reviewed_pod.py). Without it a
tenant who may create or label namespaces could bypass every check, and a webhook on namespaces could block the cluster.
It asks RBAC for the verb `create` on the cluster-scoped resource `exemptions.gpu-usher.io`, which no API server serves.
`cluster-admin` has that right, whichever group a cloud's administrators are in; a Role, even with wildcards, does not.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from app.admission.device_guard import ALL_FILES, CDI, DEVICE_FOLDER, GPU_FILES, VISIBLE
from app.admission.match_conditions import device_conditions, is_gpu_resource, match_conditions, quoted
from app.admission.reviewed_pod import EXEMPT_LABELS
from app.knowledge.container_toolkit import EXPANDED, ToolkitEnv, ToolkitVariable
from app.knowledge.gpu_resources import Families
from app.knowledge.tables import Knowledge
from app.policy.merge_admission import AdmissionRules
from app.values.reasons import Code


def entry_gives_devices(row: ToolkitVariable) -> str:
    """Write CEL that is true where e is the variable with an effective value (ToolkitVariable.is_effective)."""
    return f"(e.name == {quoted(row.name)} && {_value_gives_devices(row, 'e')})"


def _value_gives_devices(row: ToolkitVariable, entry: str) -> str:
    value = f"{entry}.value"
    listed = f"{value} in [{', '.join(map(quoted, row.effective or row.harmless))}]"
    gives = f"({listed} || {value}.contains({quoted(EXPANDED)}))" if row.effective else f"!({listed})"
    return f"(has({entry}.valueFrom) || (has({value}) && {gives}))"


def made_harmless(row: ToolkitVariable, table: ToolkitEnv) -> str:
    """Write CEL that is true where other variables of the container make this one harmless (_made_harmless there).

    Of a hiding variable that is given twice every value must be harmless: CEL cannot pick the last one.
    """
    other = table[row.hidden_by]
    voided = _all_named(other.name, f"!{_value_gives_devices(other, 'h')}")
    required = f"has(h.value) && h.value != '' && !h.value.contains({quoted(EXPANDED)})"
    return f"({voided} || {_all_named(row.required_by, required)})" if row.required_by else voided


def _all_named(name: str, condition: str) -> str:
    """Write CEL that is true where the env has entries of this name and the condition holds for all of them."""
    named = f"h.name == {quoted(name)}"
    return f"(c.env.exists(h, {named}) && c.env.all(h, !({named}) || ({condition})))"


def container_asks_for_gpu(families: Families) -> str:
    """Write CEL that is true where a container requests a GPU, by resource or by any claim (asks_for_gpu there)."""
    amount = "quantity(string(c.resources.limits[k])).isGreaterThan(quantity('0'))"
    gpu = is_gpu_resource(families, passthrough=False)
    limits = f"(has(c.resources.limits) && c.resources.limits.exists(k, ({gpu}) && {amount}))"
    return f"(has(c.resources) && ({limits} || (has(c.resources.claims) && size(c.resources.claims) > 0)))"


FALLBACK_NAME = "gpu-usher-fallback"
LIMITATIONS = (
    "repair anything: limits, runtimeClassName, tolerations and node affinity are missing while gpu-usher is down",
    "select pods by namespace or label: its rules are those for a pod that no selector matches, without exceptions",
    "read the annotations gpu-usher.io/*, or report that policies contradict each other",
    "know the fleet: whether any node has the GPU, and whether a requested unit is a share of one",
    "count GPUs of init containers, sidecars and ResourceClaims against maxGPUsPerPod",
    "know the DeviceClasses that the cluster's administrators created, and the extended resources that these serve",
    "judge the templates of workloads: their pods are refused one by one",
)
_GUARDED = (
    "has(request.subResource) && request.subResource == 'ephemeralcontainers'"
    " ? (has(object.spec.ephemeralContainers) ? object.spec.ephemeralContainers : [])"
    ".filter(c, oldObject == null || !has(oldObject.spec.ephemeralContainers)"
    " || !oldObject.spec.ephemeralContainers.exists(o, o.name == c.name))"
    " : object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])"
)
"""CEL: the containers that the request adds: those of a new pod, or the new ephemeral ones of a running pod."""
_PRIVILEGED = "has(c.securityContext) && has(c.securityContext.privileged) && c.securityContext.privileged"
REMOVE = Code.VisibleDevicesForbidden.remedy
_CREATED = "request.operation != 'CREATE' || "


@dataclass(frozen=True, slots=True)
class Validation:
    """One validation of the policy: a CEL expression that is true for an allowed object, and the denial's message."""

    expression: str
    message: str


ValidationBuilder = Callable[[AdmissionRules, Knowledge], Iterator[Validation]]


def not_too_many(rules: AdmissionRules, knowledge: Knowledge) -> Iterator[Validation]:
    """Count the GPUs of containers that run together; init containers are not counted."""
    if rules.max_gpus_per_pod is None:
        return
    limits = "(has(c.resources) && has(c.resources.limits) ? c.resources.limits : {})"
    amount = "quantity(string(c.resources.limits[k]))"
    gpu_names = f"{limits}.filter(k, ({is_gpu_resource(knowledge.families)}) && {amount}.isInteger())"
    expression = f"object.spec.containers.map(c, {gpu_names}.map(k, {amount}.asInteger()).sum()).sum()"
    most = f"at most {rules.max_gpus_per_pod} GPUs per pod are allowed{rules.by('max_gpus_per_pod')}"
    yield Validation(f"{_CREATED}{expression} <= {rules.max_gpus_per_pod}", f"asks for too many GPUs; {most}")


def devices_asked_for(rules: AdmissionRules, knowledge: Knowledge) -> Iterator[Validation]:
    """Refuse what the policy would otherwise strip, since nothing strips it while gpu-usher is down."""
    if rules.visible_devices == "Leave":
        return
    table, has_gpu = knowledge.toolkit_env.values(), container_asks_for_gpu(knowledge.families)
    gives_always = " || ".join(
        entry_gives_devices(variable) for variable in table if not (variable.beside_gpu or variable.hidden_by)
    )
    yield Validation(
        f"variables.guarded.all(c, !has(c.env) || !c.env.exists(e, {gives_always}))",
        f"sets {VISIBLE} or a like variable, which gives GPUs that were not requested; {REMOVE}",
    )
    gives_beside_gpu = " || ".join(
        entry_gives_devices(variable) for variable in table if variable.beside_gpu and not variable.hidden_by
    )
    yield Validation(
        f"variables.guarded.all(c, !has(c.env) || {has_gpu} || !c.env.exists(e, {gives_beside_gpu}))",
        f"sets a variable that gives devices beside the GPU that is requested; {REMOVE}",
    )
    for variable in table:
        if hiding := variable.hidden_by:
            yield Validation(
                f"variables.guarded.all(c, !has(c.env) || !c.env.exists(e, {entry_gives_devices(variable)})"
                f" || {has_gpu} || {made_harmless(variable, knowledge.toolkit_env)})",
                f"sets {variable.name} without {hiding}, which gives every GPU; set {hiding}: void beside it",
            )
    mounts = f"c.volumeMounts.all(m, !m.mountPath.contains({quoted(DEVICE_FOLDER)}))"
    yield Validation(
        f"variables.guarded.all(c, !has(c.volumeMounts) || {mounts})",
        f"has a mount below {DEVICE_FOLDER}, which gives GPUs that were not requested; {REMOVE}",
    )
    annotations = "object.metadata.annotations"
    vendors = " || ".join(
        f"{annotations}[k].contains({quoted(f'{family.name}.com/')})" for family in knowledge.families.all
    )
    unnamed = f"{annotations}.all(k, !k.startsWith({quoted(CDI)}) || !({vendors}))"
    yield Validation(
        f"{_CREATED}!has({annotations}) || {unnamed}",
        f"has an annotation {CDI}*, which gives GPUs that were not requested; {REMOVE}",
    )


def unprivileged(rules: AdmissionRules, knowledge: Knowledge) -> Iterator[Validation]:
    """Refuse a privileged container in a pod that names a GPU."""
    if rules.privileged == "Deny":
        yield _not_privileged(f"{_CREATED}!({_names_gpu(knowledge)})")


def scheduled_by_us(rules: AdmissionRules, _knowledge: Knowledge) -> Iterator[Validation]:
    """Refuse a pod with spec.nodeName, or with another scheduler than the policy's."""
    if rules.bypass != "Deny":
        return
    yield Validation(
        f"{_CREATED}!has(object.spec.nodeName) || object.spec.nodeName == ''",
        "spec.nodeName is set, so that no scheduler checks the node; remove it",
    )
    if rules.scheduler_name:
        scheduler = quoted(rules.scheduler_name)
        yield Validation(
            f"{_CREATED}object.spec.schedulerName == {scheduler}",
            f"names another scheduler than {rules.scheduler_name}; set schedulerName: {rules.scheduler_name}",
        )


def _names_gpu(knowledge: Knowledge) -> str:
    """Write CEL that is true where a container c names a GPU resource k in its limits or requests, maps m."""
    both = (f"(has(c.resources.{kind}) ? [c.resources.{kind}] : [])" for kind in ("limits", "requests"))
    amounts = f"(has(c.resources) ? {' + '.join(both)} : [])"
    return f"variables.guarded.exists(c, {amounts}.exists(m, m.exists(k, {is_gpu_resource(knowledge.families)})))"


def devices_not_mounted(rules: AdmissionRules, _knowledge: Knowledge) -> Iterator[Validation]:
    """Refuse GPU device files as a hostPath volume."""
    if rules.visible_devices != "Leave":
        yield Validation(_no_volume(GPU_FILES), f"has a hostPath of GPUs, which the pod did not request; {REMOVE}")


def node_not_reached(rules: AdmissionRules, knowledge: Knowledge) -> Iterator[Validation]:
    """A privileged pod without a GPU request reaches every GPU of the node; `unprivileged` judges the others."""
    if rules.privileged == "Deny":
        yield _not_privileged(f"({_names_gpu(knowledge)})")
        yield Validation(_no_volume(ALL_FILES), "has a hostPath that reaches every GPU of the node; remove it")


def _not_privileged(unless: str) -> Validation:
    """Refuse privileged containers, unless the CEL of `unless` is true."""
    return Validation(
        f"{unless} || variables.guarded.all(c, !({_PRIVILEGED}))",
        "is privileged, which lets it use every GPU of its node; set privileged: false",
    )


def _no_volume(pattern: str) -> str:
    volumes = "object.spec.volumes"
    matching = f"has(v.hostPath) && v.hostPath.path.matches({quoted(pattern)})"
    return f"{_CREATED}!has({volumes}) || !{volumes}.exists(v, {matching})"


CHECKS: tuple[ValidationBuilder, ...] = (not_too_many, devices_asked_for, unprivileged, scheduled_by_us)


DEVICE_CHECKS: tuple[ValidationBuilder, ...] = (devices_not_mounted, node_not_reached)
"""Checks of pods that need not concern GPUs otherwise; their own policy fails open, as their webhook does."""


def _checks(
    builders: tuple[ValidationBuilder, ...], rules: AdmissionRules, knowledge: Knowledge
) -> Iterator[Validation]:
    for builder in builders:
        yield from builder(rules, knowledge)


def fallback_policies(enforced: AdmissionRules, warned: AdmissionRules, knowledge: Knowledge) -> list[dict[str, Any]]:
    """Write the policies and their bindings: enforced rules deny, rules of policies in mode Warn only warn."""
    objects = []
    for name, builders, conditions, failure_policy in (
        (FALLBACK_NAME, CHECKS, match_conditions(knowledge), "Fail"),
        (f"{FALLBACK_NAME}-devices", DEVICE_CHECKS, device_conditions(knowledge), "Ignore"),
    ):
        not_exempt = {"name": "not-exempt", "expression": _not_exempt(knowledge.families)}
        denying = list(_checks(builders, enforced, knowledge))
        warning = [check for check in _checks(builders, warned, knowledge) if check not in denying]
        for suffix, checks, action in (("", denying, "Deny"), ("-warn", warning, "Warn")):
            if checks:
                objects += _policy_and_binding(
                    f"{name}{suffix}", checks, action, [*conditions, not_exempt], failure_policy
                )
    return objects


def _policy_and_binding(
    name: str, checks: list[Validation], action: str, conditions: list[dict[str, str]], failure_policy: str
) -> list[dict[str, Any]]:
    version = "admissionregistration.k8s.io/v1"
    validations = [
        {"expression": validation.expression, "message": f"gpu-usher: {validation.message}"} for validation in checks
    ]
    spec = {
        "failurePolicy": failure_policy,
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "namespaceSelector": {
                "matchExpressions": [{"key": key, "operator": "NotIn", "values": ["true"]} for key in EXEMPT_LABELS]
            },
            "resourceRules": [
                _rule("CREATE", "pods"),
                _rule("UPDATE", "pods/ephemeralcontainers"),
            ],
        },
        "matchConditions": conditions,
        "variables": [{"name": "guarded", "expression": _GUARDED}],
        "validations": validations,
    }
    return [
        {"apiVersion": version, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec},
        {
            "apiVersion": version,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": [action]},
        },
    ]


def _rule(operation: str, resource: str) -> dict[str, Any]:
    groups = {"apiGroups": [""], "apiVersions": ["v1"], "scope": "Namespaced"}
    return {**groups, "operations": [operation], "resources": [resource]}


def _not_exempt(families: Families) -> str:
    """Write CEL that is true where the namespace is none of the vendors' own."""
    return f"!(request.namespace in [{', '.join(map(quoted, families.infrastructure_namespaces))}])"


EXEMPTIONS_NAME = "gpu-usher-exemptions"
SUBRESOURCES = ("namespaces", "namespaces/finalize", "namespaces/status")
"""All of them accept changed labels (pkg/registry/core/namespace/strategy.go: no subresource resets metadata)."""
_VERSION = "admissionregistration.k8s.io/v1"


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
        {"apiVersion": _VERSION, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": spec},
        {"apiVersion": _VERSION, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata, "spec": binding},
    ]


def _exempting(owner: str) -> str:
    """Write the CEL expression that is true where a namespace has the label k with the value that exempts."""
    labels = f"{owner}.metadata.labels"
    return f"has({labels}) && k in {labels} && {labels}[k] == 'true'"
