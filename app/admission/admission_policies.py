# SPDX-License-Identifier: Apache-2.0
"""Admission policies in CEL, which the API server evaluates itself, whether or not gpu-usher is up.

`guard_policies` writes what only the API server can do while no replica answers: it refuses pods that take devices
which they did not request, or that are privileged, and copies requests of GPUs to limits, without which the API server
refuses the pod. Each is a row of GUARDS. A guard applies to every pod: it is left out where a policy or an exception
says less for the pods that it selects, so that none is stricter than admission. Every other rule is left to gpu-usher,
since it needs nodes, annotations or claims, which CEL does not know. In the CEL `c` is a container, `e` an entry of
its env, `k` the name of a resource, `i` an index. A list of one element binds a name to a value: CEL has no other way.
MutatingAdmissionPolicy is v1 from Kubernetes 1.36 on (KEP-3962).

`exemption_policy` guards the labels and names that exempt a namespace from review (`is_exempt` in reviewed_pod.py).
Without it a tenant who may create or label namespaces could bypass every check, and a webhook on namespaces could block
the cluster. It asks RBAC for the verb `create` on the cluster-scoped resource `exemptions.gpu-usher.io`, which no API
server serves. `cluster-admin` has that right, whichever group a cloud's administrators are in; a Role, even with
wildcards, does not.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.admission.device_guard import ALL_FILES, CDI, DEVICE_FOLDER, GPU_FILES, VISIBLE
from app.admission.match_conditions import AMOUNTS, device_conditions, is_gpu_resource, match_conditions, quoted
from app.admission.reviewed_pod import EXEMPT_LABELS
from app.knowledge.container_toolkit import EXPANDED, ToolkitEnv, ToolkitVariable
from app.knowledge.gpu_resources import Families
from app.knowledge.tables import Knowledge
from app.kube.pods import PREFIX, read_pod
from app.policy.annotations import WORKLOAD_CLASS_NAME
from app.policy.compiled import EVERY_POD, CompiledPolicy, PolicySet
from app.policy.match import ruling_for
from app.policy.merge_admission import AdmissionRules
from app.values.reasons import Code

FALLBACK_NAME = "gpu-usher-fallback"
VERSION = "admissionregistration.k8s.io/v1"
AMOUNT_MAPS = "(has(c.resources) ? {} : [])".format(
    " + ".join(f"(has(c.resources.{kind}) ? [c.resources.{kind}] : [])" for kind in AMOUNTS)
)
"""CEL: the limits and the requests of a container c, as maps m."""
GUARDED = (
    "has(request.subResource) && request.subResource == 'ephemeralcontainers'"
    " ? (has(object.spec.ephemeralContainers) ? object.spec.ephemeralContainers : [])"
    ".filter(c, oldObject == null || !has(oldObject.spec.ephemeralContainers)"
    " || !oldObject.spec.ephemeralContainers.exists(o, o.name == c.name))"
    " : object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])"
)
"""CEL: the containers that the request adds: those of a new pod, or the new ephemeral ones of a running pod."""
REMOVE = Code.VisibleDevicesForbidden.remedy
_CREATED = "request.operation != 'CREATE' || "
Validation = tuple[str, str]
"""CEL that is true for an allowed object, and the message of the denial."""
Validations = Callable[[Knowledge], Iterator[Validation]]


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


def _asks_for_gpu(families: Families) -> str:
    """Write CEL that is true where a container c requests a GPU, by a resource or by any claim."""
    amount = "quantity(string(c.resources.limits[k])).isGreaterThan(quantity('0'))"
    gpu = is_gpu_resource(families, passthrough=False)
    limits = f"(has(c.resources.limits) && c.resources.limits.exists(k, ({gpu}) && {amount}))"
    return f"(has(c.resources) && ({limits} || (has(c.resources.claims) && size(c.resources.claims) > 0)))"


def devices_requested(knowledge: Knowledge) -> Iterator[Validation]:
    """Refuse variables, mounts and annotations that give devices; nothing strips them while gpu-usher is down."""
    table, has_gpu = knowledge.toolkit_env, _asks_for_gpu(knowledge.families)
    always = " || ".join(_gives_devices(row) for row in table.values() if not (row.beside_gpu or row.hidden_by))
    beside = " || ".join(_gives_devices(row) for row in table.values() if row.beside_gpu and not row.hidden_by)
    of_all = "variables.guarded.all(c, !has(c.env) || "
    yield (
        f"{of_all}!c.env.exists(e, {always}))",
        f"sets {VISIBLE} or a like variable, which gives GPUs that were not requested; {REMOVE}",
    )
    yield (
        f"{of_all}{has_gpu} || !c.env.exists(e, {beside}))",
        f"sets a variable that gives devices beside the GPU that is requested; {REMOVE}",
    )
    for row in table.values():
        if hiding := row.hidden_by:
            yield (
                f"{of_all}!c.env.exists(e, {_gives_devices(row)}) || {has_gpu} || {_made_harmless(row, table)})",
                f"sets {row.name} without {hiding}, which gives every GPU; set {hiding}: void beside it",
            )
    mounts = f"c.volumeMounts.all(m, !m.mountPath.contains({quoted(DEVICE_FOLDER)}))"
    yield (
        f"variables.guarded.all(c, !has(c.volumeMounts) || {mounts})",
        f"has a mount below {DEVICE_FOLDER}, which gives GPUs that were not requested; {REMOVE}",
    )
    held = "object.metadata.annotations"
    vendors = " || ".join(f"{held}[k].contains({quoted(f'{family.name}.com/')})" for family in knowledge.families.all)
    yield (
        f"{_CREATED}!has({held}) || {held}.all(k, !k.startsWith({quoted(CDI)}) || !({vendors}))",
        f"has an annotation {CDI}*, which gives GPUs that were not requested; {REMOVE}",
    )


def device_files_not_mounted(_knowledge: Knowledge) -> Iterator[Validation]:
    """Refuse GPU device files as a hostPath volume."""
    yield _no_volume(GPU_FILES), f"has a hostPath of GPUs, which the pod did not request; {REMOVE}"


def unprivileged(knowledge: Knowledge) -> Iterator[Validation]:
    """Refuse a privileged container in a new pod that names a GPU."""
    yield _not_privileged(f"{_CREATED}!({_names_gpu(knowledge)})")


def node_not_reached(knowledge: Knowledge) -> Iterator[Validation]:
    """Refuse a privileged pod that names no GPU, which reaches every GPU of the node, and such a hostPath."""
    yield _not_privileged(f"({_names_gpu(knowledge)})")
    yield _no_volume(ALL_FILES), "has a hostPath that reaches every GPU of the node; remove it"


def _names_gpu(knowledge: Knowledge) -> str:
    """Write CEL that is true where a container c names a GPU resource k in its limits or requests, maps m."""
    return f"variables.guarded.exists(c, {AMOUNT_MAPS}.exists(m, m.exists(k, {is_gpu_resource(knowledge.families)})))"


def _not_privileged(unless: str) -> Validation:
    privileged = "has(c.securityContext) && has(c.securityContext.privileged) && c.securityContext.privileged"
    return (
        f"{unless} || variables.guarded.all(c, !({privileged}))",
        "is privileged, which lets it use every GPU of its node; set privileged: false",
    )


def _no_volume(pattern: str) -> str:
    volumes, path = "object.spec.volumes", f"v.hostPath.path.matches({quoted(pattern)})"
    return f"{_CREATED}!has({volumes}) || !{volumes}.exists(v, has(v.hostPath) && {path})"


@dataclass(frozen=True, slots=True)
class Guard:
    """A rule that the API server keeps: the policy's field, when it is on, and what is refused.

    `of_gpu_pods` are evaluated for pods that concern GPUs, `of_others` for pods that reach a node's devices otherwise.
    """

    field: str
    is_on: Callable[[AdmissionRules], bool]
    of_gpu_pods: Validations | None = None
    of_others: Validations | None = None


COPY = Guard("extendedResources.requestsOnly", lambda rules: rules.requests_only == "CopyToLimits")
GUARDS = (
    Guard(
        "visibleDevices", lambda rules: rules.visible_devices != "Leave", devices_requested, device_files_not_mounted
    ),
    Guard("privileged", lambda rules: rules.privileged == "Deny", unprivileged, node_not_reached),
    COPY,
)
_ANY_POD = {"metadata": {"name": "any"}, "spec": {"containers": [{"name": "any"}]}}


def guards_in_force(policies: PolicySet, knowledge: Knowledge) -> dict[Guard, str]:
    """Return the guards that are enforced for a pod of no selector, each with the policy that says less, or "".

    A policy that selects pods and says less, by itself or by an exception, leaves the guard to gpu-usher for all pods.
    """
    rules = _rules(policies, {}, knowledge)
    guards = dict.fromkeys((guard for guard in GUARDS if guard.is_on(rules)), "")
    for name, milder in _rules_of_selected_pods(policies, knowledge):
        guards |= {guard: guards[guard] or name for guard in guards if not guard.is_on(milder)}
    return guards


def _rules(policies: PolicySet, annotations: Mapping[str, str], knowledge: Knowledge) -> AdmissionRules:
    document = {**_ANY_POD, "metadata": {"name": "any", "annotations": dict(annotations)}}
    return ruling_for(read_pod(document), {}, policies, knowledge).enforced


def _rules_of_selected_pods(policies: PolicySet, knowledge: Knowledge) -> Iterator[tuple[str, AdmissionRules]]:
    """Yield (policy, rules) of the pods that each policy selects, of those that it does not, and of its exceptions."""

    def rules(policy: CompiledPolicy, changed: CompiledPolicy | None) -> AdmissionRules:
        others = (other if other.name != policy.name else changed for other in policies.policies)
        is_fallback = policies.fallback is not None and policies.fallback.name == policy.name
        chosen = replace(
            policies, policies=tuple(filter(None, others)), fallback=changed if is_fallback else policies.fallback
        )
        classes = sorted(policy.workload_classes or ())
        return _rules(chosen, {PREFIX + WORKLOAD_CLASS_NAME: classes[0]} if classes else {}, knowledge)

    for policy in (*policies.policies, *((policies.fallback,) if policies.fallback else ())):
        if policy.match.namespace or policy.match.pod or policy.workload_classes is not None:
            yield policy.name, rules(policy, replace(policy, match=EVERY_POD))
            yield policy.name, rules(policy, None)
        for _, off in policy.exceptions:
            yield policy.name, rules(policy, replace(policy, match=EVERY_POD, exceptions=((EVERY_POD, off),)))


def guard_policies(guards: Mapping[Guard, str], knowledge: Knowledge) -> list[dict[str, Any]]:
    """Write the policies and their bindings for the guards to which no policy makes an exception."""
    kept = [guard for guard, milder in guards.items() if not milder]
    gpu_pods = [made for guard in kept if guard.of_gpu_pods for made in guard.of_gpu_pods(knowledge)]
    others = [made for guard in kept if guard.of_others for made in guard.of_others(knowledge)]
    conditions = match_conditions(knowledge)
    objects = []
    for suffix, validations, concerned, failure_policy in (
        ("", gpu_pods, conditions, "Fail"),
        ("-devices", others, device_conditions(knowledge), "Ignore"),  # as their webhook
    ):
        if validations:
            objects += _policy_and_binding(
                "ValidatingAdmissionPolicy",
                suffix,
                (("", "CREATE", ("pods",)), ("", "UPDATE", ("pods/ephemeralcontainers",))),
                [*concerned, _not_exempt(knowledge.families)],
                {"guarded": GUARDED},
                {
                    "failurePolicy": failure_policy,
                    "validations": [
                        {"expression": expression, "message": f"gpu-usher: {message}"}
                        for expression, message in validations
                    ],
                },
                {"validationActions": ["Deny"]},
            )
    return [*(_copying_policies(knowledge) if COPY in kept else ()), *objects]


def _copying_policies(knowledge: Knowledge) -> Iterator[dict[str, Any]]:
    """Write the policies that copy requests of GPUs to limits, in new pods and in templates of new workloads."""
    for suffix, resources, template, path in (
        ("", (("", "CREATE", ("pods",)),), "object", "''"),
        (
            "-templates",
            (
                ("apps", "CREATE", ("deployments", "statefulsets", "daemonsets", "replicasets")),
                ("batch", "CREATE", ("jobs", "cronjobs")),
            ),
            "has(object.spec.jobTemplate) ? object.spec.jobTemplate.spec.template : object.spec.template",
            "has(object.spec.jobTemplate) ? '/spec/jobTemplate/spec/template' : '/spec/template'",
        ),
    ):
        patches = " + ".join(f"({_copied(name)})" for name in ("initContainers", "containers"))
        yield from _policy_and_binding(
            "MutatingAdmissionPolicy",
            suffix,
            resources,
            [*match_conditions(knowledge), _not_exempt(knowledge.families)],
            {"template": template, "path": path, "gpus": _gpus_without_limits(knowledge.families)},
            {
                "failurePolicy": "Ignore",
                "reinvocationPolicy": "IfNeeded",
                "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patches}}],
            },
            {},
        )


def _gpus_without_limits(families: Families) -> str:
    """Write CEL that lists the names of requested GPU resources, zero amounts and implicit classes left out."""
    lists = " + ".join(
        f"(has(variables.template.spec.{name}) ? variables.template.spec.{name} : [])"
        for name in ("initContainers", "containers")
    )
    gpu = f"({is_gpu_resource(families, passthrough=False)}) && !k.startsWith({quoted(families.device_class_prefix)})"
    nonzero = "quantity(string(m[k])).compareTo(quantity('0')) != 0"
    named = f"({lists}).map(c, {AMOUNT_MAPS}.map(m, m.filter(k, {gpu} && {nonzero})).flatten()).flatten()"
    return f"{named}.distinct().sort()"


def _copied(name: str) -> str:
    """Write CEL that yields the JSONPatch of a list of containers, whose paths in the object are `at`."""
    containers, limits = f"variables.template.spec.{name}", "at + '/resources/limits"
    requested = "has(c.resources) && has(c.resources.requests) && k in c.resources.requests"
    limited = "has(c.resources.limits) && k in c.resources.limits"
    lacking = f"variables.gpus.filter(k, {requested} && !({limited}))"
    begun = f"[JSONPatch{{op: 'add', path: {limits}', value: {{}}}}]"
    copied = f"JSONPatch{{op: 'add', path: {limits}/' + jsonpatch.escapeKey(k), value: c.resources.requests[k]}}"
    patches = f"(size({lacking}) > 0 && !has(c.resources.limits) ? {begun} : []) + {lacking}.map(k, {copied})"
    at = f"[variables.path + '/spec/{name}/' + string(i)]"
    each = f"[{containers}[i]].map(c, {at}.map(at, {patches}).flatten()).flatten()"
    return f"has({containers}) ? lists.range(size({containers})).map(i, {each}).flatten() : []"


def _policy_and_binding(
    kind: str,
    suffix: str,
    resources: tuple[tuple[str, str, tuple[str, ...]], ...],
    conditions: list[dict[str, str]],
    variables: Mapping[str, str],
    fields: Mapping[str, Any],
    binding: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Write a policy of a kind, with its further fields, and the binding that puts it in force."""
    name, exempt = (
        FALLBACK_NAME + suffix,
        [{"key": key, "operator": "NotIn", "values": ["true"]} for key in EXEMPT_LABELS],
    )
    spec = {
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "namespaceSelector": {"matchExpressions": exempt},
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
