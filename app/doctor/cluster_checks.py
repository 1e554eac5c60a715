# SPDX-License-Identifier: Apache-2.0
"""The doctor's checks on a live cluster around the nodes: one function per check; the table stands at the end."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from app.doctor import operand_checks, replica_checks, webhook_checks
from app.doctor.cluster_objects import APPLY, ExaminedCluster, containers
from app.doctor.fleet_checks import Finding, advice, merged, problem
from app.kube.admission_objects import ADMISSION_KINDS
from app.kube.api_kinds import API_KINDS, DRA, EXPLAIN_GROUP
from app.policy.load import MOUNTED

ClusterCheck = Callable[[ExaminedCluster], Iterator[Finding]]
OLDEST_MINOR = 30
"""The minor version of Kubernetes that made the matchConditions of webhooks generally available."""
OLDEST_TESTED, NEWEST_TESTED = 33, 37
"""The minor versions of Kubernetes that the tests run (docs/reference/kubernetes-versions.md)."""
CLOCK_ADVICE_SECONDS = 30.0
"""Beyond it the logs and leases of several machines no longer agree (a guess; HTTP's Date has whole seconds)."""
CLOCK_PROBLEM_SECONDS = 3600.0
"""Our certificates are valid from an hour before their issue (app/tls/authority.py BACKDATED), but not earlier."""
OVERDUE, URGENT = 0.75, 0.9
"""Shares of a certificate's life. It is renewed at 2/3 (app/tls/authority.py RENEW_AT) and overdue at 3/4."""
READS = ("get", "list", "watch")
WRITES = {"create", "update", "patch", "delete", "deletecollection", "*"}
NEEDED = ("Node", "Pod", "Namespace", "ConfigMap", "RuntimeClass", *ADMISSION_KINDS)
"""The kinds that deploy/base/rbac.yaml gives the right to read."""
ABOUT_ONESELF = "selfsubject"
"""Prefix of the self-subject reviews, which every user may create (system:basic-user)."""
EVENTS = "GPU_USHER_EVENTS"
"""The variable that has a process write Events (docs/reference/events.md#rights)."""
MESSAGE_SHOWN = 200
"""Characters of another server's message that a finding shows. A guess."""
MIGRATE = (
    "kubectl get gpupolicies -o json | kubectl replace -f -; kubectl patch crd gpupolicies.gpu-usher.io "
    """--subresource=status --type=merge -p '{"status":{"storedVersions":["$STORAGE"]}}'"""
)
"""The commands that store all objects in the storage version (docs/reference/stability.md)."""
_MINOR = re.compile(r"v1\.(\d+)", re.ASCII)


def unreadable_kinds(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report what could not be read, so that missing findings are not taken for health."""
    for kind, message in cluster.refused.items():
        yield advice("NotLookedAt", f"could not be read: {message}", "run doctor as a user who may read it", kind)


def api_version(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report a version that is too old or not tested: before matchConditions every pod calls the webhook."""
    version = _MINOR.match(cluster.version)
    if version is None:
        return
    minor, tested = int(version[1]), f"1.{OLDEST_TESTED} to 1.{NEWEST_TESTED}"
    if minor < OLDEST_MINOR:
        text = f"Kubernetes {cluster.version} is older than 1.{OLDEST_MINOR}"
        yield problem("KubernetesVersion", text, f"upgrade to 1.{OLDEST_MINOR} or later", "API server")
    elif minor < OLDEST_TESTED:
        text = f"Kubernetes {cluster.version} is older than what gpu-usher is tested with, {tested}"
        yield advice("KubernetesVersion", text, f"upgrade to 1.{OLDEST_TESTED} or later", "API server")
    elif minor > NEWEST_TESTED:
        text = f"Kubernetes {cluster.version} is newer than what gpu-usher is tested with, {tested}"
        yield advice("KubernetesVersion", text, "check for a newer gpu-usher", "API server")


def api_services(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report aggregated APIs that are not available: without their lists no namespace can be deleted.

    The namespace controller deletes the objects of every registered API, and discovery fails for one whose server does
    not answer (kubernetes pkg/controller/namespace/deletion/namespaced_resources_deleter.go).
    """
    for item in cluster.objects_of("APIService"):
        spec, name = item.get("spec") or {}, item["metadata"]["name"]
        conditions = (item.get("status") or {}).get("conditions") or ()
        available = next((condition for condition in conditions if condition.get("type") == "Available"), None)
        if not spec.get("service") or available is None or available.get("status") == "True":
            continue
        cause = " ".join(str(available.get("message") or available.get("reason") or "no reason stated").split())
        text = f"is not available, so that no namespace of the cluster can be deleted: {cause[:MESSAGE_SHOWN]}"
        if spec.get("group") == EXPLAIN_GROUP:
            remedy = f"let the control plane reach port 8445 of the replicas, or: kubectl delete apiservice {name}"
            yield problem("APIServiceUnavailable", text, remedy, f"APIService {name}")
        else:
            remedy = "repair the Service that it names, or delete the APIService if its operator was uninstalled"
            yield advice("APIServiceUnavailable", text, remedy, f"APIService {name}")


def clock_skew(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report clocks that differ, since certificates then end early and leases late."""
    seconds = cluster.ahead_seconds
    if seconds is None or abs(seconds) <= CLOCK_ADVICE_SECONDS:
        return
    finding = problem if abs(seconds) >= CLOCK_PROBLEM_SECONDS else advice
    text = f"the API server's clock is {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} this machine's"
    yield finding("ClockSkew", text, "synchronise both machines by NTP", "API server")


def certificates_refused(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report certificates that callers do not accept, which stops admission, also by replicas that do not start."""
    absent = any(replica_checks.certificates_keeper(cluster))
    log = "start gpu-usher-certificates" if absent else "read the log of gpu-usher-certificates or of cert-manager"
    for certificate in cluster.certificates:
        for reason in certificate.wrong:
            yield problem("Certificate", reason, f"{log}; `gpu-usher certs show` says more", certificate.where)


def certificates_due(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report certificates that were not renewed in time."""
    for certificate in cluster.certificates:
        if not certificate.wrong and certificate.spent >= OVERDUE:
            finding = problem if certificate.spent >= URGENT else advice
            text = f"expires at {certificate.ends}, and {certificate.spent:.0%} of its life is over: renewal is overdue"
            remedy = "find out why it is not renewed: gpu-usher certs show"
            yield finding("CertificateExpires", text, remedy, certificate.where)


def service_account_rights(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report rights that the serving replicas lack to watch, or have to write, which they never do."""
    if cluster.rules is None:
        return
    account = f"ServiceAccount {cluster.namespace}/gpu-usher"
    needed = [API_KINDS[name] for name in (*NEEDED, *(DRA if cluster.objects_of("ResourceSlice") else ()))]
    lacking = [
        kind.plural for kind in needed if not all(_granted(cluster, kind.group, kind.plural, verb) for verb in READS)
    ]
    if lacking:
        text = f"may not get, list and watch {', '.join(lacking)}"
        finding = advice if set(lacking) <= {API_KINDS[kind].plural for kind in ADMISSION_KINDS} else problem
        yield finding("RightsMissing", text, f"{APPLY}; DRA needs components/dra", account)
    replicas = [one for one in cluster.objects_of("Deployment") if one["metadata"]["name"] == "gpu-usher"]
    settings = (container.get("env") or () for one in replicas for container in containers(one.get("spec")))
    if any({"name": EVENTS, "value": "true"} in values for values in settings):
        return  # as installed before there was a controller; without these rights its Events would end
    writes = sorted(
        f"{verb} {resource}"
        for rule in cluster.rules
        for resource in rule.get("resources") or ()
        if not str(resource).startswith(ABOUT_ONESELF)
        for verb in rule.get("verbs") or ()
        if verb in WRITES
    )
    if writes:
        text = f"may {', '.join(dict.fromkeys(writes))}, though the serving replicas only read"
        remedy = "delete the bindings that give it these rights; gpu-usher-controller writes Events with its own"
        yield advice("RightsTooWide", text, remedy, account)


def policies_out_of_reach(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report that the mounted ConfigMap of policies is absent, or that the replicas may not read GPUPolicies."""
    deployed = any(item["metadata"].get("name") == "gpu-usher" for item in cluster.objects_of("Deployment"))
    names = {item["metadata"].get("name") for item in cluster.objects_of("ConfigMap")}
    if deployed and cluster.could_read("ConfigMap") and MOUNTED not in names:
        text = "does not exist: the last good policies are in force, or the shipped default where none were kept"
        remedy = "apply deploy/overlays/…, or helm upgrade, again: it brings the ConfigMap back"
        yield problem("PoliciesAbsent", text, remedy, f"ConfigMap {cluster.namespace}/{MOUNTED}")
    kind = API_KINDS["GPUPolicy"]
    readable = all(_granted(cluster, kind.group, kind.plural, verb) for verb in READS)
    if cluster.rules is not None and cluster.could_read("GPUPolicy") and not readable:
        count = len(cluster.objects_of("GPUPolicy"))
        text = f"may not get, list and watch {kind.plural}: {count} of them are not in force, and not checked"
        account = f"ServiceAccount {cluster.namespace}/gpu-usher"
        yield problem("PoliciesUnreadable", text, "apply deploy/components/crd/rbac.yaml", account)


def policy_definition(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report a definition of GPUPolicy without the newest version, and versions in which objects may still be stored.

    A definition without a version of status.storedVersions is refused by the API server, and with it a rollback.
    """
    for item in cluster.objects_of("CustomResourceDefinition"):
        where, versions = f"CustomResourceDefinition {item['metadata']['name']}", item["spec"]["versions"]
        newest = API_KINDS["GPUPolicy"].versions[-1]
        if not any(version["name"] == newest and version["served"] for version in versions):
            text = f"is of another release: it does not serve {newest}, so that policies of that version are refused"
            yield advice("PolicyVersionAbsent", text, "apply deploy/components/crd/gpupolicies.yaml", where)
        storage = next(version["name"] for version in versions if version["storage"])
        old = [name for name in (item.get("status") or {}).get("storedVersions") or () if name != storage]
        if old:
            text = f"objects may still be stored as {', '.join(old)}, without which no definition can be installed then"
            yield advice("PolicyStoredVersion", text, MIGRATE.replace("$STORAGE", storage), where)


def _granted(cluster: ExaminedCluster, group: str, resource: str, verb: str) -> bool:
    return any(
        _covers(group, rule.get("apiGroups"))
        and _covers(resource, rule.get("resources"))
        and _covers(verb, rule.get("verbs"))
        for rule in cluster.rules or ()
        if not rule.get("resourceNames")
    )


def _covers(value: str, allowed: list[str] | None) -> bool:
    return value in (allowed or ()) or "*" in (allowed or ())


def unadmitted_and_misplaced_pods(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Report pods that run without admission's changes, or on nodes that refuse them."""
    unadmitted = tuple(f"Pod {report.pod}" for report in cluster.slipped if report.kind == "unadmitted")
    if unadmitted:
        remedy = "recreate them: they were created while no webhook answered, or before it was installed"
        yield advice("Unadmitted", "are running without having been reviewed by admission", remedy, *unadmitted)
    for reason in sorted({report.why for report in cluster.slipped if report.kind == "misplaced"}):
        pods = tuple(f"Pod {report.pod}" for report in cluster.slipped if report.why == reason)
        remedy = "delete them so that they are scheduled again; find out what sets nodeName or another schedulerName"
        yield problem("Misplaced", f"run on nodes that would refuse them now: {reason}", remedy, *pods)


CHECKS: tuple[ClusterCheck, ...] = (
    replica_checks.certificates_keeper,
    certificates_refused,
    replica_checks.no_ready_endpoint,
    api_version,
    clock_skew,
    webhook_checks.webhook_absent,
    webhook_checks.ca_bundle_absent,
    certificates_due,
    replica_checks.deployments,
    api_services,
    webhook_checks.exempts_too_little,
    webhook_checks.exempts_too_much,
    webhook_checks.resource_not_matched,
    webhook_checks.exemptions_unguarded,
    webhook_checks.namespaces_exempt_by_label,
    webhook_checks.namespaces_exempt_by_name,
    webhook_checks.operators_not_exempt,
    webhook_checks.reinvocation_never,
    webhook_checks.failure_policies,
    webhook_checks.timeouts,
    webhook_checks.other_allocators,
    service_account_rights,
    policies_out_of_reach,
    policy_definition,
    operand_checks.scheduler_version,
    operand_checks.runtime_class,
    operand_checks.device_plugin,
    operand_checks.discovery,
    unadmitted_and_misplaced_pods,
    operand_checks.requests_only,
    operand_checks.provisioner_templates,
    unreadable_kinds,
)
"""First what stops admission, then which pods it reviews, then what pods depend on, then what could not be examined."""


def examine_cluster(cluster: ExaminedCluster) -> tuple[Finding, ...]:
    """Run every check; findings that differ only in their objects or nodes are merged."""
    return _with_tried_pod(merged(finding for check in CHECKS for finding in check(cluster)), cluster)


SAYS_WHY = ("NoReadyEndpoint", "CABundleAbsent", "Certificate", "WebhookNeverCalled")
"""The checks that find why the API server cannot call a webhook of ours, or does not."""
_CALLED = re.compile(r'calling webhook "([^"]+)"', re.ASCII)
"""A webhook's name in a message of the API server (k8s.io/apiserver pkg/admission/plugin/webhook/errors)."""


def _with_tried_pod(findings: tuple[Finding, ...], cluster: ExaminedCluster) -> tuple[Finding, ...]:
    """Add what became of the GPU pod by dry run, first; where a check has found the cause, its finding says so."""
    tried = cluster.tried
    if tried is None or (tried.reviewed and not tried.failure):
        return findings
    called = _CALLED.findall(tried.failure) if tried.failure else [webhook_checks.MUTATE]
    webhook = next((one for one in webhook_checks.webhooks(cluster) if one.name in called), None)
    cause = next((one for one in findings if one.check in SAYS_WHY and webhook and _concerns(one, webhook)), None)
    if not tried.failure:
        text = f"a GPU pod created by dry run in namespace {tried.namespace} is admitted without our review"
        remedy = "read in the API server's log why it does not call it; with serve --shadow this is intended"
        unseen = [advice("GPUPodNotReviewed", text, remedy, webhook.shown)] if webhook and cause is None else []
        return (*findings, *unseen)
    said = f"a GPU pod created by dry run in namespace {tried.namespace} is refused: {tried.failure}"
    if cause is not None:
        return (replace(cause, what=f"{cause.what}; {said}"), *(one for one in findings if one is not cause))
    row = next(row for row in cluster.knowledge.webhook_calls if row.message in tried.failure)
    refused = problem("GPUPodRefused", f"{row.why}; {said}", row.remedy, webhook.shown if webhook else "API server")
    return (refused, *findings)


def _concerns(finding: Finding, webhook: webhook_checks.Webhook) -> bool:
    """Tell whether a finding is about a webhook, its certificate, or the Service that answers it."""
    service = (webhook.spec.get("clientConfig") or {}).get("service") or {}
    place = f"Service {service.get('namespace')}/{service.get('name')}"
    return any(named == place or named.startswith(webhook.shown) for named in finding.objects)
