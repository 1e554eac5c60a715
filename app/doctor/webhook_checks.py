# SPDX-License-Identifier: Apache-2.0
"""Checks of webhook configurations: whether ours exist, are called and for which namespaces, and which others are."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.admission.exemptions import EXEMPT_LABELS
from app.doctor.cluster_objects import APPLY, Cluster, Object, advice, asks_for_gpus, problem
from app.doctor.fleet_checks import Finding
from app.knowledge.families import Families
from app.kube.device_classes import DeviceClassIndex
from app.kube.resource_slices import read_device_class
from app.values.errors import BadInput
from app.values.label_requirements import all_allow, selector_requirements

MUTATING, VALIDATING = "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"
DOMAIN = ".gpu-usher.io"
MUTATE, VALIDATE, GUARD = "mutate" + DOMAIN, "validate" + DOMAIN, "cpu-guard" + DOMAIN
SHORTEST_SECONDS, LONGEST_SECONDS = 2, 5
"""timeoutSeconds; deploy/ sets 2 and 3. An answer takes about 0.2 ms; unset means 10 s."""
SHIPPED_POLICY = {
    MUTATE: "Ignore",
    VALIDATE: "Fail",
    "policies" + DOMAIN: "Ignore",
    "devices" + DOMAIN: "Ignore",
    GUARD: "Ignore",
}
"""failurePolicy by webhook; deploy/base/webhooks.yaml gives the reasons."""
NAMESPACE_NAME = "kubernetes.io/metadata.name"
ALLOCATORS = ("gpu", "hami", "volcano", "kai-", "runai", "run.ai", "koordinator")
"""Parts of the names of other GPU schedulers' webhooks: a guess from their manifests, as no list of them exists."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """One webhook of a configuration. Mutating ones are called by `order`: (configuration name, position in it)."""

    kind: str
    order: tuple[str, int]
    spec: Object

    @property
    def name(self) -> str:
        """The webhook's full name."""
        return str(self.spec.get("name", ""))

    @property
    def ours(self) -> bool:
        """True where the webhook is gpu-usher's."""
        return self.name.endswith(DOMAIN)

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


def webhooks(cluster: Cluster) -> tuple[Webhook, ...]:
    """List all webhooks of the cluster in the order in which they are called."""
    listed = (
        Webhook(kind, (str((item.get("metadata") or {}).get("name")), index), webhook)
        for kind in (MUTATING, VALIDATING)
        for item in cluster.objects_of(kind)
        for index, webhook in enumerate(item.get("webhooks") or ())
    )
    return tuple(sorted(listed, key=lambda webhook: (webhook.kind, webhook.order)))


def _ours(cluster: Cluster) -> Iterator[Webhook]:
    return (webhook for webhook in webhooks(cluster) if webhook.ours)


def webhook_absent(cluster: Cluster) -> Iterator[Finding]:
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


def ca_bundle_absent(cluster: Cluster) -> Iterator[Finding]:
    """Report webhooks of a Service without caBundle: calls fail, as no system CA signed our certificate."""
    for webhook in _ours(cluster):
        client = webhook.spec.get("clientConfig") or {}
        if client.get("service") and not client.get("caBundle"):
            remedy = (
                "read the log of gpu-usher-certificates, or of cert-manager's cainjector, which writes the CA there"
            )
            yield problem("CABundleAbsent", "has no caBundle, so that every call fails", remedy, webhook.shown)


def timeouts(cluster: Cluster) -> Iterator[Finding]:
    """Report timeouts out of range: while gpu-usher is down, each GPU pod's creation waits for the timeout."""
    for webhook in _ours(cluster):
        seconds = webhook.spec.get("timeoutSeconds", 10)
        if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
            text = f"has timeoutSeconds: {seconds}, for which each GPU pod waits while no replica answers"
            yield advice("WebhookTimeout", text, "set timeoutSeconds: 2 or 3", webhook.shown)


def failure_policies(cluster: Cluster) -> Iterator[Finding]:
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


def exempts_too_little(cluster: Cluster) -> Iterator[Finding]:
    """Report webhooks for namespaces that they depend on: one that fails closed there can never recover."""
    for webhook in _ours(cluster):
        if webhook.name not in (MUTATE, VALIDATE):
            continue
        if not webhook.spec.get("matchConditions"):
            yield problem("NoMatchConditions", "is called for every pod, not only for GPU pods", APPLY, webhook.shown)
        caught = tuple(
            name
            for name, labels in namespaces_of(cluster)
            if cluster.knowledge.families.is_infrastructure(name) and webhook.selects(labels)
        )
        if caught:
            text = f"is called for pods of {', '.join(caught)}, on which gpu-usher may itself depend"
            finding = problem if webhook.spec.get("failurePolicy", "Fail") == "Fail" else advice
            remedy = "exempt these namespaces in namespaceSelector, as deploy/base/webhooks.yaml does"
            yield finding("ExemptsTooLittle", text, remedy, webhook.shown)


def resource_not_matched(cluster: Cluster) -> Iterator[Finding]:
    """Report DeviceClasses with an extended resource of their own that the matchConditions do not name."""
    families = cluster.knowledge.families
    index = DeviceClassIndex(families)
    for item in cluster.objects_of("DeviceClass"):
        index.put(read_device_class(item))
    for webhook in _ours(cluster):
        if webhook.name not in (MUTATE, VALIDATE) or not webhook.spec.get("matchConditions"):
            continue
        conditions = " ".join(str(condition.get("expression")) for condition in webhook.spec["matchConditions"])
        missed = [
            device_class
            for device_class in index.all()
            if device_class.resource
            and index.family(device_class.name)
            and not _matched(device_class.resource, families, conditions)
        ]
        if missed:
            resources = [str(device_class.resource) for device_class in missed]
            text = f"is not called for pods that request {', '.join(sorted(resources))}"
            flags = " ".join(f"--resource {resource}" for resource in resources)
            remedy = f"put what `gpu-usher schema --match-conditions {flags}` prints into matchConditions"
            names = (f"DeviceClass {device_class.name}" for device_class in missed)
            yield problem("ResourceNotReached", text, remedy, webhook.shown, *names)


def _matched(resource: str, families: Families, conditions: str) -> bool:
    return bool(families.of(resource) or families.passthrough_family(resource) or f"'{resource}'" in conditions)


def exempts_too_much(cluster: Cluster) -> Iterator[Finding]:
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


def reinvocation_never(cluster: Cluster) -> Iterator[Finding]:
    """Report our mutating webhook where it is not called again after later webhooks changed the pod."""
    mutating = [webhook for webhook in _ours(cluster) if webhook.name == MUTATE]
    for webhook in mutating:
        if webhook.spec.get("reinvocationPolicy", "Never") != "IfNeeded":
            text = "has reinvocationPolicy: Never, so that what later webhooks change is not reviewed"
            yield problem("NotCalledAgain", text, "set reinvocationPolicy: IfNeeded", webhook.shown)


def other_allocators(cluster: Cluster) -> Iterator[Finding]:
    """Report other webhooks that change GPU pods, since two allocators undo each other's changes."""
    first = min((webhook.order for webhook in _ours(cluster) if webhook.name == MUTATE), default=None)
    for webhook in webhooks(cluster):
        if (
            first is None
            or webhook.ours
            or webhook.kind != MUTATING
            or not webhook.creates_pods()
            or not _is_allocator(webhook)
        ):
            continue
        never = webhook.spec.get("reinvocationPolicy", "Never") == "Never" and webhook.order < first
        text = f"also changes GPU pods{', is called before gpu-usher and never again' if never else ''}"
        remedy = "let only one of the two serve a namespace (gpu-usher.io/ignore=true exempts it from gpu-usher)"
        yield advice("OtherAllocator", text, remedy, webhook.shown)


def _is_allocator(webhook: Webhook) -> bool:
    words = f"{webhook.order[0]} {webhook.name}".lower()
    return any(part in words for part in ALLOCATORS)


def namespaces_of(cluster: Cluster) -> Iterator[tuple[str, Mapping[str, str]]]:
    """List the namespaces: (name, labels)."""
    for item in cluster.objects_of("Namespace"):
        metadata = item.get("metadata") or {}
        name = str(metadata.get("name"))
        yield name, {NAMESPACE_NAME: name, **(metadata.get("labels") or {})}


def _with_gpu_pods(cluster: Cluster) -> Iterator[tuple[str, Mapping[str, str]]]:
    families = cluster.knowledge.families
    using = {
        (pod.get("metadata") or {}).get("namespace")
        for pod in cluster.objects_of("Pod")
        if asks_for_gpus(pod, families)
    }
    return (
        (name, labels)
        for name, labels in namespaces_of(cluster)
        if name in using and not families.is_infrastructure(name)
    )
