# SPDX-License-Identifier: Apache-2.0
"""A ValidatingAdmissionPolicy with the part of our validation that CEL can say, for when we are down.

The API server evaluates it itself, after all mutating webhooks: where we are up and repair a pod, nothing is left for
it to refuse. It knows neither nodes nor annotations, and cannot repair; CANNOT lists what is missing. Fractions,
negatives, and GPU requests without limits or other than them are not in it: the API server refuses those before it asks
any validating admission (pkg/apis/core/validation ValidateResourceRequirements; tests/e2e/test_fallback.py).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from app.admission.device_guard import CDI, DEVICE_FOLDER, VISIBLE
from app.admission.exemptions import EXEMPT_LABELS
from app.admission.fallback_env import asks_for_some, hidden, taken_by
from app.admission.match_conditions import device_conditions, match_conditions, names_ours, quoted
from app.admission.node_devices import ALL_FILES, GPU_FILES
from app.knowledge.families import Families
from app.knowledge.tables import Knowledge
from app.policy.merge_admission import AdmissionRules

NAME = "gpu-usher-fallback"
CANNOT = (
    "repair anything: limits, runtimeClassName, tolerations, node affinity are missing while we are down",
    "tell pods apart by namespace or label: the rules are those for a pod that no selector is for, without exceptions",
    "read the annotations gpu-usher.io/*, or tell that policies contradict each other",
    "know the fleet: whether any node has the GPU, whether what is asked is a share of one",
    "count GPUs of init containers, sidecars and ResourceClaims against maxGPUsPerPod",
    "know DeviceClasses of the cluster's own making, and the extended resources that they serve",
    "judge the templates of workloads: their pods are refused one by one",
)
_GUARDED = (
    "has(request.subResource) && request.subResource == 'ephemeralcontainers'"
    " ? (has(object.spec.ephemeralContainers) ? object.spec.ephemeralContainers : [])"
    ".filter(c, oldObject == null || !has(oldObject.spec.ephemeralContainers)"
    " || !oldObject.spec.ephemeralContainers.exists(o, o.name == c.name))"
    " : object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])"
)
"""The containers that somebody brings now: those of a new pod, or the new ephemeral ones of a running pod."""
_PRIVILEGED = "has(c.securityContext) && has(c.securityContext.privileged) && c.securityContext.privileged"
_CREATED = "request.operation != 'CREATE' || "


@dataclass(frozen=True, slots=True)
class Validation:
    """One validation: CEL that is true where the object is fine, and the words of the refusal."""

    expression: str
    message: str


Maker = Callable[[AdmissionRules, Knowledge], Iterator[Validation]]


def not_too_many(rules: AdmissionRules, knowledge: Knowledge) -> Iterator[Validation]:
    """F26: containers that run together; what starts before them is not counted."""
    if rules.max_gpus_per_pod is None:
        return
    limits = "(has(c.resources) && has(c.resources.limits) ? c.resources.limits : {})"
    amount = "quantity(string(c.resources.limits[k]))"
    ours = f"{limits}.filter(k, ({names_ours(knowledge.families)}) && {amount}.isInteger())"
    expression = f"object.spec.containers.map(c, {ours}.map(k, {amount}.asInteger()).sum()).sum()"
    wants = f"at most {rules.max_gpus_per_pod} GPUs per pod"
    yield Validation(f"{_CREATED}{expression} <= {rules.max_gpus_per_pod}", f"too many GPUs: wants {wants}")


def devices_asked_for(rules: AdmissionRules, knowledge: Knowledge) -> Iterator[Validation]:
    """F12: where the policy would take it away, nobody does while we are down, so that it is refused."""
    if rules.visible_devices == "Leave":
        return
    table = knowledge.toolkit_env.values()
    taken = " || ".join(taken_by(each) for each in table if not (each.beside_gpu or each.hidden_by))
    yield Validation(
        f"variables.guarded.all(c, !has(c.env) || !c.env.exists(e, {taken}))",
        f"{VISIBLE} or its like, or control of GPUs: wants no such setting, ask for the GPU in limits",
    )
    beside = " || ".join(taken_by(each) for each in table if each.beside_gpu and not each.hidden_by)
    yield Validation(
        f"variables.guarded.all(c, !has(c.env) || {asks_for_some(knowledge.families)} || !c.env.exists(e, {beside}))",
        "devices beside a GPU: wants no such setting, ask for the GPU in limits",
    )
    for each in table:
        if each.hidden_by:
            yield Validation(
                f"variables.guarded.all(c, !has(c.env) || !c.env.exists(e, {taken_by(each)})"
                f" || {asks_for_some(knowledge.families)} || {hidden(each, knowledge.toolkit_env)})",
                f"{each.name} without {each.hidden_by} gives every GPU: wants {each.hidden_by}: void beside it",
            )
    mounts = f"c.volumeMounts.all(m, !m.mountPath.contains({quoted(DEVICE_FOLDER)}))"
    yield Validation(
        f"variables.guarded.all(c, !has(c.volumeMounts) || {mounts})",
        f"a mount below {DEVICE_FOLDER}: wants no such mount, ask for the GPU in limits",
    )
    annotations = "object.metadata.annotations"
    makers = " || ".join(
        f"{annotations}[k].contains({quoted(f'{family.name}.com/')})" for family in knowledge.families.all
    )
    named = f"{annotations}.all(k, !k.startsWith({quoted(CDI)}) || !({makers}))"
    yield Validation(
        f"{_CREATED}!has({annotations}) || {named}",
        f"an annotation {CDI}*: wants no such annotation, ask for the GPU in limits",
    )


def unprivileged(rules: AdmissionRules, knowledge: Knowledge) -> Iterator[Validation]:
    """F14: of a pod that names a GPU no container may be privileged."""
    if rules.privileged != "Deny":
        return
    asks = f"variables.guarded.exists(c, {_amounts()}.exists(m, m.exists(k, {names_ours(knowledge.families)})))"
    yield Validation(
        f"{_CREATED}!({asks}) || variables.guarded.all(c, !({_PRIVILEGED}))",
        "privileged in a GPU pod: wants privileged: false",
    )


def scheduled_by_us(rules: AdmissionRules, _knowledge: Knowledge) -> Iterator[Validation]:
    """F13: a node of one's own choice, or another scheduler than the policy's."""
    if rules.bypass != "Deny":
        return
    yield Validation(
        f"{_CREATED}!has(object.spec.nodeName) || object.spec.nodeName == ''",
        "spec.nodeName is set: wants none, so that the scheduler chooses",
    )
    if rules.scheduler_name:
        wanted = quoted(rules.scheduler_name)
        yield Validation(
            f"{_CREATED}object.spec.schedulerName == {wanted}",
            f"another scheduler than the policy's: wants schedulerName {rules.scheduler_name}",
        )


def _amounts() -> str:
    """List the limits and the requests of a container c, as maps m."""
    both = (f"(has(c.resources.{kind}) ? [c.resources.{kind}] : [])" for kind in ("limits", "requests"))
    return f"(has(c.resources) ? {' + '.join(both)} : [])"


def devices_not_mounted(rules: AdmissionRules, _knowledge: Knowledge) -> Iterator[Validation]:
    """F12: device files of GPUs as a volume."""
    if rules.visible_devices != "Leave":
        yield Validation(_no_volume(GPU_FILES), "a hostPath of GPUs: wants no such volume, ask for the GPU in limits")


def node_not_reached(rules: AdmissionRules, knowledge: Knowledge) -> Iterator[Validation]:
    """F14: a pod that asks for no GPU reaches all of a node's; one that asks is judged by `unprivileged`."""
    if rules.privileged != "Deny":
        return
    asks = f"variables.guarded.exists(c, {_amounts()}.exists(m, m.exists(k, {names_ours(knowledge.families)})))"
    yield Validation(
        f"({asks}) || variables.guarded.all(c, !({_PRIVILEGED}))",
        "privileged, sees every GPU of its node: wants privileged: false",
    )
    yield Validation(_no_volume(ALL_FILES), "a hostPath with every device in it: wants no such volume")


def _no_volume(pattern: str) -> str:
    volumes = "object.spec.volumes"
    found = f"has(v.hostPath) && v.hostPath.path.matches({quoted(pattern)})"
    return f"{_CREATED}!has({volumes}) || !{volumes}.exists(v, {found})"


CHECKS: tuple[Maker, ...] = (not_too_many, devices_asked_for, unprivileged, scheduled_by_us)


DEVICE_CHECKS: tuple[Maker, ...] = (devices_not_mounted, node_not_reached)
"""Of pods that need not concern GPUs otherwise: a policy of their own, which fails open as their webhook does."""


def _checks(makers: tuple[Maker, ...], rules: AdmissionRules, knowledge: Knowledge) -> Iterator[Validation]:
    for maker in makers:
        yield from maker(rules, knowledge)


def fallback_policies(enforced: AdmissionRules, warned: AdmissionRules, knowledge: Knowledge) -> list[dict[str, Any]]:
    """Write the policies and their bindings: what is enforced denies, what only Warn policies say warns."""
    found = []
    for name, makers, conditions, fails in (
        (NAME, CHECKS, match_conditions(knowledge), "Fail"),
        (f"{NAME}-devices", DEVICE_CHECKS, device_conditions(knowledge), "Ignore"),
    ):
        not_exempt = {"name": "not-exempt", "expression": _not_exempt(knowledge.families)}
        denying = list(_checks(makers, enforced, knowledge))
        warning = [check for check in _checks(makers, warned, knowledge) if check not in denying]
        for suffix, checks, action in (("", denying, "Deny"), ("-warn", warning, "Warn")):
            if checks:
                found += _pair(f"{name}{suffix}", checks, action, [*conditions, not_exempt], fails)
    return found


def _pair(
    name: str, checks: list[Validation], action: str, conditions: list[dict[str, str]], fails: str
) -> list[dict[str, Any]]:
    version = "admissionregistration.k8s.io/v1"
    validations = [{"expression": each.expression, "message": f"gpu-usher: {each.message}"} for each in checks]
    spec = {
        "failurePolicy": fails,
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
    """Ask whether the namespace is none of the vendors' own."""
    return f"!(request.namespace in [{', '.join(map(quoted, families.infrastructure_namespaces))}])"
