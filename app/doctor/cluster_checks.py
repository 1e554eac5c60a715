# SPDX-License-Identifier: Apache-2.0
"""The doctor on a live cluster: what is wrong around the nodes. One function a check; the tuple is the product."""

import re
from collections.abc import Callable, Iterator

from app.doctor import openings, operand_checks, webhook_checks
from app.doctor.cluster_objects import Cluster, advice, problem
from app.doctor.fleet_checks import Finding

Check = Callable[[Cluster], Iterator[Finding]]
OLDEST_MINOR, NEWEST_MINOR = 30, 37
"""matchConditions came with 1.30; 1.37 is the newest whose payloads are tested."""
SKEWED_SECONDS = 30.0
"""Above it logs and leases of several machines tell different stories (a guess; HTTP's Date has whole seconds)."""
BROKEN_SECONDS = 3600.0
"""Our certificates begin an hour early (app/tls/authority.py BACKDATED): beyond it they are not valid."""
OVERDUE, URGENT = 0.75, 0.9
"""Shares of a certificate's life. It is renewed at two thirds (app/tls/authority.py RENEW_AT): at 3/4 it is overdue."""
READS = ("get", "list", "watch")
WRITES = {"create", "update", "patch", "delete", "deletecollection", "*"}
NEEDED = (("", "nodes"), ("", "pods"), ("", "namespaces"), ("", "configmaps"), ("node.k8s.io", "runtimeclasses"))
"""deploy/base/rbac.yaml."""
DRA = tuple(
    ("resource.k8s.io", each)
    for each in ("deviceclasses", "resourceslices", "resourceclaims", "resourceclaimtemplates")
)
ABOUT_ONESELF = "selfsubject"
"""Reviews of oneself are everybody's (system:basic-user)."""
_MINOR = re.compile(r"v1\.(\d+)", re.ASCII)


def unreachable(cluster: Cluster) -> Iterator[Finding]:
    """Nothing more can be said without the API server."""
    if not cluster.reached:
        remedy = "see that the kubeconfig's address, CA and user are right"
        yield problem("APIServerUnreachable", "; ".join(cluster.refused.values()), remedy, "API server")


def not_looked_at(cluster: Cluster) -> Iterator[Finding]:
    """Say what could not be read, so that silence is not taken for health."""
    if not cluster.reached:
        return
    for kind, words in cluster.refused.items():
        yield advice("NotLookedAt", f"not looked at: {words}", "run doctor as somebody who may read it", kind)


def api_version(cluster: Cluster) -> Iterator[Finding]:
    """Below 1.30 the API server takes no matchConditions, and every pod would be sent to us."""
    found = _MINOR.match(cluster.version)
    if found is None:
        return
    if int(found[1]) < OLDEST_MINOR:
        what = f"Kubernetes {cluster.version} is older than 1.{OLDEST_MINOR}"
        yield problem("KubernetesVersion", what, f"upgrade to 1.{OLDEST_MINOR} or later", "API server")
    elif int(found[1]) > NEWEST_MINOR:
        what = f"Kubernetes {cluster.version} is newer than what gpu-usher is tested with, 1.{NEWEST_MINOR}"
        yield advice("KubernetesVersion", what, "look for a newer gpu-usher", "API server")


def clock(cluster: Cluster) -> Iterator[Finding]:
    """Clocks that differ end certificates early and leases late (fault 46)."""
    seconds = cluster.ahead_seconds
    if seconds is None or abs(seconds) <= SKEWED_SECONDS:
        return
    say = problem if abs(seconds) >= BROKEN_SECONDS else advice
    what = f"the API server's clock is {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} this machine's"
    yield say("ClockSkew", what, "see that both machines follow NTP", "API server")


def certificates(cluster: Cluster) -> Iterator[Finding]:
    """A certificate that callers do not accept stops admission; one not renewed in time will (P44)."""
    for each in cluster.certificates:
        for wrong in each.wrong:
            remedy = "see the log of gpu-usher-certificates or cert-manager; `gpu-usher certs show` tells more"
            yield problem("Certificate", wrong, remedy, each.where)
        if not each.wrong and each.spent >= OVERDUE:
            say = problem if each.spent >= URGENT else advice
            what = f"{each.spent:.0%} of its life is over, it ends {each.ends}: renewal is overdue"
            yield say("CertificateExpires", what, "see why nobody renews it: gpu-usher certs show", each.where)


def rights(cluster: Cluster) -> Iterator[Finding]:
    """The serving replicas read what they follow, and write nothing (F104)."""
    if cluster.rules is None:
        return
    account = f"ServiceAccount {cluster.namespace}/gpu-usher"
    wanted = (*NEEDED, *(DRA if cluster.listed("ResourceSlice") else ()))
    lacking = [name for group, name in wanted if not all(_granted(cluster, group, name, verb) for verb in READS)]
    if lacking:
        what = f"may not get, list and watch {', '.join(lacking)}"
        yield problem("RightsMissing", what, "apply deploy/base/rbac.yaml, and components/dra with DRA", account)
    writes = sorted(
        f"{verb} {resource}"
        for rule in cluster.rules
        for resource in rule.get("resources") or ()
        if not str(resource).startswith(ABOUT_ONESELF)
        for verb in rule.get("verbs") or ()
        if verb in WRITES
    )
    if writes:
        what = f"may {', '.join(dict.fromkeys(writes))}, which gpu-usher never does"
        yield advice("RightsTooWide", what, "take these rights away", account)


def _granted(cluster: Cluster, group: str, resource: str, verb: str) -> bool:
    return any(
        _in(group, rule.get("apiGroups")) and _in(resource, rule.get("resources")) and _in(verb, rule.get("verbs"))
        for rule in cluster.rules or ()
        if not rule.get("resourceNames")
    )


def _in(wanted: str, found: list[str] | None) -> bool:
    return wanted in (found or ()) or "*" in (found or ())


def slipped(cluster: Cluster) -> Iterator[Finding]:
    """Pods that run without what they would have been given, or where they should not be (F98, P11)."""
    unadmitted = tuple(f"Pod {each.pod}" for each in cluster.slipped if each.kind == "unadmitted")
    if unadmitted:
        remedy = "make them again: they were created while no webhook answered, or before it was installed"
        yield advice("Unadmitted", "run without having been looked at", remedy, *unadmitted)
    for why in sorted({each.why for each in cluster.slipped if each.kind == "misplaced"}):
        pods = tuple(f"Pod {each.pod}" for each in cluster.slipped if each.why == why)
        remedy = "delete them, to be placed anew; see who sets nodeName or another schedulerName"
        yield problem("Misplaced", f"run where they would be refused: {why}", remedy, *pods)


CHECKS: tuple[Check, ...] = (
    unreachable,
    api_version,
    clock,
    webhook_checks.absent,
    webhook_checks.bundles,
    certificates,
    operand_checks.deployments,
    webhook_checks.exempts_too_little,
    webhook_checks.exempts_too_much,
    webhook_checks.not_reached,
    openings.unguarded,
    openings.labelled,
    openings.squatted,
    webhook_checks.not_called_again,
    webhook_checks.failure_policies,
    webhook_checks.timeouts,
    webhook_checks.other_allocators,
    rights,
    operand_checks.scheduler_version,
    operand_checks.runtime_class,
    operand_checks.device_plugin,
    operand_checks.discovery,
    slipped,
    operand_checks.requests_only,
    operand_checks.provisioner_templates,
    not_looked_at,
)
"""What stops admission first, then who is served, then what pods lean on, then what could not be seen."""


def examine_cluster(cluster: Cluster) -> tuple[Finding, ...]:
    """Run every check; findings that differ only in the object are one."""
    merged: dict[tuple[object, ...], Finding] = {}
    for check in CHECKS:
        for each in check(cluster):
            key = (each.check, each.level, each.what, each.remedy)
            known = merged.get(key)
            merged[key] = each if known is None else _joined(known, each)
    return tuple(merged.values())


def _joined(one: Finding, other: Finding) -> Finding:
    nodes, objects = (*one.nodes, *other.nodes), (*one.objects, *other.objects)
    return Finding(one.check, one.level, one.what, one.remedy, nodes, objects)
