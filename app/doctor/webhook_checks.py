# SPDX-License-Identifier: Apache-2.0
"""Checks of webhook configurations: whether ours are there and call us, for whom, and who else changes GPU pods."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.admission.exemptions import EXEMPT_LABELS
from app.doctor.cluster_objects import Cluster, Object, advice, asks_for_gpus, problem
from app.doctor.fleet_checks import Finding
from app.knowledge.families import Families
from app.kube.device_classes import DeviceClassIndex
from app.kube.resource_slices import read_device_class
from app.values.errors import BadInput
from app.values.label_requirements import all_allow, from_selector

MUTATING, VALIDATING = "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"
DOMAIN = ".gpu-usher.io"
MUTATE, VALIDATE, GUARD = "mutate" + DOMAIN, "validate" + DOMAIN, "cpu-guard" + DOMAIN
SHORTEST_SECONDS, LONGEST_SECONDS = 2, 5
"""deploy/ ships 2 and 3; an answer takes some 0.2 ms, and all webhooks share the time of one request (10 s unset)."""
SHIPPED_POLICY = {
    MUTATE: "Ignore",
    VALIDATE: "Fail",
    "policies" + DOMAIN: "Ignore",
    "devices" + DOMAIN: "Ignore",
    GUARD: "Ignore",
}
"""Why each is so: deploy/base/webhooks.yaml."""
NAMESPACE_NAME = "kubernetes.io/metadata.name"
ALLOCATORS = ("gpu", "hami", "volcano", "kai-", "runai", "run.ai", "koordinator")
"""Parts of names of webhooks that other GPU schedulers bring. A guess from their manifests: no list of them exists."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """One entry of a configuration. `order`: mutating ones are called by the configuration's name, then as listed."""

    kind: str
    order: tuple[str, int]
    spec: Object

    @property
    def name(self) -> str:
        """Give its full name."""
        return str(self.spec.get("name", ""))

    @property
    def ours(self) -> bool:
        """Tell whether it is one of gpu-usher's."""
        return self.name.endswith(DOMAIN)

    @property
    def shown(self) -> str:
        """Say which it is, and where it stands."""
        return f"{self.kind} {self.order[0]}: {self.name}"

    def creates_pods(self) -> bool:
        """Tell whether it is called when a pod is created."""
        return any(
            _either(rule, "apiGroups", "")
            and _either(rule, "resources", "pods")
            and _either(rule, "operations", "CREATE")
            for rule in self.spec.get("rules") or ()
        )

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Tell whether it is called for a namespace with these labels; so where its selector cannot be read."""
        try:
            return all_allow(from_selector(self.spec.get("namespaceSelector") or {}), labels)
        except (BadInput, KeyError, TypeError):
            return True


def _either(rule: Mapping[str, Any], field: str, wanted: str) -> bool:
    found = rule.get(field) or ()
    return wanted in found or "*" in found or (field == "resources" and "*/*" in found)


def webhooks(cluster: Cluster) -> tuple[Webhook, ...]:
    """List every webhook, in the order in which they are called."""
    found = (
        Webhook(kind, (str((item.get("metadata") or {}).get("name")), index), each)
        for kind in (MUTATING, VALIDATING)
        for item in cluster.listed(kind)
        for index, each in enumerate(item.get("webhooks") or ())
    )
    return tuple(sorted(found, key=lambda each: (each.kind, each.order)))


def _ours(cluster: Cluster) -> Iterator[Webhook]:
    return (each for each in webhooks(cluster) if each.ours)


def absent(cluster: Cluster) -> Iterator[Finding]:
    """Without a webhook no pod is repaired, or refused; without its rule for pods it is never called (F22)."""
    for kind, name in ((MUTATING, MUTATE), (VALIDATING, VALIDATE)):
        if not cluster.read(kind):
            continue
        found = [each for each in webhooks(cluster) if each.kind == kind and each.name == name]
        if not found:
            remedy = "install it last: kubectl apply -k deploy/overlays/… (deploy/README.md)"
            yield problem("WebhookAbsent", f"no webhook {name}: GPU pods are not looked at", remedy, kind)
        for each in found:
            if not each.creates_pods():
                remedy = "apply deploy/base/webhooks.yaml again"
                yield problem("WebhookNeverCalled", "no rule for the creation of pods", remedy, each.shown)


def bundles(cluster: Cluster) -> Iterator[Finding]:
    """A Service's webhook without caBundle is never reached: no CA of the system signed our certificate (fault 45)."""
    for each in _ours(cluster):
        client = each.spec.get("clientConfig") or {}
        if client.get("service") and not client.get("caBundle"):
            remedy = "see the log of gpu-usher-certificates (or of cert-manager's cainjector): it writes the CA there"
            yield problem("CABundleAbsent", "no caBundle: every call fails", remedy, each.shown)


def timeouts(cluster: Cluster) -> Iterator[Finding]:
    """While we do not answer, every GPU pod waits as long as the timeout says (P43)."""
    for each in _ours(cluster):
        seconds = each.spec.get("timeoutSeconds", 10)
        if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
            yield advice("WebhookTimeout", f"timeoutSeconds: {seconds}", "timeoutSeconds: 2 or 3", each.shown)


def failure_policies(cluster: Cluster) -> Iterator[Finding]:
    """Which of ours hold up pods while we are away, and which let them pass."""
    for each in _ours(cluster):
        found, wanted = each.spec.get("failurePolicy", "Fail"), SHIPPED_POLICY.get(each.name)
        if wanted is not None and found != wanted:
            means = "passes unchecked" if found == "Ignore" else "is refused"
            what = f"failurePolicy: {found}: what concerns it {means} while gpu-usher is away"
            yield advice("FailurePolicy", what, f"failurePolicy: {wanted}, unless this is meant", each.shown)


def exempts_too_little(cluster: Cluster) -> Iterator[Finding]:
    """A webhook that fails closed on the namespaces that it needs itself can never come back (P43)."""
    for each in _ours(cluster):
        if each.name not in (MUTATE, VALIDATE):
            continue
        if not each.spec.get("matchConditions"):
            remedy = "apply deploy/base/webhooks.yaml again"
            yield problem("NoMatchConditions", "called for every pod, not for GPU pods only", remedy, each.shown)
        caught = tuple(
            name
            for name, labels in namespaces_of(cluster)
            if cluster.knowledge.families.infrastructure(name) and each.selects(labels)
        )
        if caught:
            what = f"called for pods of {', '.join(caught)}, which it may need itself"
            say = problem if each.spec.get("failurePolicy", "Fail") == "Fail" else advice
            remedy = "exempt them in namespaceSelector, as deploy/base/webhooks.yaml does"
            yield say("ExemptsTooLittle", what, remedy, each.shown)


def not_reached(cluster: Cluster) -> Iterator[Finding]:
    """GPUs that DRA serves under a name of the cluster's own reach us only where the matchConditions say the name."""
    families = cluster.knowledge.families
    index = DeviceClassIndex(families)
    for item in cluster.listed("DeviceClass"):
        index.put(read_device_class(item))
    for each in _ours(cluster):
        if each.name not in (MUTATE, VALIDATE) or not each.spec.get("matchConditions"):
            continue
        said = " ".join(str(condition.get("expression")) for condition in each.spec["matchConditions"])
        missed = [
            found
            for found in index.all()
            if found.resource and index.family(found.name) and not _caught(found.resource, families, said)
        ]
        if missed:
            what = f"not called for pods that ask for {', '.join(sorted(str(found.resource) for found in missed))}"
            words = " ".join(f"--resource {found.resource}" for found in missed)
            remedy = f"put what `gpu-usher schema --match-conditions {words}` prints into matchConditions"
            yield problem("ResourceNotReached", what, remedy, each.shown, *(f"DeviceClass {e.name}" for e in missed))


def _caught(resource: str, families: Families, said: str) -> bool:
    return bool(families.of(resource) or families.hands_on(resource) or f"'{resource}'" in said)


def exempts_too_much(cluster: Cluster) -> Iterator[Finding]:
    """A pod must not let itself past (F21); a namespace with GPU pods that nobody looks at should be known."""
    for each in _ours(cluster):
        if each.name not in (MUTATE, VALIDATE):
            continue
        chosen = each.spec.get("objectSelector") or {}
        if chosen.get("matchLabels") or chosen.get("matchExpressions"):
            what = "objectSelector: a pod's own labels let it past"
            yield problem("ExemptsTooMuch", what, "remove objectSelector; exempt namespaces instead", each.shown)
        passed = tuple(name for name, labels in _with_gpu_pods(cluster) if not each.selects(labels))
        if passed:
            what = f"not called for GPU pods of {', '.join(passed)}"
            remedy = f"where that is not meant, remove {' or '.join(EXEMPT_LABELS)} there, or mend namespaceSelector"
            yield advice("ExemptsTooMuch", what, remedy, each.shown)


def not_called_again(cluster: Cluster) -> Iterator[Finding]:
    """Ours must see what webhooks after it changed (F23); those before it that add containers should see ours."""
    ours = [each for each in _ours(cluster) if each.name == MUTATE]
    for each in ours:
        if each.spec.get("reinvocationPolicy", "Never") != "IfNeeded":
            what = "reinvocationPolicy: Never: what later webhooks add is not looked at"
            yield problem("NotCalledAgain", what, "reinvocationPolicy: IfNeeded", each.shown)


def other_allocators(cluster: Cluster) -> Iterator[Finding]:
    """Two that rewrite the same GPU pods undo each other; one called before ours and never again misses our changes."""
    first = min((each.order for each in _ours(cluster) if each.name == MUTATE), default=None)
    for each in webhooks(cluster):
        if first is None or each.ours or each.kind != MUTATING or not each.creates_pods() or not _of_gpus(each):
            continue
        never = each.spec.get("reinvocationPolicy", "Never") == "Never" and each.order < first
        what = f"also changes GPU pods{', is called before gpu-usher and never again' if never else ''}"
        remedy = "let one of the two serve a namespace (gpu-usher.io/ignore=true exempts it here)"
        yield advice("OtherAllocator", what, remedy, each.shown)


def _of_gpus(webhook: Webhook) -> bool:
    words = f"{webhook.order[0]} {webhook.name}".lower()
    return any(part in words for part in ALLOCATORS)


def namespaces_of(cluster: Cluster) -> Iterator[tuple[str, Mapping[str, str]]]:
    """List the namespaces: (name, labels)."""
    for item in cluster.listed("Namespace"):
        metadata = item.get("metadata") or {}
        name = str(metadata.get("name"))
        yield name, {NAMESPACE_NAME: name, **(metadata.get("labels") or {})}


def _with_gpu_pods(cluster: Cluster) -> Iterator[tuple[str, Mapping[str, str]]]:
    families = cluster.knowledge.families
    using = {
        (pod.get("metadata") or {}).get("namespace") for pod in cluster.listed("Pod") if asks_for_gpus(pod, families)
    }
    return (
        (name, labels) for name, labels in namespaces_of(cluster) if name in using and not families.infrastructure(name)
    )
