# SPDX-License-Identifier: Apache-2.0
"""Check an existing KubeSchedulerConfiguration: what in it is dangerous, where, and what to write instead.

What each mistake does was seen on a real kube-scheduler (docs/reference/control-plane.md#calls-of-the-scheduler);
"refuses to start" is the word of kube-scheduler 1.36 itself, run with such a file.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.policy.document import Document, Path, read_documents
from app.schedulerconfig.write import NAMESPACE, OWN_NAME, TIMEOUT_SECONDS, WEIGHT
from app.values.errors import PolicyError

API_VERSION = "kubescheduler.config.k8s.io/v1"
CLUSTERS_NAME = "default-scheduler"
CLUSTERS_LEASE = ("kube-system", "kube-scheduler")
VERBS = ("filterVerb", "prioritizeVerb", "preemptVerb")
_PART = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)"
_DURATION = re.compile(f"(?:{_PART})+", re.ASCII)
"""Go's time.ParseDuration, without a sign."""
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_LOOPBACK = re.compile(r"https?://(?:127(?:\.\d{1,3}){3}|localhost|\[::1\])(?::\d+)?(?:/|$)", re.ASCII)
_SHAPES = {"extenders": list, "profiles": list, "leaderElection": dict, "tlsConfig": dict, "managedResources": list}
SMALLEST_SHARE_PERCENT = 5
"""What kube-scheduler samples by itself: max(5, 50 - nodes / 125) % (docs/reference/control-plane.md#sampling)."""
NO_START = "the scheduler refuses to start"


@dataclass(frozen=True, slots=True)
class ConfigurationFinding:
    """One thing to mend. `where`: file:line:column."""

    severity: Literal["danger", "warning"]
    where: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class ExtenderEntry:
    """A configuration, and our entry in its extenders.

    `offered`: GPU resources of the fleet, empty if not known. `nodes`: how many it has, 0 if not known.
    """

    document: Document
    value: Mapping[str, Any]
    index: int
    extender: Mapping[str, Any]
    offered: tuple[str, ...]
    nodes: int = 0

    def danger(self, field: str, message: str, remedy: str) -> ConfigurationFinding:
        """Report what loses or misplaces pods."""
        return self.danger_at(self.place(field), f"{field}: {message}", remedy)

    def warning(self, field: str, message: str, remedy: str) -> ConfigurationFinding:
        """Report what costs speed or quality."""
        return ConfigurationFinding("warning", self.document.locate(self.place(field)), f"{field}: {message}", remedy)

    def danger_at(self, path: Path, message: str, remedy: str) -> ConfigurationFinding:
        """Report what loses or misplaces pods, anywhere in the file."""
        return _misfit(self.document, path, message, remedy)

    def place(self, *path: str | int) -> Path:
        """Give the path of a field of our entry."""
        return ("extenders", self.index, *path)


def verify(file: str, text: str, offered: tuple[str, ...] = (), nodes: int = 0) -> list[ConfigurationFinding]:
    """List what is dangerous in a configuration.

    Raises PolicyError where it is no YAML, or not one document.
    """
    documents = read_documents(file, text)
    if len(documents) != 1:
        raise PolicyError((f"{file}:1:1: got {len(documents)} YAML documents, wants one KubeSchedulerConfiguration",))
    document = documents[0]
    value = document.value if isinstance(document.value, dict) else {}
    if value.get("kind") != "KubeSchedulerConfiguration" or value.get("apiVersion") != API_VERSION:
        return [_misfit(document, (), "no KubeSchedulerConfiguration of v1", f"apiVersion: {API_VERSION}")]
    misshapen = list(_misshapen(document, value))
    if misshapen:
        return misshapen
    ours = [(index, each) for index, each in enumerate(value.get("extenders") or ()) if _is_ours(each)]
    if not ours:
        remedy = "take the extenders entry that gpu-usher scheduler-config writes"
        return [_misfit(document, ("extenders",), "no extender whose urlPrefix ends in /scheduler", remedy)]
    found = [
        finding
        for index, extender in ours
        for check in CHECKS
        for finding in check(ExtenderEntry(document, value, index, extender, offered, nodes))
    ]
    found += [
        finding for check in FILE_CHECKS for finding in check(ExtenderEntry(document, value, *ours[0], offered, nodes))
    ]
    if len(ours) > 1:
        found.append(_misfit(document, ("extenders", ours[1][0]), "gpu-usher is listed twice", "keep one entry"))
    return found


def _misfit(document: Document, path: Path, message: str, remedy: str) -> ConfigurationFinding:
    return ConfigurationFinding("danger", document.locate(path), message, remedy)


def _misshapen(document: Document, value: Mapping[str, Any], path: Path = ()) -> Iterator[ConfigurationFinding]:
    """Find what the checks below could not read, nor could the scheduler: it refuses to start."""
    for field, found in value.items():
        shape = _SHAPES.get(field)
        if shape is None or found is None:
            continue
        where = (*path, field)
        rows = found if isinstance(found, list) else [found]
        if not isinstance(found, shape) or not all(isinstance(row, dict) for row in rows):
            wants = "a list of mappings" if shape is list else "a mapping"
            yield _misfit(document, where, f"{field}: got another shape, {NO_START}", wants)
        elif shape is list:
            for index, row in enumerate(rows):
                yield from _misshapen(document, row, (*where, index))


def _is_ours(extender: Mapping[str, Any]) -> bool:
    url = str(extender.get("urlPrefix", "")).rstrip("/")
    return url.endswith("/scheduler") or "gpu-usher" in url


def transport(one: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Names and victims go over this line: it must be encrypted, and the other end must be us."""
    url, tls = str(one.extender.get("urlPrefix", "")), one.extender.get("tlsConfig") or {}
    encrypted = url.startswith("https://")
    if not _LOOPBACK.match(url) and not (encrypted and one.extender.get("enableHTTPS")):
        yield one.danger("urlPrefix", f"{url} is not encrypted", "https:// and enableHTTPS: true")
    elif not encrypted:
        return
    elif tls.get("insecure") or not (tls.get("caData") or tls.get("caFile")):
        yield one.danger("tlsConfig", "no CA, so nothing is verified", "caData, and no insecure: true")


def routes(one: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """A wrong path is answered with 404, and every GPU pod stays Pending."""
    if not str(one.extender.get("urlPrefix", "")).rstrip("/").endswith("/scheduler"):
        yield one.danger("urlPrefix", "does not end in /scheduler", "urlPrefix: https://…/scheduler")
    for field in VERBS:
        verb = one.extender.get(field)
        if verb is not None and verb != field.removesuffix("Verb"):
            yield one.danger(field, f"got {verb}, a route that is not there", f"{field}: {field.removesuffix('Verb')}")


def filters(one: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Without filter nothing keeps a pod off the wrong GPU."""
    if one.extender.get("filterVerb") is None:
        yield one.danger("filterVerb", "absent, so no node is ever refused", "filterVerb: filter")


def preemption(one: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Seen: a pod refused everywhere by policy evicted ten pods on five nodes."""
    if one.extender.get("preemptVerb") is None:
        yield one.danger("preemptVerb", "absent, so pods are evicted for nothing", "preemptVerb: preempt")


def binding(one: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """We never bind: a 200 without a Binding leaves the pod assumed and Pending."""
    if one.extender.get("bindVerb") is not None:
        yield one.danger("bindVerb", "set, and gpu-usher has no such route", "remove bindVerb")


def names_only(one: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Whole nodes cost 140 ms a pod, and come back as empty ones to the in-tree scores (kubernetes#141781)."""
    if one.extender.get("nodeCacheCapable") is not True:
        yield one.danger("nodeCacheCapable", "not true: slow, and in-tree scores go wrong", "nodeCacheCapable: true")


def failing_closed(one: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Ignored errors place GPU pods by count alone."""
    if one.extender.get("ignorable"):
        yield one.danger("ignorable", "true: while we are down any node with a free GPU will do", "ignorable: false")


def timeout(one: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Scheduling is one loop; the default is 5 s."""
    text = one.extender.get("httpTimeout")
    seconds = _seconds(text)
    if seconds is None or not 0 < seconds <= TIMEOUT_SECONDS:
        got = "absent, which means 5s" if text is None else f"got {text}"
        yield one.warning("httpTimeout", f"{got}: all scheduling waits so long", f"httpTimeout: {TIMEOUT_SECONDS}s")


def _seconds(text: Any) -> float | None:
    """Read a duration as Go writes it; None where it is none."""
    if not isinstance(text, str) or not _DURATION.fullmatch(text):
        return None
    return sum(float(amount) * _UNITS[unit] for amount, unit in re.findall(_PART, text))


def weight(one: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Below 10 the in-tree scores, some 400, outweigh ours."""
    found = one.extender.get("weight")
    if one.extender.get("prioritizeVerb") is None:
        return
    if type(found) is not int or found <= 0:
        yield one.danger("weight", f"no positive number: {NO_START}", f"weight: {WEIGHT}")
    elif found < WEIGHT:
        yield one.warning("weight", f"got {found}: in-tree scores decide instead", f"weight: {WEIGHT}")


def managed(one: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Without a list every pod of the cluster is asked about; a name that is missing is never asked about."""
    rows = one.extender.get("managedResources")
    if not isinstance(rows, list) or not rows:
        yield one.warning("managedResources", "absent, so every pod calls us", "list the GPU resources")
        return
    named = {row.get("name") for row in rows}
    missing = [name for name in one.offered if name not in named]
    if missing:
        yield one.danger("managedResources", f"{', '.join(missing)} not listed, never asked about", "add them")
    for index, row in enumerate(rows):
        if row.get("ignoredByScheduler"):
            field = f"managedResources.{index}"
            message = f"{row.get('name')} is no longer counted: 16 GPUs fit on a node of 4"
            yield one.danger_at(
                one.place("managedResources", index), f"{field}: {message}", "ignoredByScheduler: false"
            )


def managed_once(one: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """A name may stand once in all extenders together."""
    seen: set[str] = set()
    for index, extender in enumerate(one.value["extenders"]):
        for row_index, row in enumerate(extender.get("managedResources") or ()):
            name = str(row.get("name"))
            if name in seen:
                message = f"managedResources: {name} is listed twice, {NO_START}"
                yield one.danger_at(("extenders", index, "managedResources", row_index), message, "keep one row")
            seen.add(name)


def one_binder(one: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Only one extender may bind."""
    binders = [index for index, each in enumerate(one.value["extenders"]) if each.get("bindVerb")]
    if len(binders) > 1:
        message = f"bindVerb: set in {len(binders)} extenders, {NO_START}"
        yield one.danger_at(("extenders", binders[1], "bindVerb"), message, "keep bindVerb in one of them")


def sample(one: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """The scheduler samples before it asks us: a small share hides the few nodes that a pod may use."""
    own = max(SMALLEST_SHARE_PERCENT, 50 - one.nodes // 125) if one.nodes else SMALLEST_SHARE_PERCENT
    field = "percentageOfNodesToScore"
    profiles = enumerate(one.value.get("profiles") or ())
    holders: list[tuple[Path, Any]] = [((), one.value), *((("profiles", index), each) for index, each in profiles)]
    for path, holder in holders:
        found, remedy = holder.get(field) or 0, f"{field}: 0, the scheduler's own sample, or 100"
        if type(found) is not int or not 0 <= found <= 100:
            yield one.danger_at((*path, field), f"{field}: got {found}, {NO_START}", remedy)
        elif 0 < found < own:
            message = f"{field}: got {found}, below its own {own}: nodes that fit are never tried"
            yield ConfigurationFinding("warning", one.document.locate((*path, field)), message, remedy)


def lease(one: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Two schedulers with one lease take turns; two with one name place the same pods."""
    election, profiles = one.value.get("leaderElection") or {}, one.value.get("profiles") or [{}]
    names = {profile.get("schedulerName") or CLUSTERS_NAME for profile in profiles}
    place = (
        election.get("resourceNamespace") or CLUSTERS_LEASE[0],
        election.get("resourceName") or CLUSTERS_LEASE[1],
    )
    if place == CLUSTERS_LEASE and CLUSTERS_NAME not in names and election.get("leaderElect") is not False:
        remedy = f"resourceNamespace: {NAMESPACE}, resourceName: {OWN_NAME}"
        yield one.danger_at(("leaderElection",), "leaderElection: the lease of the cluster's own scheduler", remedy)
    if place != CLUSTERS_LEASE and CLUSTERS_NAME in names:
        message = f"profiles: {CLUSTERS_NAME} under a lease of its own: two schedulers place the same pods"
        yield one.danger_at(("profiles",), message, f"schedulerName: {OWN_NAME}")


Check = Callable[[ExtenderEntry], Iterator[ConfigurationFinding]]

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
)
"""What is looked at in our entry. To add a check: one function, one line here, one test."""

FILE_CHECKS: tuple[Check, ...] = (
    managed_once,
    one_binder,
    sample,
    lease,
)
"""What is looked at once a file, beyond our entry."""
