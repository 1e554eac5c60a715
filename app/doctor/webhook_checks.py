# SPDX-License-Identifier: Apache-2.0
"""Checks of webhook configurations: whether ours exist, are called and for which namespaces, and which others are.

Exempt namespaces are part of that: whether the exemption policy is in force, and which namespaces are exempt.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.admission.admission_policies import EXEMPTIONS_NAME, exemption_policy
from app.admission.reviewed_pod import EXEMPT_LABELS
from app.doctor.cluster_objects import APPLY, ExaminedCluster, asks_for_gpus
from app.doctor.fleet_checks import Finding, advice, problem
from app.kube.device_classes import DeviceClass, DeviceClassIndex
from app.kube.pods import controller_of
from app.kube.records import read_record
from app.policy.problems import NAMESPACE_NAME
from app.values.errors import BadInput
from app.values.json_members import JSONObject
from app.values.label_requirements import all_allow, selector_requirements

MUTATING, VALIDATING = "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"
WEBHOOK_DOMAIN = ".gpu-usher.io"
MUTATE, VALIDATE, GUARD = "mutate" + WEBHOOK_DOMAIN, "validate" + WEBHOOK_DOMAIN, "cpu-guard" + WEBHOOK_DOMAIN
SHORTEST_SECONDS, LONGEST_SECONDS = 2, 5
"""timeoutSeconds; deploy/ sets 2 and 3. An answer takes about 0.2 ms; unset means 10 s."""
SHIPPED_POLICY = {
    MUTATE: "Ignore",
    VALIDATE: "Fail",
    "policies" + WEBHOOK_DOMAIN: "Ignore",
    "devices" + WEBHOOK_DOMAIN: "Ignore",
    GUARD: "Ignore",
}
"""failurePolicy by webhook; deploy/base/webhooks.yaml gives the reasons."""
ALLOCATORS = ("gpu", "hami", "volcano", "kai-", "runai", "run.ai", "koordinator")
"""Parts of the names of other GPU schedulers' webhooks: a guess from their manifests, as no list of them exists."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """One webhook of a configuration. Mutating ones are called by `order`: (configuration name, position in it)."""

    kind: str
    order: tuple[str, int]
    spec: JSONObject

    @property
    def name(self) -> str:
        return str(self.spec.get("name", ""))

    @property
    def ours(self) -> bool:
        """True where the webhook is gpu-usher's."""
        return self.name.endswith(WEBHOOK_DOMAIN)

    @property
    def shown(self) -> str:
        """The kind and name of its configuration, and its own name."""
        return f"{self.kind} {self.order[0]}: {self.name}"

    def creates_pods(self) -> bool:
        """Tell whether it is called when a pod is created."""
        return any(
            _rule_covers(rule, "apiGroups", "")
            and _rule_covers(rule, "resources", "pods")
            and _rule_covers(rule, "operations", "CREATE")
            for rule in self.spec.get("rules") or ()
        )

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Tell whether it is called for a namespace with these labels; an unreadable selector counts as yes."""
        try:
            return all_allow(selector_requirements(self.spec.get("namespaceSelector") or {}), labels)
        except (BadInput, KeyError, TypeError):
            return True


def _rule_covers(rule: Mapping[str, Any], field: str, value: str) -> bool:
    values = rule.get(field) or ()
    return value in values or "*" in values or (field == "resources" and "*/*" in values)


def webhooks(cluster: ExaminedCluster) -> tuple[Webhook, ...]:
    """List all webhooks of the cluster in the order in which they are called."""
    listed = (
        Webhook(kind, (str((item.get("metadata") or {}).get("name")), index), webhook)
        for kind in (MUTATING, VALIDATING)
        for item in cluster.objects_of(kind)
        for index, webhook in enumerate(item.get("webhooks") or ())
    )
    return tuple(sorted(listed, key=lambda webhook: (webhook.kind, webhook.order)))


def _ours(cluster: ExaminedCluster) -> Iterator[Webhook]:
    return (webhook for webhook in webhooks(cluster) if webhook.ours)


def webhook_absent(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report our webhooks that are missing, or that have no rule for pods and so are never called."""
    for kind, name in ((MUTATING, MUTATE), (VALIDATING, VALIDATE)):
        if not cluster.could_read(kind):
            continue
        matching = [webhook for webhook in webhooks(cluster) if webhook.kind == kind and webhook.name == name]
        if not matching:
            text = f"there is no webhook {name}: GPU pods are created without being reviewed"
            yield problem("WebhookAbsent", text, APPLY, kind)
        for webhook in matching:
            if not webhook.creates_pods():
                yield problem("WebhookNeverCalled", "has no rule for the creation of pods", APPLY, webhook.shown)


def ca_bundle_absent(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report webhooks of a Service without caBundle: calls fail, as no system CA signed our certificate."""
    for webhook in _ours(cluster):
        client = webhook.spec.get("clientConfig") or {}
        if client.get("service") and not client.get("caBundle"):
            remedy = (
                "read the log of gpu-usher-certificates, or of cert-manager's cainjector, which writes the CA there"
            )
            yield problem("CABundleAbsent", "has no caBundle, so that every call fails", remedy, webhook.shown)


def timeouts(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report timeouts out of range: while gpu-usher is down, each GPU pod's creation waits for the timeout."""
    for webhook in _ours(cluster):
        seconds = webhook.spec.get("timeoutSeconds", 10)
        if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
            text = f"has timeoutSeconds: {seconds}, for which each GPU pod waits while no replica answers"
            yield advice("WebhookTimeout", text, "set timeoutSeconds: 2 or 3", webhook.shown)


def failure_policies(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report failure policies that differ from the shipped ones; overlays/dev, with one replica, ships Ignore."""
    single = any(
        item["metadata"]["name"] == "gpu-usher" and (item.get("spec") or {}).get("replicas") == 1
        for item in cluster.objects_of("Deployment")
    )
    for webhook in _ours(cluster):
        present, shipped = webhook.spec.get("failurePolicy", "Fail"), SHIPPED_POLICY.get(webhook.name)
        if shipped is not None and present != shipped and not (single and present == "Ignore"):
            result = "admits everything unchecked" if present == "Ignore" else "refuses everything that it matches"
            text = f"has failurePolicy: {present}, so that it {result} while no replica answers"
            yield advice("FailurePolicy", text, f"set failurePolicy: {shipped}, unless this is intended", webhook.shown)


def exempts_too_little(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report webhooks for namespaces that they depend on: one that fails closed there can never recover."""
    for webhook in _ours(cluster):
        if webhook.name not in (MUTATE, VALIDATE):
            continue
        if not webhook.spec.get("matchConditions"):
            yield problem("NoMatchConditions", "is called for every pod, not only for GPU pods", APPLY, webhook.shown)
        caught = tuple(
            name
            for name, labels in namespaces_with_labels(cluster)
            if cluster.knowledge.families.is_infrastructure(name) and webhook.selects(labels)
        )
        if caught:
            text = f"is called for pods of {', '.join(caught)}, on which gpu-usher may itself depend"
            finding = problem if webhook.spec.get("failurePolicy", "Fail") == "Fail" else advice
            remedy = "exempt these namespaces in namespaceSelector, as deploy/base/webhooks.yaml does"
            yield finding("ExemptsTooLittle", text, remedy, webhook.shown)


def resource_not_matched(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report DeviceClasses with an extended resource of their own that the matchConditions do not name."""
    families = cluster.knowledge.families
    index = DeviceClassIndex(families)
    for item in cluster.objects_of("DeviceClass"):
        index.put(read_record(DeviceClass, item))
    for webhook in _ours(cluster):
        if webhook.name not in (MUTATE, VALIDATE) or not webhook.spec.get("matchConditions"):
            continue
        conditions = " ".join(str(condition.get("expression")) for condition in webhook.spec["matchConditions"])
        missed = [
            device_class
            for device_class in index.by_name.values()
            if (resource := device_class.extended_resource)
            and index.family(device_class.name)
            and not (families.of(resource) or families.passthrough_family(resource) or f"'{resource}'" in conditions)
        ]
        if missed:
            resources = [str(device_class.extended_resource) for device_class in missed]
            text = f"is not called for pods that request {', '.join(sorted(resources))}"
            flags = " ".join(f"--resource {resource}" for resource in resources)
            remedy = f"put what `gpu-usher schema --match-conditions {flags}` prints into matchConditions"
            names = (f"DeviceClass {device_class.name}" for device_class in missed)
            yield problem("ResourceNotReached", text, remedy, webhook.shown, *names)


def exempts_too_much(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report webhooks that a pod's own labels bypass, and namespaces with GPU pods that are exempt."""
    for webhook in _ours(cluster):
        if webhook.name not in (MUTATE, VALIDATE):
            continue
        selector = webhook.spec.get("objectSelector") or {}
        if selector.get("matchLabels") or selector.get("matchExpressions"):
            text = "has an objectSelector, by which a pod's own labels exempt it"
            yield problem("ExemptsTooMuch", text, "remove objectSelector; exempt namespaces instead", webhook.shown)
        exempt = tuple(name for name, labels in _with_gpu_pods(cluster) if not webhook.selects(labels))
        if exempt:
            text = f"is not called for GPU pods of {', '.join(exempt)}"
            remedy = f"if that is not intended, remove {' or '.join(EXEMPT_LABELS)} there, or correct namespaceSelector"
            yield advice("ExemptsTooMuch", text, remedy, webhook.shown)


def reinvocation_never(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report our mutating webhook where it is not called again after later webhooks changed the pod."""
    mutating = [webhook for webhook in _ours(cluster) if webhook.name == MUTATE]
    for webhook in mutating:
        if webhook.spec.get("reinvocationPolicy", "Never") != "IfNeeded":
            text = "has reinvocationPolicy: Never, so that what later webhooks change is not reviewed"
            yield problem("NotCalledAgain", text, "set reinvocationPolicy: IfNeeded", webhook.shown)


def other_allocators(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report other webhooks that change GPU pods, since two allocators undo each other's changes."""
    first = min((webhook.order for webhook in _ours(cluster) if webhook.name == MUTATE), default=None)
    for webhook in webhooks(cluster):
        if (
            first is None
            or webhook.ours
            or webhook.kind != MUTATING
            or not webhook.creates_pods()
            or not any(part in f"{webhook.order[0]} {webhook.name}".lower() for part in ALLOCATORS)
        ):
            continue
        never = webhook.spec.get("reinvocationPolicy", "Never") == "Never" and webhook.order < first
        text = f"also changes GPU pods{', is called before gpu-usher and never again' if never else ''}"
        remedy = "let only one of the two serve a namespace (gpu-usher.io/ignore=true exempts it from gpu-usher)"
        yield advice("OtherAllocator", text, remedy, webhook.shown)


def namespaces_with_labels(cluster: ExaminedCluster) -> Iterator[tuple[str, Mapping[str, str]]]:
    """List the namespaces: (name, labels)."""
    for item in cluster.objects_of("Namespace"):
        metadata = item.get("metadata") or {}
        name = str(metadata.get("name"))
        yield name, {NAMESPACE_NAME: name, **(metadata.get("labels") or {})}


def _with_gpu_pods(cluster: ExaminedCluster) -> Iterator[tuple[str, Mapping[str, str]]]:
    families = cluster.knowledge.families
    using = {
        (pod.get("metadata") or {}).get("namespace")
        for pod in cluster.objects_of("Pod")
        if asks_for_gpus(pod, families)
    }
    return (
        (name, labels)
        for name, labels in namespaces_with_labels(cluster)
        if name in using and not families.is_infrastructure(name)
    )


def pod_to_try(cluster: ExaminedCluster) -> tuple[str, str]:
    """Choose namespace and GPU resource of a pod to try: `default`, or one with GPU pods for which more webhooks are
    called; a resource that a node offers."""
    called = [webhook for webhook in webhooks(cluster) if webhook.creates_pods()]
    labels = dict(namespaces_with_labels(cluster)).get(DEFAULT_NAMESPACE, {NAMESPACE_NAME: DEFAULT_NAMESPACE})
    candidates = ((DEFAULT_NAMESPACE, labels), *_with_gpu_pods(cluster))
    chosen = max(candidates, key=lambda named: sum(webhook.selects(named[1]) for webhook in called))[0]
    offered = (name for node in cluster.gpu_nodes() for name, units in node.node_class.offered if units)
    return chosen, next(offered, cluster.knowledge.families.all[0].whole)


DEFAULT_NAMESPACE = "default"
POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
ALWAYS_THERE = ("kube-system", "kube-public", "kube-node-lease")
"""Namespaces that the API server creates itself, before any tenant can."""


def exemptions_unguarded(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report that the exemption policy is missing, so that tenants who may label namespaces can exempt them."""
    if not (cluster.could_read(POLICY) and cluster.could_read(BINDING) and cluster.could_read("Namespace")):
        return
    if _in_force(cluster):
        return
    existing = {_metadata(namespace).get("name") for namespace in cluster.objects_of("Namespace")}
    free = [name for name in cluster.knowledge.families.infrastructure_namespaces if name not in existing]
    squat = f", or by creating {' or '.join(free)}" if free else ""
    text = f"anyone who may label a namespace can exempt it with {' or '.join(EXEMPT_LABELS)}{squat}"
    yield problem("ExemptionsUnguarded", text, APPLY, f"{POLICY} {EXEMPTIONS_NAME}")


def _in_force(cluster: ExaminedCluster) -> bool:
    """Tell whether the cluster's policy has our conditions, and a binding without a namespace selector denies."""
    expected = exemption_policy(cluster.knowledge.families)[0]["spec"]
    specs = (
        policy.get("spec") or {}
        for policy in cluster.objects_of(POLICY)
        if _metadata(policy).get("name") == EXEMPTIONS_NAME
    )
    bindings = (binding.get("spec") or {} for binding in cluster.objects_of(BINDING))
    same_conditions = any(
        all(_fold_blanks(spec.get(key)) == expected[key] for key in ("matchConditions", "validations"))
        for spec in specs
    )
    return same_conditions and any(
        binding.get("policyName") == EXEMPTIONS_NAME
        and "Deny" in (binding.get("validationActions") or ())
        and not (binding.get("matchResources") or {}).get("namespaceSelector")
        for binding in bindings
    )


def _fold_blanks(value: object) -> object:
    """Fold blanks in expressions, since YAML may break their lines differently."""
    if isinstance(value, list):
        return [_fold_blanks(item) for item in value]
    if isinstance(value, dict):
        return {key: " ".join(str(text).split()) for key, text in value.items()}
    return value


def namespaces_exempt_by_label(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report namespaces with a label that exempts, and the client that wrote it (metadata.managedFields)."""
    for namespace in cluster.objects_of("Namespace"):
        labels = _metadata(namespace).get("labels") or {}
        for key in EXEMPT_LABELS:
            if labels.get(key) == "true":
                text = f"is exempt by its label {key}, written by {_manager(namespace, key)}"
                remedy = "if that is not intended, remove the label"
                yield advice("ExemptByLabel", text, remedy, f"Namespace {_metadata(namespace).get('name')}")


def _manager(item: JSONObject, key: str) -> str:
    """Return which client owns a label (metadata.managedFields), and when it wrote last."""
    for entry in _metadata(item).get("managedFields") or ():
        fields = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:labels") or {}
        if f"f:{key}" in fields:
            return f"{entry.get('manager') or 'an unknown client'} ({entry.get('time') or 'at an unknown time'})"
    return "an unknown client"


def namespaces_exempt_by_name(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report namespaces that are exempt by a vendor's name but run no DaemonSet: a tenant may have created them."""
    if not cluster.could_read("DaemonSet"):
        return
    running = {_metadata(daemon_set).get("namespace") for daemon_set in cluster.objects_of("DaemonSet")}
    names = set(cluster.knowledge.families.infrastructure_namespaces) - {*ALWAYS_THERE, cluster.namespace} - running
    for namespace in cluster.objects_of("Namespace"):
        if _metadata(namespace).get("name") in names:
            text = "is exempt by its name, and runs no DaemonSet of a GPU vendor"
            remedy = "find out whose it is; delete it if no GPU operands are to run there"
            yield advice("ExemptWithoutOperands", text, remedy, f"Namespace {_metadata(namespace).get('name')}")


def operators_not_exempt(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report operators of GPUs in a namespace that is not exempt: their pods are reviewed as a tenant's are."""
    names = {owner: row.name for row in cluster.knowledge.operators for owner in row.owners}
    labels = dict(namespaces_with_labels(cluster))
    found: dict[str, str] = {}
    for item in (*cluster.objects_of("DaemonSet"), *cluster.objects_of("Pod")):
        owner, namespace = controller_of(item), str(_metadata(item).get("namespace"))
        if owner is not None and (owner.group, owner.kind) in names and namespace in labels:
            found.setdefault(namespace, names[owner.group, owner.kind])
    reviewing = [webhook for webhook in _ours(cluster) if webhook.name in (MUTATE, VALIDATE)]
    for namespace, operator in sorted(found.items()):
        if any(webhook.selects(labels[namespace]) for webhook in reviewing):
            text = f"has pods of {operator} and is not exempt: enforced guards refuse those that use devices directly"
            remedy = f"if only administrators create pods there: kubectl label namespace {namespace} {OPERATORS_LABEL}"
            yield problem("OperatorNotExempt", text, remedy, f"Namespace {namespace}")


OPERATORS_LABEL = f"{EXEMPT_LABELS[0]}=true"


def _metadata(item: JSONObject) -> JSONObject:
    metadata: JSONObject = item.get("metadata") or {}
    return metadata
