# SPDX-License-Identifier: Apache-2.0
"""Check an existing KubeSchedulerConfiguration: what in it is dangerous, where, and what to write instead.

What each mistake does was seen on a real kube-scheduler (CONTROL_PLANE §5, OPERATIONS §2.1).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.policy.document import Document, Path, read_documents
from app.schedulerconfig.write import OWN_NAME, TIMEOUT_SECONDS, WEIGHT

API_VERSION = "kubescheduler.config.k8s.io/v1"
VERBS = ("filterVerb", "prioritizeVerb", "preemptVerb")
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to mend. `where`: file:line:column."""

    severity: Literal["danger", "warning"]
    where: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Checked:
    """A configuration, and our entry in its extenders. `offered`: GPU resources of the fleet, empty if not known."""

    document: Document
    value: Mapping[str, Any]
    index: int
    extender: Mapping[str, Any]
    offered: tuple[str, ...]

    def danger(self, field: str, message: str, remedy: str) -> Finding:
        """Report what loses or misplaces pods."""
        return Finding("danger", self._where(field), f"{field}: {message}", remedy)

    def warning(self, field: str, message: str, remedy: str) -> Finding:
        """Report what costs speed or quality."""
        return Finding("warning", self._where(field), f"{field}: {message}", remedy)

    def _where(self, field: str) -> str:
        return self.document.locate(("extenders", self.index, *field.split(".")))


def verify(file: str, text: str, offered: tuple[str, ...] = ()) -> list[Finding]:
    """List what is dangerous in a configuration.

    Raises PolicyError where it is no YAML.
    """
    document = read_documents(file, text)[0]
    value = document.value if isinstance(document.value, dict) else {}
    if value.get("kind") != "KubeSchedulerConfiguration" or value.get("apiVersion") != API_VERSION:
        return [_misfit(document, (), "no KubeSchedulerConfiguration of v1", f"apiVersion: {API_VERSION}")]
    extenders = value.get("extenders")
    ours = [(index, each) for index, each in enumerate(extenders or ()) if isinstance(each, dict) and _is_ours(each)]
    if not ours:
        remedy = "take the extenders entry that gpu-usher scheduler-config writes"
        return [_misfit(document, ("extenders",), "no extender whose urlPrefix ends in /scheduler", remedy)]
    found = [
        finding
        for index, extender in ours
        for check in CHECKS
        for finding in check(Checked(document, value, index, extender, offered))
    ]
    if len(ours) > 1:
        found.append(_misfit(document, ("extenders", ours[1][0]), "gpu-usher is listed twice", "keep one entry"))
    return found


def _misfit(document: Document, path: Path, message: str, remedy: str) -> Finding:
    return Finding("danger", document.locate(path), message, remedy)


def _is_ours(extender: Mapping[str, Any]) -> bool:
    url = str(extender.get("urlPrefix", "")).rstrip("/")
    return url.endswith("/scheduler") or "gpu-usher" in url


def transport(one: Checked) -> Iterator[Finding]:
    """Names and victims go over this line: it must be encrypted, and the other end must be us."""
    url, tls = str(one.extender.get("urlPrefix", "")), one.extender.get("tlsConfig") or {}
    local = re.match(r"https?://(?:127\.|localhost|\[::1\])", url)
    if not url.startswith("https://") or not one.extender.get("enableHTTPS"):
        if not local:
            yield one.danger("urlPrefix", f"{url} is not encrypted", "https:// and enableHTTPS: true")
    elif tls.get("insecure") or not (tls.get("caData") or tls.get("caFile")):
        yield one.danger("tlsConfig", "no CA, so nothing is verified", "caData, and no insecure: true")


def routes(one: Checked) -> Iterator[Finding]:
    """A wrong path is answered with 404, and every GPU pod stays Pending."""
    if not str(one.extender.get("urlPrefix", "")).rstrip("/").endswith("/scheduler"):
        yield one.danger("urlPrefix", "does not end in /scheduler", "urlPrefix: https://…/scheduler")
    for field in VERBS:
        verb = one.extender.get(field)
        if verb is not None and verb != field.removesuffix("Verb"):
            yield one.danger(field, f"got {verb}, a route that is not there", f"{field}: {field.removesuffix('Verb')}")


def filters(one: Checked) -> Iterator[Finding]:
    """Without filter nothing keeps a pod off the wrong GPU."""
    if one.extender.get("filterVerb") is None:
        yield one.danger("filterVerb", "absent, so no node is ever refused", "filterVerb: filter")


def preemption(one: Checked) -> Iterator[Finding]:
    """Seen: a pod refused everywhere by policy evicted ten pods on five nodes."""
    if one.extender.get("preemptVerb") is None:
        yield one.danger("preemptVerb", "absent, so pods are evicted for nothing", "preemptVerb: preempt")


def binding(one: Checked) -> Iterator[Finding]:
    """We never bind: a 200 without a Binding leaves the pod assumed and Pending."""
    if one.extender.get("bindVerb") is not None:
        yield one.danger("bindVerb", "set, and gpu-usher has no such route", "remove bindVerb")


def names_only(one: Checked) -> Iterator[Finding]:
    """Whole nodes cost 140 ms a pod, and come back as empty ones to the in-tree scores (kubernetes#141781)."""
    if one.extender.get("nodeCacheCapable") is not True:
        yield one.danger("nodeCacheCapable", "not true: slow, and in-tree scores go wrong", "nodeCacheCapable: true")


def failing_closed(one: Checked) -> Iterator[Finding]:
    """Ignored errors place GPU pods by count alone."""
    if one.extender.get("ignorable"):
        yield one.danger("ignorable", "true: while we are down any node with a free GPU will do", "ignorable: false")


def timeout(one: Checked) -> Iterator[Finding]:
    """Scheduling is one loop; the default is 5 s."""
    text = one.extender.get("httpTimeout")
    seconds = _seconds(text)
    if seconds is None or not 0 < seconds <= TIMEOUT_SECONDS:
        got = "absent, which means 5s" if text is None else f"got {text}"
        yield one.warning("httpTimeout", f"{got}: all scheduling waits so long", f"httpTimeout: {TIMEOUT_SECONDS}s")


def _seconds(text: Any) -> float | None:
    match = _DURATION.fullmatch(text) if isinstance(text, str) and text else None
    if match is None:
        return None
    hours, minutes, seconds, milliseconds = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000


def weight(one: Checked) -> Iterator[Finding]:
    """Below 10 the in-tree scores, some 400, outweigh ours."""
    found = one.extender.get("weight")
    if one.extender.get("prioritizeVerb") is None:
        return
    if not isinstance(found, int) or found <= 0:
        yield one.danger("weight", "absent: the scheduler refuses to start", f"weight: {WEIGHT}")
    elif found < WEIGHT:
        yield one.warning("weight", f"got {found}: in-tree scores decide instead", f"weight: {WEIGHT}")


def managed(one: Checked) -> Iterator[Finding]:
    """Without a list every pod of the cluster is asked about; a name that is missing is never asked about."""
    rows = one.extender.get("managedResources")
    if not isinstance(rows, list) or not rows:
        yield one.danger("managedResources", "absent, so every pod calls us", "list the GPU resources")
        return
    named = {row.get("name") for row in rows if isinstance(row, dict)}
    missing = [name for name in one.offered if name not in named]
    if missing:
        yield one.danger("managedResources", f"{', '.join(missing)} not listed, never asked about", "add them")
    for index, row in enumerate(rows):
        if isinstance(row, dict) and row.get("ignoredByScheduler"):
            field = f"managedResources.{index}"
            message = f"{row.get('name')} is no longer counted: 16 GPUs fit on a node of 4"
            yield Finding("danger", one.document.locate(("extenders", one.index, "managedResources", index)),
                          f"{field}: {message}", "ignoredByScheduler: false")  # fmt: skip


def lease(one: Checked) -> Iterator[Finding]:
    """Two schedulers with one lease take turns, and one of them stands idle."""
    profiles = one.value.get("profiles") or ()
    names = {profile.get("schedulerName", "default-scheduler") for profile in profiles if isinstance(profile, dict)}
    election = one.value.get("leaderElection") or {}
    place = (election.get("resourceNamespace", "kube-system"), election.get("resourceName", "kube-scheduler"))
    if names and "default-scheduler" not in names and place == ("kube-system", "kube-scheduler"):
        yield Finding(
            "danger",
            one.document.locate(("leaderElection",)),
            "leaderElection: the lease of the cluster's own scheduler",
            f"resourceNamespace: gpu-usher, resourceName: {OWN_NAME}",
        )


Check = Callable[[Checked], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    transport,
    routes,
    filters,
    preemption,
    binding,
    names_only,
    failing_closed,
    timeout,
    weight,
    managed,
    lease,
)
"""What is looked at, in the order of the file. To add a check: one function, one line here, one test."""
