# SPDX-License-Identifier: Apache-2.0
"""What the API server's own admission makes of a new pod, and for what it refuses one, in its own words.

`completed` does what its plugins write into a pod: LimitRanger, RuntimeClass, and the node selector of a namespace.
CHECKS are the plugins that refuse, in the order in which the API server runs them (k8s.io/kubernetes
pkg/kubeapiserver/options/plugins.go); messages are those of v1.36. Amounts are exact.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from msgspec.structs import replace

from app.intree.checks import InTreeCause, InTreeRefusal
from app.knowledge.pod_security import LEVEL, VERSION, Levels, pod_security_violations
from app.kube.admission_objects import AdmissionObjects, Quantities, ScopeRequirement
from app.kube.objects import RuntimeClass
from app.kube.pods import ZERO
from app.values.json_members import JSONObject, object_if_any, objects_if_any
from app.values.label_requirements import label_requirement
from app.values.quantity import parse_quantity

Amounts = dict[str, Fraction]
Classes = Mapping[str, RuntimeClass] | None
COMPUTE = ("cpu", "memory", "ephemeral-storage")
POD_LEVEL = ("cpu", "memory")
SYSTEM = "system-"
"""Priority classes that are always there begin so (pkg/apis/scheduling SystemPriorityClassPrefix)."""
SELECTORS = ("openshift.io/node-selector", "scheduler.alpha.kubernetes.io/node-selector")
"""Annotations of a namespace whose node selector its pods get: of OpenShift, and of the plugin PodNodeSelector."""


@dataclass(frozen=True, slots=True)
class NewPod:
    """A pod as the API server is about to store it, with what its plugins compare it to.

    `labels` are those of its namespace. `claimed` are the devices that claims made for the pod ask for, by DeviceClass.
    """

    document: JSONObject
    namespace: str
    labels: Mapping[str, str]
    objects: AdmissionObjects
    classes: Classes
    security: Levels
    claimed: Mapping[str, int]

    @property
    def spec(self) -> JSONObject:
        """The spec of the pod."""
        spec: JSONObject = self.document["spec"]
        return spec

    def containers(self) -> list[JSONObject]:
        """List the containers, and then the init containers."""
        return [*objects_if_any(self.spec, "containers"), *objects_if_any(self.spec, "initContainers")]


APICheck = Callable[[NewPod], Iterator[InTreeRefusal]]


def _refusal(plugin: str, message: str, *about: str) -> InTreeRefusal:
    return InTreeRefusal(InTreeCause.RefusedByAPIServer, message, (plugin, *about))


def _amounts(quantities: Any) -> Amounts:
    """Read quantities exactly. Raises QuantityError."""
    return (
        {name: parse_quantity(str(text)) for name, text in quantities.items()} if isinstance(quantities, dict) else {}
    )


def _limits(holder: JSONObject) -> Amounts:
    return _amounts(object_if_any(holder, "resources").get("limits"))


def _requests(holder: JSONObject) -> Amounts:
    """Read requests; a limit stands for a missing one (pkg/apis/core/v1 SetDefaults_Pod)."""
    return {**_limits(holder), **_amounts(object_if_any(holder, "resources").get("requests"))}


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, ZERO) + amount


def _pod_amounts(spec: JSONObject, of: Callable[[JSONObject], Amounts]) -> Amounts:
    """Sum requests or limits without overhead (component-helpers resource/helpers.go; limitranger admission.go)."""
    total: Amounts = {}
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in objects_if_any(spec, "containers"):
        _add(total, of(container))
    for container in objects_if_any(spec, "initContainers"):
        own = of(container)
        if container.get("restartPolicy") == "Always":
            _add(total, own)
            _add(sidecars, own)
            own = {}
        at_once = dict(sidecars)
        _add(at_once, own)
        peak = {name: max(peak.get(name, ZERO), at_once.get(name, ZERO)) for name in (*peak, *at_once)}
    total = {name: max(total.get(name, ZERO), peak.get(name, ZERO)) for name in (*total, *peak)}
    given = of if of is _limits else lambda holder: _amounts(object_if_any(holder, "resources").get("requests"))
    return {name: amount for name, amount in of(spec).items() if name in POD_LEVEL} | total | {
        name: amount for name, amount in given(spec).items() if name in POD_LEVEL}  # fmt: skip


def completed(document: JSONObject, namespace: str, objects: AdmissionObjects, classes: Classes) -> JSONObject:
    """Return a pod with what the API server's plugins write into it; the same object where they write nothing."""
    spec = document.get("spec") or {}
    limits = [item for _, found in objects.inside("LimitRange", namespace) for item in found.spec.limits or ()]
    runtime = (classes or {}).get(spec.get("runtimeClassName") or "")
    selector = node_selector(namespace, objects)[1]
    if not (limits or runtime or selector or spec.get("hostNetwork")):
        return document
    changed: Any = copy.deepcopy(document)
    spec = changed["spec"] = changed.get("spec") or {}
    containers: list[Any] = [*objects_if_any(spec, "containers"), *objects_if_any(spec, "initContainers")]
    for requests, most in (item.defaults() for item in limits):
        for container in containers if requests or most else ():
            resources = container.get("resources") or {}
            given = resources.get("limits") or {}
            if requests or resources.get("requests"):
                resources["requests"] = {**requests, **given, **(resources.get("requests") or {})}
            if most or given:
                resources["limits"] = {**most, **given}
            container["resources"] = resources
    if runtime is not None:
        if runtime.overhead.pod_fixed:
            spec["overhead"] = spec.get("overhead") or dict(runtime.overhead.pod_fixed)
        if runtime.scheduling.tolerations:
            own = spec.get("tolerations") or []
            spec["tolerations"] = [*own, *(each for each in runtime.scheduling.tolerations if each not in own)]
        selector = {**selector, **runtime.node_selector}
    if selector:
        spec["nodeSelector"] = {**selector, **(spec.get("nodeSelector") or {})}
    ports: list[Any] = [port for each in containers for port in objects_if_any(each, "ports")]
    for port in ports if spec.get("hostNetwork") else ():
        port.setdefault("hostPort", port.get("containerPort"))
    return changed  # type: ignore[no-any-return]


def node_selector(namespace: str, objects: AdmissionObjects) -> tuple[str, dict[str, str]]:
    """Return the annotation of a namespace that has a node selector, and the labels that it wants; else empty."""
    found = objects.by_kind["Namespace"].get(namespace)
    annotations = (found.metadata.annotations if found else None) or {}
    name = next((name for name in SELECTORS if annotations.get(name)), "")
    pairs = (each.partition("=") for each in annotations.get(name, "").split(","))
    return name, {key.strip(): value.strip() for key, _, value in pairs if key.strip()}


def service_account(pod: NewPod) -> Iterator[InTreeRefusal]:
    """Check the plugin ServiceAccount; of a namespace without any known account nothing is judged."""
    name = pod.spec.get("serviceAccountName") or pod.spec.get("serviceAccount") or "default"
    known = [each for each, _ in pod.objects.inside("ServiceAccount", pod.namespace)]
    if known and name not in known and name != "default":
        text = f'error looking up service account {pod.namespace}/{name}: serviceaccount "{name}" not found'
        yield _refusal("ServiceAccount", text, name)


def _priority_class(pod: NewPod) -> str:
    classes = pod.objects.by_kind["PriorityClass"].items()
    usual = min(((each.value, name) for name, each in classes if each.global_default), default=(0, ""))
    return pod.spec.get("priorityClassName") or usual[1]


def priority_class(pod: NewPod) -> Iterator[InTreeRefusal]:
    """Check the plugin Priority."""
    name = pod.spec.get("priorityClassName") or ""
    known = pod.objects.by_kind["PriorityClass"]
    if name and "PriorityClass" in pod.objects.listed and name not in known and not name.startswith(SYSTEM):
        yield _refusal("Priority", f"no PriorityClass with name {name} was found", name)


def runtime_class(pod: NewPod) -> Iterator[InTreeRefusal]:
    """Check the plugin RuntimeClass."""
    name, wanted = pod.spec.get("runtimeClassName"), pod.spec.get("nodeSelector") or {}
    if name is None or pod.classes is None:
        return
    if (found := pod.classes.get(name)) is None:
        yield _refusal("RuntimeClass", f'pod rejected: RuntimeClass "{name}" not found', name)
        return
    own, without = pod.spec.get("overhead"), "set without corresponding RuntimeClass defined Overhead"
    if own is not None and not found.overhead.pod_fixed:
        yield _refusal("RuntimeClass", f"pod rejected: Pod Overhead {without}")
    elif found.overhead.pod_fixed and _amounts(own) != _amounts(found.overhead.pod_fixed):
        yield _refusal("RuntimeClass", "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
    for key, value in found.node_selector.items():
        if wanted.get(key, value) != value:
            yield _refusal("RuntimeClass", f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; "
                           f"pod.spec.nodeSelector[{key}] = {wanted[key]}")  # fmt: skip


def amounts_valid(pod: NewPod) -> Iterator[InTreeRefusal]:
    """Check requests against limits where the defaults of a LimitRange may have set one of them alone."""
    for container in pod.containers() if pod.objects.inside("LimitRange", pod.namespace) else ():
        limits = _limits(container)
        for name, request in _requests(container).items():
            where = f"container {container.get('name')}: request {shown(name, request)} of {name}"
            if "/" in name and name not in limits:
                yield _refusal("Validation", f"{where}: Limit must be set for non overcommitable resources")
            elif request > limits.get(name, request) or ("/" in name and request != limits[name]):
                relation = "be equal to" if "/" in name else "be less than or equal to"
                yield _refusal("Validation", f"{where}: must {relation} {name} limit of {shown(name, limits[name])}")


def limit_ranges(pod: NewPod) -> Iterator[InTreeRefusal]:
    """Check the plugin LimitRanger (plugin/pkg/admission/limitranger admission.go PodValidateLimitFunc)."""
    for name, found in pod.objects.inside("LimitRange", pod.namespace):
        for item in found.spec.limits or ():
            holders = [(_requests(each), _limits(each)) for each in pod.containers() if item.type == "Container"]
            if item.type == "Pod":
                holders = [(_pod_amounts(pod.spec, _requests), _pod_amounts(pod.spec, _limits))]
            for requests, limits in holders:
                for text, resource, most in _outside(item, requests, limits):
                    about = ("", "") if most is None else (resource, str(most))
                    yield _refusal("LimitRanger", text, name, *about, item.type)


def _outside(item: Any, requests: Amounts, limits: Amounts) -> Iterator[tuple[str, str, int | None]]:
    """Yield what an item of a LimitRange forbids: the message, the resource, and the most that it allows."""
    for word, bounds, kinds in (
        ("minimum", item.min, ("request", "limit")),
        ("maximum", item.max, ("limit", "request")),
    ):
        for resource, bound in sorted(_amounts(bounds).items()):
            text = f"{word} {resource} usage per {item.type} is {shown(resource, bound)}"
            given = {"request": requests.get(resource), "limit": limits.get(resource)}
            most = _units(resource, bound) if word == "maximum" else None
            for kind in kinds:
                amount = given[kind]
                if amount is None and kind == kinds[0]:
                    yield f"{text}.  No {kind} is specified", resource, None
                elif amount is not None and (amount > bound if word == "maximum" else amount < bound):
                    yield f"{text}, but {kind} is {shown(resource, amount)}", resource, most
                else:
                    continue
                break
    for resource, ratio in sorted(_amounts(item.max_limit_request_ratio).items()):
        text = f"{resource} max limit to request ratio per {item.type} is {shown('', ratio)}, but"
        for kind, amounts in (("request", requests), ("limit", limits)):
            if not amounts.get(resource):
                yield f"{text} no {kind} is specified or {kind} is 0", resource, None
                break
        else:
            if (found := limits[resource] / requests[resource]) > ratio:
                yield f"{text} provided ratio is {float(found):f}", resource, None


def pod_security(pod: NewPod) -> Iterator[InTreeRefusal]:
    """Check the plugin PodSecurity."""
    violated = pod_security_violations(pod.security, pod.document, pod.labels)
    if violated:
        texts = ", ".join(f"{what} ({', '.join(fields)})" for what, fields in violated.items())
        level, version = pod.labels.get(LEVEL), pod.labels.get(VERSION, "latest")
        yield _refusal("PodSecurity", f'violates PodSecurity "{level}:{version}": {texts}')


def quotas(pod: NewPod) -> Iterator[InTreeRefusal]:
    """Check the plugin ResourceQuota (apiserver resourcequota controller.go CheckRequest; its evaluator for pods)."""
    for name, quota in pod.objects.inside("ResourceQuota", pod.namespace):
        status = quota.status or {"hard": quota.spec.hard}
        hard, used = _amounts(status.get("hard")), _amounts(status.get("used"))
        if not all(_in_scope(pod, requirement) for requirement in quota.spec.requirements()):
            continue
        counted = [resource for resource in hard if counts_for_pods(resource)]
        missing = "; ".join(_must_specify(pod, counted))
        unknown = sorted(resource for resource in counted if quota.status is not None and resource not in used)
        if missing:
            yield _refusal("ResourceQuota", f"failed quota: {name}: must specify {missing}", name)
        elif unknown:
            yield _refusal("ResourceQuota", f"status unknown for quota: {name}, resources: {','.join(unknown)}", name)
        else:
            yield from _exceeded(name, {each: amount for each, amount in _usage(pod).items() if amount}, hard, used)


def counted_in_quotas(pod: NewPod) -> AdmissionObjects:
    """Return the objects after a pod was created: each quota that counts it has its amounts as used."""
    after = AdmissionObjects(pod.objects)
    for name, quota in pod.objects.inside("ResourceQuota", pod.namespace):
        if all(_in_scope(pod, requirement) for requirement in quota.spec.requirements()):
            status = quota.status or {"hard": quota.spec.hard}
            used = dict.fromkeys(() if quota.status else quota.spec.hard or (), ZERO) | _amounts(status.get("used"))
            _add(used, _usage(pod))
            texts: Quantities = {resource: shown(resource, amount) for resource, amount in used.items()}
            after.put("ResourceQuota", f"{pod.namespace}/{name}", replace(quota, status={**status, "used": texts}))
    return after


def _exceeded(name: str, usage: Amounts, hard: Amounts, used: Amounts) -> Iterator[InTreeRefusal]:
    """Compare what a pod adds with what is left; the message lists all that is exceeded, `about` names the first."""
    over = sorted(each for each in usage if each in hard and used.get(each, ZERO) + usage[each] > hard[each])
    if over:
        known = {each: used.get(each, ZERO) for each in over}
        parts = (("requested", usage), ("used", known), ("limited", hard))
        lists = (f"{word}: {','.join(f'{each}={shown(each, of[each])}' for each in over)}" for word, of in parts)
        left = {each: max(ZERO, hard[each] - known[each]) for each in over}
        bare = {each.removeprefix("requests.") for each in over}
        resource = bare.pop()
        about = ("", "") if bare else (resource, str(_units(resource, min(left.values()))))
        yield _refusal("ResourceQuota", f"exceeded quota: {name}, {', '.join(lists)}", name, *about, "Pod")


def counts_for_pods(resource: str) -> bool:
    """Tell whether a quota on a resource counts anything of pods (evaluator/core/pods.go MatchingResources)."""
    bare = resource.removeprefix("requests.")
    if bare != resource and "/" in bare:
        return "kubernetes.io/" not in bare or bare.startswith("deviceclass.resource.kubernetes.io/")
    compute = bare in COMPUTE or resource.removeprefix("limits.") in COMPUTE or bare.startswith("hugepages-")
    return compute or resource in ("pods", "count/pods")


def _usage(pod: NewPod) -> Amounts:
    """Count what a pod adds to quotas, by the names of their resources (evaluator/core/pods.go PodUsageFunc).

    Devices of its claims count when the controller creates these.
    """
    overhead = _amounts(pod.spec.get("overhead"))
    requests, limits = _pod_amounts(pod.spec, _requests), _pod_amounts(pod.spec, _limits)
    _add(requests, overhead)
    _add(limits, {name: amount for name, amount in overhead.items() if limits.get(name)})
    usage = {"pods": Fraction(1), "count/pods": Fraction(1)}
    for name, amount in requests.items():
        usage[f"requests.{name}"] = amount
        if "/" not in name:
            usage[name] = amount
    usage |= {f"limits.{name}": amount for name, amount in limits.items() if name in COMPUTE}
    return usage | {f"{name}.deviceclass.resource.k8s.io/devices": Fraction(n) for name, n in pod.claimed.items()}


def _must_specify(pod: NewPod, counted: Iterable[str]) -> Iterator[str]:
    """Yield what containers have to set because a quota counts it: CPU and memory only (pods.go Constraints)."""
    if _requests(pod.spec):
        return
    for resource in sorted(counted):
        name = resource.removeprefix("requests.").removeprefix("limits.")
        of = _limits if resource.startswith("limits.") else _requests
        names = sorted({str(each.get("name")) for each in pod.containers() if name not in of(each)})
        if name in POD_LEVEL and names:
            yield f"{resource} for: {','.join(names)}"


def _in_scope(pod: NewPod, requirement: ScopeRequirement) -> bool:
    """Tell whether a pod matches a scope of a quota (pods.go podMatchesScopeFunc)."""
    scope, name = requirement.scope_name, _priority_class(pod)
    if scope == "PriorityClass":
        if requirement.operator == "Exists":
            return bool(name)
        return label_requirement(scope, requirement.operator, requirement.values or ()).allows(name or None)
    deadline = pod.spec.get("activeDeadlineSeconds")
    terminating = isinstance(deadline, int) and deadline >= 0
    holders = [pod.spec, *pod.containers()]
    best_effort = not any({**_requests(each), **_limits(each)}.get(name) for each in holders for name in POD_LEVEL)
    matches = {
        "Terminating": terminating,
        "NotTerminating": not terminating,
        "BestEffort": best_effort,
        "NotBestEffort": not best_effort,
        "CrossNamespacePodAffinity": any(_cross_namespace(object_if_any(pod.spec, "affinity"))),
    }
    return matches.get(scope, False)


def _cross_namespace(affinity: JSONObject) -> Iterator[bool]:
    for kind in ("podAffinity", "podAntiAffinity"):
        of_kind = object_if_any(affinity, kind)
        for terms in of_kind:
            for term in objects_if_any(of_kind, terms):
                inner = object_if_any(term, "podAffinityTerm") or term
                yield bool(inner.get("namespaces")) or inner.get("namespaceSelector") is not None


CHECKS: tuple[APICheck, ...] = (
    service_account, priority_class, runtime_class, amounts_valid, limit_ranges, pod_security, quotas
)  # fmt: skip
"""In the API server's order: what the plugins that write refuse, the pod's validation, what the others refuse."""


def api_server_refusals(pod: NewPod) -> tuple[InTreeRefusal, ...]:
    """List all causes for which the API server would refuse a new pod; it stops itself at the first."""
    return tuple(dict.fromkeys(refusal for check in CHECKS for refusal in check(pod)))


def _units(resource: str, amount: Fraction) -> int:
    return int(amount * (1000 if resource == "cpu" else 1))


def shown(resource: str, amount: Fraction) -> str:
    """Write an amount as the API server does: binary units for memory, thousandths of others."""
    if amount % 1:
        return f"{-int(-amount * 1000 // 1)}m"
    if resource.rpartition(".")[2] in ("memory", "ephemeral-storage") or "hugepages-" in resource:
        for power in range(6, 0, -1):
            if amount and amount % 1024**power == 0:
                return f"{amount // 1024**power}{' KMGTPE'[power]}i"
    return str(int(amount))
