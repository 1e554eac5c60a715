# SPDX-License-Identifier: Apache-2.0
"""The MutatingAdmissionPolicies: the part of our mutation that CEL can express, which the API server does itself.

Each builder writes CEL for one mutator, from the same rules and tables. The API server evaluates these policies before
it calls mutating webhooks (pkg/kubeapiserver/options/plugins.go), so that gpu-usher finds nothing left to change in
what they have done. LEFT_OUT names each rule that no policy for the API server has, with the cause. In the CEL `c` is
a container, `k` the name of a resource, `i` an index. A list of one element binds a name to a value: CEL has no other
way. MutatingAdmissionPolicy is v1 from Kubernetes 1.36 on (KEP-3962).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from app.admission.device_guard import CDI, DEVICE_FOLDER, DEVICE_MOUNTS, HIDDEN, VISIBLE
from app.admission.fallback_scope import (
    AMOUNT_MAPS,
    FALLBACK_NAME,
    FallbackScope,
    container_asks_for_gpu,
    gives_devices,
    made_harmless,
    not_exempt,
    policy_and_binding,
)
from app.admission.match_conditions import AMOUNTS, is_gpu_resource, match_conditions, quoted
from app.admission.review import OUR_SCHEDULERS
from app.knowledge.gpu_resources import Families
from app.knowledge.tables import Knowledge
from app.policy.merge_admission import AdmissionRules
from app.policy.schema_admission import AUTO

LISTS = ("initContainers", "containers")
"""The containers of a new pod; ephemeral ones come later."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rules that no policy for the API server has, and why; `fields` are those of AdmissionRules, `name` a policy's."""

    name: str
    fields: tuple[str, ...]
    cause: str
    applies: Callable[[AdmissionRules], bool] | None = None

    def is_in_force(self, rules: AdmissionRules) -> bool:
        """Tell whether the rules say anything that is left out."""
        if self.applies is not None:
            return self.applies(rules)
        return any(getattr(rules, field) != getattr(AdmissionRules(), field) for field in self.fields)


LEFT_OUT: tuple[LeftOut, ...] = (
    LeftOut(
        "tolerations.fromNodeTaints",
        ("from_node_taints", "toleration_keys"),
        "CEL does not know nodes; only taints whose key is the resource itself are tolerated, whatever their value",
    ),
    LeftOut(
        "runtimeClassName",
        ("runtime_class_name",),
        "Auto chooses by the runtime handlers of nodes, which CEL does not know",
        lambda rules: rules.runtime_class_name == AUTO,
    ),
    LeftOut("affinity", ("affinity_mode", "affinity_keys"), "it is made of annotations and of the labels of nodes"),
    LeftOut("defaults", ("defaults",), "they multiply quantities by GPUs, which CEL cannot"),
    LeftOut("rightSizing", ("right_sizing",), "it chooses among the slices of nodes"),
    LeftOut("migFallback", ("mig_fallback",), "it chooses among the slices of nodes"),
    LeftOut("convertToClaims", ("convert_to_claims",), "CEL does not know ResourceClaimTemplates"),
    LeftOut("queuedTemplates", ("queued_templates",), "what it writes is made of the labels and taints of nodes"),
    LeftOut("sharedReplicas", ("shared_replicas",), "whether a unit is a share is a fact of nodes"),
    LeftOut("perGPU", ("per_gpu",), "it divides what the pod as a whole requests, which CEL cannot"),
    LeftOut("idle", ("idle",), "CEL does not know the use of GPUs"),
)
BY_THE_API_SERVER = ("fractional",)
"""Rules that the API server has itself, for every extended resource."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One mutation: CEL that yields a list of JSONPatch, and the fields of AdmissionRules by which it is made."""

    expression: str
    fields: tuple[str, ...]


MutationBuilder = Callable[[AdmissionRules, Knowledge], Iterator[Mutation]]


def _patch(operation: str, path: str, value: str = "") -> str:
    return f"JSONPatch{{op: '{operation}', path: {path}{f', value: {value}' if value else ''}}}"


def _of_each_container(root: str, path: str, operations: str) -> str:
    """Write CEL that collects the operations of every container c, whose path in the object is `at`."""
    lists = (
        f"(has({root}.spec.{name}) ? lists.range(size({root}.spec.{name})).map(i, [{root}.spec.{name}[i]].map(c, "
        f"[{path} + '/spec/{name}/' + string(i)].map(at, {operations}).flatten()).flatten()).flatten() : [])"
        for name in LISTS
    )
    return " + ".join(lists)


def repair_resources(rules: AdmissionRules, root: str, path: str) -> Iterator[Mutation]:
    """Copy requests to limits that lack, and limits to requests that differ, as the mutator of this name does."""
    has_limit = "(has(c.resources.limits) && k in c.resources.limits)"
    asked = "has(c.resources) && has(c.resources.requests) && k in c.resources.requests"
    if rules.requests_only == "CopyToLimits":
        lacking = f"variables.gpus.filter(k, {asked} && !{has_limit})"
        limits = "at + '/resources/limits"
        made = f"(size({lacking}) > 0 && !has(c.resources.limits) ? [{_patch('add', limits + chr(39), '{}')}] : [])"
        copied = _patch("add", f"{limits}/' + jsonpatch.escapeKey(k)", "c.resources.requests[k]")
        operations = f"{made} + {lacking}.map(k, {copied})"
        yield Mutation(_of_each_container(root, path, operations), ("requests_only",))
    if rules.mismatch == "UseLimits":
        amounts = ("quantity(string(c.resources.requests[k]))", "quantity(string(c.resources.limits[k]))")
        differing = f"variables.gpus.filter(k, {asked} && {has_limit} && {amounts[0]}.compareTo({amounts[1]}) != 0)"
        copied = _patch("replace", "at + '/resources/requests/' + jsonpatch.escapeKey(k)", "c.resources.limits[k]")
        yield Mutation(_of_each_container(root, path, f"{differing}.map(k, {copied})"), ("mismatch",))


def repair_pod(rules: AdmissionRules, _knowledge: Knowledge) -> Iterator[Mutation]:
    """Repair the amounts of a pod."""
    yield from repair_resources(rules, "object", "''")


def repair_template(rules: AdmissionRules, _knowledge: Knowledge) -> Iterator[Mutation]:
    """Repair the amounts of a new workload's template, which the API server judges as it judges a pod's."""
    yield from repair_resources(rules, "variables.template", "variables.path")


def guard_devices(rules: AdmissionRules, knowledge: Knowledge) -> Iterator[Mutation]:
    """Remove what takes devices (Strip), or hide them (Void), as guard_devices and hide_devices do.

    A mount path with `..` is left to the validating policy, which refuses the pod.
    """
    mode = rules.visible_devices
    if mode not in ("Strip", "Void"):
        return
    table, has_gpu = knowledge.toolkit_env, container_asks_for_gpu(knowledge.families)
    hidden = "{" + ", ".join(f"{quoted(key)}: {quoted(value)}" for key, value in HIDDEN.items()) + "}"
    rows = [row for row in table.values() if not row.hidden_by]
    always = " || ".join(gives_devices(row) for row in rows if not row.beside_gpu)
    beside = " || ".join(gives_devices(row) for row in rows if row.beside_gpu)
    takes = f"({always} || (!{has_gpu} && ({beside})))"
    env = "(has(c.env) ? c.env : [])"
    if mode == "Strip":
        kept = f"{env}.filter(e, !{takes})"
        legacy = " || ".join(
            f"({env}.exists(e, {gives_devices(row)}) && !{made_harmless(row, table)})"
            for row in table.values()
            if row.hidden_by
        )
        added = f"(!{has_gpu} && ({legacy}) ? [{hidden}] : [])"
    else:
        voided = f"(e.name == {quoted(VISIBLE)} && {takes} ? {hidden} : e)"
        kept = f"{env}.filter(e, !{takes} || (!{has_gpu} && e.name == {quoted(VISIBLE)})).map(e, {voided})"
        added = f"(!{has_gpu} && !{env}.exists(e, e.name == {quoted(VISIBLE)}) ? [{hidden}] : [])"
    changed = f"({env}.exists(e, {takes}) || size({added}) > 0)"
    environment = f"({changed} ? [{_patch('add', 'at + ' + quoted('/env'), f'{kept} + {added}')}] : [])"
    mounted = f"m.mountPath.matches({quoted(MOUNTED)}) && !m.mountPath.contains('..')"
    mounts = _patch("replace", "at + '/volumeMounts'", f"c.volumeMounts.filter(m, !({mounted}))")
    volumes = f"(has(c.volumeMounts) && c.volumeMounts.exists(m, {mounted}) ? [{mounts}] : [])"
    yield Mutation(_of_each_container("object", "''", f"{environment} + {volumes}"), ("visible_devices",))
    annotations = "object.metadata.annotations"
    vendors = " || ".join(
        f"{annotations}[k].contains({quoted(f'{family.name}.com/')})" for family in knowledge.families.all
    )
    removed = _patch("remove", "'/metadata/annotations/' + jsonpatch.escapeKey(k)")
    named = f"{annotations}.filter(k, k.startsWith({quoted(CDI)}) && ({vendors})).map(k, {removed})"
    yield Mutation(f"(has({annotations}) ? {named} : [])", ("visible_devices",))


MOUNTED = "^(/*[.])*/*" + "(/+[.])*/+".join(DEVICE_MOUNTS.strip("/").split("/"))
"""RE2: the mount paths without `..` that _clean_path makes begin with DEVICE_MOUNTS."""
assert MOUNTED.endswith(DEVICE_FOLDER)


def set_scheduler(rules: AdmissionRules, _knowledge: Knowledge) -> Iterator[Mutation]:
    """Set the schedulerName of the policy, as the mutator does."""
    if rules.scheduler_name is None:
        return
    name, present = quoted(rules.scheduler_name), "object.spec.schedulerName"
    replaceable = "" if "scheduler_name" in rules.override else f"{present} == 'default-scheduler' && "
    test = f"{_REPAIRED} && {replaceable}{present} != {name}"
    operation = _patch("replace", "'/spec/schedulerName'", name)
    yield Mutation(f"({test} ? [{operation}] : [])", ("scheduler_name", "override"))


def set_priority_class(rules: AdmissionRules, _knowledge: Knowledge) -> Iterator[Mutation]:
    """Set priorityClassName, and remove the priority that was computed without it, as the mutator does."""
    if rules.priority_class_name is None:
        return
    name, present = quoted(rules.priority_class_name), "object.spec.priorityClassName"
    lacking = f"(!has({present}) || {present} == '')"
    replaceable = f"(!has({present}) || {present} != {name})" if "priority_class_name" in rules.override else lacking
    computed = " + ".join(
        f"(has(object.spec.{key}) ? [{_patch('remove', quoted(f'/spec/{key}'))}] : [])"
        for key in ("priority", "preemptionPolicy")
    )
    operation = _patch("add", "'/spec/priorityClassName'", name)
    yield Mutation(
        f"({_REPAIRED} && {replaceable} ? {computed} + [{operation}] : [])", ("priority_class_name", "override")
    )


def equalize_memory(rules: AdmissionRules, _knowledge: Knowledge) -> Iterator[Mutation]:
    """Make memory requests and limits equal, as the mutator does."""
    if rules.memory_requests != "UseLimits":
        return
    sides = {side: f"has(c.resources) && has(c.resources.{side}) && 'memory' in c.resources.{side}" for side in AMOUNTS}
    amounts = [f"quantity(string(c.resources.{side}['memory']))" for side in AMOUNTS]
    differ = f"!({sides['requests']}) || {amounts[0]}.compareTo({amounts[1]}) != 0"
    begun = _patch("add", "at + '/resources/limits'", "{}")
    to_requests = _patch("add", "at + '/resources/requests/memory'", "c.resources.limits['memory']")
    to_limits = _patch("add", "at + '/resources/limits/memory'", "c.resources.requests['memory']")
    limited = f"({differ} ? [{to_requests}] : [])"
    unlimited = f"({sides['requests']} ? (has(c.resources.limits) ? [] : [{begun}]) + [{to_limits}] : [])"
    operations = _of_each_container("object", "''", f"({sides['limits']} ? {limited} : {unlimited})")
    yield Mutation(f"({_REPAIRED} ? {operations} : [])", ("memory_requests",))


def set_runtime_class(rules: AdmissionRules, knowledge: Knowledge) -> Iterator[Mutation]:
    """Set the runtime class that the policy names, if it exists, as the mutator does.

    The class is the policy's parameter: without it the API server skips the policy. Which nodes have its handler is not
    known here. A pod with any claim gets none.
    """
    name = rules.runtime_class_name
    if name is None or name == AUTO:
        return
    present, overhead = "object.spec.runtimeClassName", "has(object.spec.overhead)"
    absent = f"(!has({present}) || {present} == '')"
    if "runtime_class_name" in rules.override:
        absent = f"({absent} || ({present} != {quoted(name)} && !{overhead}))"
    owners = [family for family in knowledge.families.all if name.startswith(family.name)]
    suits = " || ".join(f"variables.wholes.exists(k, k == {quoted(family.whole)})" for family in owners)
    claims = "(has(object.spec.resourceClaims) && size(object.spec.resourceClaims) > 0)"
    wanted = "(has(params.scheduling) && has(params.scheduling.nodeSelector) ? params.scheduling.nodeSelector : {})"
    chosen = "(has(object.spec.nodeSelector) ? object.spec.nodeSelector : {})"
    agrees = f"{wanted}.all(k, !(k in {chosen}) || {chosen}[k] == {wanted}[k])"
    unclaimed = f"size(variables.gpus) > 0 && size(variables.classes) == 0 && !{claims}"
    tests = (_REPAIRED, absent, unclaimed, agrees, *((f"({suits})",) if suits else ()))
    operation = _patch("add", "'/spec/runtimeClassName'", quoted(name))
    yield Mutation(f"({' && '.join(tests)} ? [{operation}] : [])", ("runtime_class_name", "override"))


def add_tolerations(rules: AdmissionRules, _knowledge: Knowledge) -> Iterator[Mutation]:
    """Tolerate the taints whose key is the requested resource or the vendor's whole GPU, as the mutator does where no
    node that fits has one."""
    if not rules.tolerate:
        return
    same = " && ".join(
        f"(!has(t.{field}) || t.{field} == '' || t.{field} == {value})"
        for field, value in (("effect", "'NoSchedule'"), ("key", "k"))
    )
    present = f"(has({_TOLERATIONS}) && {_TOLERATIONS}.exists(t, has(t.operator) && t.operator == 'Exists' && {same}))"
    lacking = f"(variables.wholes + variables.gpus + variables.elsewhere).distinct().filter(k, !{present})"
    added = "{'key': string(k), 'operator': 'Exists', 'effect': 'NoSchedule'}"
    appended = f"{lacking}.map(k, {_patch('add', quoted('/spec/tolerations/-'), added)})"
    begun = f"(has({_TOLERATIONS}) ? [] : [{_patch('add', quoted('/spec/tolerations'), '[]')}])"
    yield Mutation(f"(variables.ours && size({lacking}) > 0 ? {begun} + {appended} : [])", ("tolerate",))


_TOLERATIONS = "object.spec.tolerations"
_REPAIRED = "variables.ours && size(variables.gpus + variables.classes) > 0"
"""CEL: the pod requests a GPU, and its scheduler is one that calls gpu-usher, or the default one."""

POD_MUTATIONS: tuple[MutationBuilder, ...] = (
    repair_pod,
    guard_devices,
    set_scheduler,
    set_priority_class,
    equalize_memory,
    add_tolerations,
)
"""In the order of MUTATORS."""


def _variables(root: str, knowledge: Knowledge, schedulers: frozenset[str]) -> dict[str, str]:
    """Write the variables: the names of what is requested, the whole GPUs of its vendors, whether we complete the pod.

    `gpus`, `classes` and `elsewhere` are sorted names of resources: of GPUs, of DeviceClasses of the vendors, and of
    those that others give; `wholes` has the name of the vendor's whole GPU for each of them.
    """
    families = knowledge.families
    all_containers = " + ".join(f"(has({root}.spec.{name}) ? {root}.spec.{name} : [])" for name in LISTS)
    nonzero = "quantity(string(m[k])).compareTo(quantity('0')) != 0"
    named = f"({all_containers}).map(c, {AMOUNT_MAPS}.map(m, m.filter(k, {{}} && {nonzero})).flatten()).flatten()"
    prefix = families.device_class_prefix
    gpu, passed = is_gpu_resource(families, passthrough=False), is_gpu_resource(families)
    implicit = f"k.startsWith({quoted(prefix)})"
    named_all = "variables.gpus + variables.elsewhere + variables.classes"
    return {
        "gpus": named.format(f"({gpu}) && !{implicit}") + ".distinct().sort()",
        "classes": named.format(f"({gpu}) && {implicit}") + ".distinct().sort()",
        "elsewhere": named.format(f"!({gpu}) && ({passed})") + ".distinct().sort()",
        "wholes": f"({named_all}).map(k, {_whole_of(families)}).distinct()",
        "ours": f"{root}.spec.schedulerName in [{', '.join(map(quoted, sorted(schedulers)))}]",
    }


def _whole_of(families: Families) -> str:
    """Write CEL that gives the name of the whole GPU of the family of a resource k."""
    chain = "k"
    for family in families.all:
        only = Families((family,), ())
        chain = f"(({is_gpu_resource(only)}) ? {quoted(family.whole)} : {chain})"
    return chain


def mutating_policies(scope: FallbackScope, knowledge: Knowledge) -> list[dict[str, Any]]:
    """Write the MutatingAdmissionPolicies and their bindings for the rules that are enforced."""
    rules, schedulers = scope.enforced, scope.schedulers | OUR_SCHEDULERS
    template = "has(object.spec.jobTemplate) ? object.spec.jobTemplate.spec.template : object.spec.template"
    path = "has(object.spec.jobTemplate) ? '/spec/jobTemplate/spec/template' : '/spec/template'"
    pod_variables = _variables("object", knowledge, schedulers)
    template_variables = {"template": template, "path": path} | _variables("variables.template", knowledge, schedulers)
    del template_variables["ours"]
    conditions = [*match_conditions(knowledge), not_exempt(knowledge.families)]
    objects: list[dict[str, Any]] = []
    for suffix, builders, variables, resources, parameter in (
        ("", POD_MUTATIONS, pod_variables, PODS, None),
        ("-runtime-class", (set_runtime_class,), pod_variables, PODS, rules.runtime_class_name),
        ("-templates", (repair_template,), template_variables, WORKLOADS, None),
    ):
        mutations = [mutation for builder in builders for mutation in builder(rules, knowledge)]
        if mutations:
            texts = [scope.limited(mutation.expression, mutation.fields, "[]") for mutation in mutations]
            objects += policy_and_binding(
                "MutatingAdmissionPolicy",
                FALLBACK_NAME + suffix,
                resources,
                conditions,
                {**scope.selections, **variables},
                {
                    **({"paramKind": _CLASS_KIND} if parameter else {}),
                    "failurePolicy": "Ignore",
                    "reinvocationPolicy": "IfNeeded",
                    "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": text}} for text in texts],
                },
                {"paramRef": {"name": parameter, "parameterNotFoundAction": "Allow"}} if parameter else {},
            )
    return objects


_CLASS_KIND = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass"}
PODS = (("", "CREATE", ("pods",)),)
WORKLOADS = (
    ("apps", "CREATE", ("deployments", "statefulsets", "daemonsets", "replicasets")),
    ("batch", "CREATE", ("jobs", "cronjobs")),
)
