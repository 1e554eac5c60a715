# SPDX-License-Identifier: Apache-2.0
"""The ValidatingAdmissionPolicies, which the API server evaluates itself, whether or not gpu-usher is up.

The fallback has the part of our validation that CEL can express. It is evaluated after all that mutates: where
gpu-usher or the mutating policies (mutating_policies.py) repair a pod, it has nothing to refuse. It knows neither nodes
nor annotations; LIMITATIONS lists what is missing. It does not check fractions, negative amounts, or GPU requests that
lack limits or differ from them: the API server refuses those before any validating admission (pkg/apis/core/validation
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
from app.admission.fallback_scope import (
    AMOUNT_MAPS,
    FALLBACK_NAME,
    VERSION,
    FallbackScope,
    container_asks_for_gpu,
    gives_devices,
    made_harmless,
    not_exempt,
    policy_and_binding,
)
from app.admission.match_conditions import device_conditions, is_gpu_resource, match_conditions, quoted
from app.admission.reviewed_pod import EXEMPT_LABELS
from app.knowledge.gpu_resources import Families
from app.knowledge.tables import Knowledge
from app.policy.merge_admission import AdmissionRules
from app.values.reasons import Code

LIMITATIONS = (
    "apply rules of policies that select pods by namespace, label or workload class, or follow dates",
    "read the annotations gpu-usher.io/*, or report that policies contradict each other",
    "know the fleet: whether any node has the GPU, its taints and its runtime handler, and whether a unit is a share",
    "count GPUs of init containers, sidecars and ResourceClaims against maxGPUsPerPod",
    "know which claims give GPUs: a container with any claim counts as one that requests a GPU",
    "know the DeviceClasses that the cluster's administrators created, and the extended resources that these serve",
    "repair ephemeral containers, changed templates of workloads, and mount paths with `..`, or refuse templates",
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
        gives_devices(variable) for variable in table if not (variable.beside_gpu or variable.hidden_by)
    )
    yield Validation(
        f"variables.guarded.all(c, !has(c.env) || !c.env.exists(e, {gives_always}))",
        f"sets {VISIBLE} or a like variable, which gives GPUs that were not requested; {REMOVE}",
    )
    gives_beside_gpu = " || ".join(
        gives_devices(variable) for variable in table if variable.beside_gpu and not variable.hidden_by
    )
    yield Validation(
        f"variables.guarded.all(c, !has(c.env) || {has_gpu} || !c.env.exists(e, {gives_beside_gpu}))",
        f"sets a variable that gives devices beside the GPU that is requested; {REMOVE}",
    )
    for variable in table:
        if hiding := variable.hidden_by:
            yield Validation(
                f"variables.guarded.all(c, !has(c.env) || !c.env.exists(e, {gives_devices(variable)})"
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


def scheduled_by_us(rules: AdmissionRules, knowledge: Knowledge) -> Iterator[Validation]:
    """Refuse a pod with spec.nodeName, or with another scheduler than the policy's."""
    if rules.bypass != "Deny":
        return
    other = f"{_CREATED}!({_asks_for_gpu(knowledge)}) || "
    yield Validation(
        f"{other}!has(object.spec.nodeName) || object.spec.nodeName == ''",
        "spec.nodeName is set, so that no scheduler checks the node; remove it",
    )
    if rules.scheduler_name:
        scheduler = quoted(rules.scheduler_name)
        yield Validation(
            f"{other}object.spec.schedulerName == {scheduler}",
            f"names another scheduler than {rules.scheduler_name}; set schedulerName: {rules.scheduler_name}",
        )


def _asks_for_gpu(knowledge: Knowledge) -> str:
    """Write CEL that is true where some container asks for an amount of a GPU resource other than zero."""
    nonzero = "quantity(string(m[k])).compareTo(quantity('0')) != 0"
    gpu = is_gpu_resource(knowledge.families)
    return f"variables.guarded.exists(c, {AMOUNT_MAPS}.exists(m, m.exists(k, ({gpu}) && {nonzero})))"


def _names_gpu(knowledge: Knowledge) -> str:
    """Write CEL that is true where a container c names a GPU resource k in its limits or requests, maps m."""
    return f"variables.guarded.exists(c, {AMOUNT_MAPS}.exists(m, m.exists(k, {is_gpu_resource(knowledge.families)})))"


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


def memory_equals_limits(rules: AdmissionRules, knowledge: Knowledge) -> Iterator[Validation]:
    """Refuse a pod of GPUs with a container whose memory request is not its limit."""
    if rules.memory_requests != "Deny":
        return
    given = " && ".join(f"has(c.resources.{side}) && 'memory' in c.resources.{side}" for side in ("limits", "requests"))
    amounts = [f"quantity(string(c.resources.{side}['memory']))" for side in ("limits", "requests")]
    equal = f"has(c.resources) && {given} && {amounts[0]}.compareTo({amounts[1]}) == 0"
    yield Validation(
        f"{_CREATED}!({_names_gpu(knowledge)}) || variables.guarded.all(c, {equal})",
        "requests other memory than its limit; set the same amount in requests and limits",
    )


CheckRows = tuple[tuple[ValidationBuilder, tuple[str, ...]], ...]
CHECKS: CheckRows = (
    (not_too_many, ("max_gpus_per_pod",)),
    (devices_asked_for, ("visible_devices",)),
    (unprivileged, ("privileged",)),
    (scheduled_by_us, ("bypass", "scheduler_name")),
    (memory_equals_limits, ("memory_requests",)),
)
"""Beside each are the fields of AdmissionRules that it reads."""
DEVICE_CHECKS: CheckRows = ((devices_not_mounted, ("visible_devices",)), (node_not_reached, ("privileged",)))
"""Checks of pods that need not concern GPUs otherwise; their own policy fails open, as their webhook does."""
_RESOURCES = (("", "CREATE", ("pods",)), ("", "UPDATE", ("pods/ephemeralcontainers",)))


def _checks(rows: CheckRows, rules: AdmissionRules, scope: FallbackScope, knowledge: Knowledge) -> Iterator[Validation]:
    for builder, fields in rows:
        for validation in builder(rules, knowledge):
            yield Validation(scope.limited(validation.expression, fields, "true"), validation.message)


def validating_policies(scope: FallbackScope, knowledge: Knowledge) -> list[dict[str, Any]]:
    """Write the policies and their bindings: enforced rules deny, rules of policies in mode Warn only warn."""
    objects = []
    for name, rows, conditions, failure_policy in (
        (FALLBACK_NAME, CHECKS, match_conditions(knowledge), "Fail"),
        (f"{FALLBACK_NAME}-devices", DEVICE_CHECKS, device_conditions(knowledge), "Ignore"),
    ):
        denying = list(_checks(rows, scope.enforced, scope, knowledge))
        warning = [check for check in _checks(rows, scope.warned, scope, knowledge) if check not in denying]
        for suffix, checks, action in (("", denying, "Deny"), ("-warn", warning, "Warn")):
            if checks:
                objects += policy_and_binding(
                    "ValidatingAdmissionPolicy",
                    f"{name}{suffix}",
                    _RESOURCES,
                    [*conditions, not_exempt(knowledge.families)],
                    {**scope.selections, "guarded": _GUARDED},
                    {
                        "failurePolicy": failure_policy,
                        "validations": [
                            {"expression": check.expression, "message": f"gpu-usher: {check.message}"}
                            for check in checks
                        ],
                    },
                    {"validationActions": [action]},
                )
    return objects


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
