# SPDX-License-Identifier: Apache-2.0
"""Check an existing KubeSchedulerConfiguration: what in it is dangerous, where, and what to write instead.

The effect of each mistake was observed on a real kube-scheduler
(docs/reference/control-plane.md#calls-of-the-scheduler). Where a message says that the scheduler refuses to start,
kube-scheduler 1.36 was run with such a file.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from app.kube.api_kinds import NAMESPACE
from app.policy.document import Document, YAMLPath, read_documents
from app.schedulerconfig.batching import DEFAULT_NAME, POINTS, batchable_profiles, describe_batching, profile_names
from app.schedulerconfig.write import EXTENDER_WEIGHT, OTHER_PODS, OWN_NAME, TIMEOUT_SECONDS
from app.values.errors import PolicyError
from app.values.json_members import object_if_any, objects_if_any
from app.values.quantity import parse_seconds

CONFIGURATION_VERSION = "kubescheduler.config.k8s.io/v1"
DEFAULT_LEASE = ("kube-system", "kube-scheduler")
"""The Lease of kube-scheduler where its file sets none (pkg/scheduler/apis/config/v1)."""
VERB_FIELDS = ("filterVerb", "prioritizeVerb", "preemptVerb")
_LOOPBACK = re.compile(r"https?://(?:127(?:\.\d{1,3}){3}|localhost|\[::1\])(?::\d+)?(?:/|$)", re.ASCII)
_TYPES = {
    **dict.fromkeys(("extenders", "profiles", "managedResources", "pluginConfig", "enabled", "disabled"), list),
    **dict.fromkeys(("leaderElection", "tlsConfig", "plugins", "multiPoint", *POINTS), dict),
}
SMALLEST_SHARE_PERCENT = 5
"""kube-scheduler's own sample is max(5, 50 - nodes / 125) % of the nodes (docs/reference/control-plane.md#sampling)."""
REFUSES_TO_START = "the scheduler refuses to start"
PACKING = ("MostAllocated", "RequestedToCapacityRatio")
"""The types of NodeResourcesFit's scoringStrategy that may fill one node after the other."""
TWO_ENTRIES = "the two extenders entries that gpu-usher scheduler-config --every-pod writes"


STOPS_EVERYTHING = "while no replica answers no pod is scheduled, not kube-system's and not gpu-usher's own"


@dataclass(frozen=True, slots=True)
class ConfigurationFinding:
    """One finding. `where` is file:line:column."""

    severity: Literal["danger", "warning"]
    where: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class ExtenderEntry:
    """A configuration, and our entry in its extenders.

    `index` is the entry's position in the extenders. `offered` are the GPU resources of the fleet, empty if not known.
    `nodes` is the number of its nodes, 0 if not known. `claims` says that the fleet has ResourceSlices of GPUs. `named`
    are the schedulers that policies have pods name, empty if not known.
    """

    document: Document
    value: Mapping[str, Any]
    index: int
    extender: Mapping[str, Any]
    offered: tuple[str, ...]
    nodes: int = 0
    claims: bool = False
    named: frozenset[str] = frozenset()

    @property
    def other_pods(self) -> bool:
        """Whether this is the entry for pods that name no resource of the other one."""
        return _url(self.extender).endswith(f"/scheduler/{OTHER_PODS}")

    @property
    def covers_other_pods(self) -> bool:
        """Whether some entry of ours is asked about pods that name no resource."""
        return any(_is_ours(each) and not each.get("managedResources") for each in self.value["extenders"])

    @property
    def serves_default(self) -> bool:
        """Whether a profile is the cluster's own scheduler."""
        return DEFAULT_NAME in profile_names(self.value)

    def danger(self, field: str, message: str, remedy: str) -> ConfigurationFinding:
        """Report a field of our entry by which pods are lost or misplaced."""
        return self.danger_at(self.path_of(field), f"{field}: {message}", remedy)

    def warning(self, field: str, message: str, remedy: str) -> ConfigurationFinding:
        """Report a field of our entry that costs speed or quality."""
        return ConfigurationFinding("warning", self.document.locate(self.path_of(field)), f"{field}: {message}", remedy)

    def danger_at(self, path: YAMLPath, message: str, remedy: str) -> ConfigurationFinding:
        """Report a place in the file by which pods are lost or misplaced."""
        return _danger(self.document, path, message, remedy)

    def path_of(self, *path: str | int) -> YAMLPath:
        """Return the path of a field of our entry."""
        return ("extenders", self.index, *path)


def verify(
    file: str,
    text: str,
    offered: tuple[str, ...] = (),
    nodes: int = 0,
    claims: bool = False,
    named: frozenset[str] = frozenset(),
) -> list[ConfigurationFinding]:
    """List the dangers of a configuration for a fleet, as in ExtenderEntry.

    Raises PolicyError where the text is not YAML, or not one document.
    """
    documents = read_documents(file, text)
    if len(documents) != 1:
        raise PolicyError((f"{file}:1:1: got {len(documents)} YAML documents, wants one KubeSchedulerConfiguration",))
    document = documents[0]
    value = document.value if isinstance(document.value, dict) else {}
    if value.get("kind") != "KubeSchedulerConfiguration" or value.get("apiVersion") != CONFIGURATION_VERSION:
        return [_danger(document, (), "no KubeSchedulerConfiguration of v1", f"apiVersion: {CONFIGURATION_VERSION}")]
    malformed = list(_malformed(document, value))
    if malformed:
        return malformed
    if _packs_alone(value):
        alone = ExtenderEntry(document, {**value, "extenders": []}, 0, {}, offered, nodes, claims, named)
        return [finding for check in FILE_CHECKS for finding in check(alone)]
    ours = [(index, extender) for index, extender in enumerate(value.get("extenders") or ()) if _is_ours(extender)]
    if not ours:
        remedy = "take the extenders entry that gpu-usher scheduler-config writes"
        return [_danger(document, ("extenders",), "no extender whose urlPrefix ends in /scheduler", remedy)]
    entries = [
        ExtenderEntry(document, value, index, extender, offered, nodes, claims, named) for index, extender in ours
    ]
    findings = [finding for entry in entries for check in CHECKS for finding in check(entry)]
    findings += [finding for check in FILE_CHECKS for finding in check(entries[0])]
    kinds = [entry.other_pods for entry in entries]
    twice = [entry for place, entry in enumerate(entries) if entry.other_pods in kinds[:place]]
    findings += [entry.danger_at(entry.path_of(), "gpu-usher is listed twice", "keep one entry") for entry in twice]
    if all(kinds):
        message = f"no entry whose urlPrefix ends in /scheduler, and /{OTHER_PODS} leaves GPU pods to it"
        findings.append(entries[0].danger_at(("extenders",), message, TWO_ENTRIES))
    return findings


def managed_by_scheduler(text: str) -> dict[str, frozenset[str] | None]:
    """Give by schedulerName the resources whose pods our extender is asked about; None where it is about every pod.

    It is empty where the text is no configuration with an extender of ours.
    """
    value = _configuration(text)
    rows = [each.get("managedResources") for each in value.get("extenders") or () if _is_ours(each)]
    asked = frozenset(str(row.get("name")) for managed in rows for row in managed or ()) if all(rows) else None
    return dict.fromkeys(profile_names(value), asked) if rows else {}


def batching_line(text: str) -> str:
    """Say in one line what a configuration means for opportunistic batching; empty for what is no configuration."""
    value = _configuration(text)
    return describe_batching(value) if value else ""


def _configuration(text: str) -> Mapping[str, Any]:
    """Read a configuration; empty for a text that is none."""
    try:
        [document] = read_documents("configuration", text)
    except (PolicyError, ValueError):
        return {}
    value = document.value if isinstance(document.value, dict) else {}
    if value.get("kind") != "KubeSchedulerConfiguration" or any(_malformed(document, value)):
        return {}
    return value


def _danger(document: Document, path: YAMLPath, message: str, remedy: str) -> ConfigurationFinding:
    return ConfigurationFinding("danger", document.locate(path), message, remedy)


def _malformed(document: Document, value: Mapping[str, Any], path: YAMLPath = ()) -> Iterator[ConfigurationFinding]:
    """Report fields of a wrong type, which neither the checks below nor kube-scheduler can read."""
    for field, field_value in value.items():
        shape = _TYPES.get(field)
        if shape is None or field_value is None:
            continue
        where = (*path, field)
        rows = field_value if isinstance(field_value, list) else [field_value]
        if not isinstance(field_value, shape) or not all(isinstance(row, dict) for row in rows):
            wants = "a list of mappings" if shape is list else "a mapping"
            yield _danger(document, where, f"{field}: got another shape, {REFUSES_TO_START}", wants)
        else:
            for index, row in enumerate(rows):
                yield from _malformed(document, row, (*where, index) if shape is list else where)


def _packs_alone(value: Mapping[str, Any]) -> bool:
    """Tell whether a profile scores GPUs by itself and there is no extender (`scheduler-config --no-extender`)."""
    rows = [row for profile in value.get("profiles") or () for row in profile.get("pluginConfig") or ()]
    args = [(row.get("name"), object_if_any(row, "args")) for row in rows]
    packs = any(
        name == "NodeResourcesFit" and object_if_any(each, "scoringStrategy").get("type") in PACKING
        for name, each in args
    )
    balanced = [each for name, each in args if name == "NodeResourcesBalancedAllocation"]
    names = [str(one.get("name")) for each in balanced for one in objects_if_any(each, "resources")]
    return (packs or any("/" in name for name in names)) and not value.get("extenders")


def _url(extender: Mapping[str, Any]) -> str:
    return str(extender.get("urlPrefix", "")).rstrip("/")


def _is_ours(extender: Mapping[str, Any]) -> bool:
    url = _url(extender)
    return url.endswith(("/scheduler", f"/scheduler/{OTHER_PODS}")) or "gpu-usher" in url


def encrypted_transport(entry: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Require encryption and a verified server, since pod and node names, and preemption victims, are sent."""
    url, tls = str(entry.extender.get("urlPrefix", "")), entry.extender.get("tlsConfig") or {}
    encrypted = url.startswith("https://")
    if not _LOOPBACK.match(url) and not (encrypted and entry.extender.get("enableHTTPS")):
        yield entry.danger("urlPrefix", f"{url} is not encrypted", "https:// and enableHTTPS: true")
    elif not encrypted:
        return
    elif tls.get("insecure") or not (tls.get("caData") or tls.get("caFile")):
        yield entry.danger("tlsConfig", "no CA, so nothing is verified", "caData, and no insecure: true")


def extender_routes(entry: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Require our routes: a wrong path is answered with 404, and every GPU pod stays Pending."""
    if not _url(entry.extender).endswith(("/scheduler", f"/scheduler/{OTHER_PODS}")):
        yield entry.danger("urlPrefix", "does not end in /scheduler", "urlPrefix: https://…/scheduler")
    for field in VERB_FIELDS:
        verb = entry.extender.get(field)
        if verb is not None and verb != field.removesuffix("Verb"):
            yield entry.danger(
                field, f"got {verb}, a route that is not there", f"{field}: {field.removesuffix('Verb')}"
            )


PLAIN_FIELDS: tuple[tuple[str, Callable[[Any], bool], str, str], ...] = (
    ("filterVerb", lambda value: value is not None, "absent, so no node is ever refused", "filterVerb: filter"),
    ("preemptVerb", lambda value: value is not None, "absent, so pods are evicted for nothing", "preemptVerb: preempt"),
    ("bindVerb", lambda value: value is None, "set, and gpu-usher has no such route", "remove bindVerb"),
    (
        "nodeCacheCapable",
        lambda value: value is True,
        "not true: slow, and in-tree scores go wrong",
        "nodeCacheCapable: true",
    ),
)
"""Field, what its value must be, what is wrong otherwise, and the remedy.

Without preempt a pod refused everywhere by policy evicted ten pods on five nodes. A 200 to bind without a Binding
leaves the pod assumed and Pending. Whole nodes cost 140 ms a pod, and in-tree scores get empty ones
(kubernetes#141781).
"""


def plain_fields(entry: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Require what one field says by itself."""
    for field, is_right, message, remedy in PLAIN_FIELDS:
        if not is_right(entry.extender.get(field)):
            yield entry.danger(field, message, remedy)


def fails_closed(entry: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Forbid `ignorable` for GPU pods, which would be placed by their GPU count alone; require it for other pods."""
    if entry.other_pods and not entry.extender.get("ignorable"):
        yield entry.danger("ignorable", f"not true: {STOPS_EVERYTHING}", "ignorable: true")
    elif entry.extender.get("ignorable") and not entry.other_pods:
        yield entry.danger(
            "ignorable", "true: while gpu-usher is down pods go to any node with a free GPU", "ignorable: false"
        )


def http_timeout(entry: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Require a short timeout: scheduling is one loop, and the default is 5 s."""
    text = entry.extender.get("httpTimeout")
    seconds = parse_seconds(text)
    if seconds is None or not 0 < seconds <= TIMEOUT_SECONDS:
        got = "absent, which means 5s" if text is None else f"got {text}"
        yield entry.warning("httpTimeout", f"{got}: all scheduling waits so long", f"httpTimeout: {TIMEOUT_SECONDS}s")


def weight(entry: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Require a weight of at least 10: the in-tree scores, about 400 in sum, outweigh ours below it."""
    score_weight = entry.extender.get("weight")
    if entry.extender.get("prioritizeVerb") is None:
        return
    if type(score_weight) is not int or score_weight <= 0:
        yield entry.danger("weight", f"no positive number: {REFUSES_TO_START}", f"weight: {EXTENDER_WEIGHT}")
    elif score_weight < EXTENDER_WEIGHT:
        yield entry.warning(
            "weight", f"got {score_weight}: in-tree scores decide instead", f"weight: {EXTENDER_WEIGHT}"
        )


def asked_about_claims(entry: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Require to be asked about pods with claims alone where GPUs are claimed: they name no managed resource."""
    if entry.claims and not entry.covers_other_pods:
        message = "pods that claim GPUs by ResourceClaims alone name none of them: kube-scheduler decides them alone"
        remedy = f"{TWO_ENTRIES}, or in a scheduler for GPU pods no managedResources"
        yield entry.danger("managedResources", message, remedy)


def managed_resources_listed(entry: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Require the GPU resources in managedResources: pods of a missing one never call us.

    Without the list every pod does, which must not stop the cluster's own scheduler.
    """
    rows = entry.extender.get("managedResources")
    if entry.other_pods:
        if rows:
            yield entry.danger("managedResources", "set, so other pods never come here", "remove managedResources")
        return
    if not isinstance(rows, list) or not rows:
        if entry.serves_default and not entry.extender.get("ignorable"):
            yield entry.danger("managedResources", f"absent: {STOPS_EVERYTHING}", TWO_ENTRIES)
        return
    names = {row.get("name") for row in rows}
    missing = [name for name in entry.offered if name not in names]
    if missing:
        yield entry.danger("managedResources", f"{', '.join(missing)} not listed, never asked about", "add them")
    for index, row in enumerate(rows):
        if row.get("ignoredByScheduler"):
            field = f"managedResources.{index}"
            message = f"{row.get('name')} is no longer counted: 16 GPUs fit on a node of 4"
            yield entry.danger_at(
                entry.path_of("managedResources", index), f"{field}: {message}", "ignoredByScheduler: false"
            )


def managed_resources_unique(entry: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Require that all extenders together name a resource only once."""
    seen: set[str] = set()
    for index, extender in enumerate(entry.value["extenders"]):
        for row_index, row in enumerate(extender.get("managedResources") or ()):
            name = str(row.get("name"))
            if name in seen:
                message = f"managedResources: {name} is listed twice, {REFUSES_TO_START}"
                yield entry.danger_at(("extenders", index, "managedResources", row_index), message, "keep one row")
            seen.add(name)


def single_binder(entry: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Require that at most one extender binds."""
    binders = [index for index, extender in enumerate(entry.value["extenders"]) if extender.get("bindVerb")]
    if len(binders) > 1:
        message = f"bindVerb: set in {len(binders)} extenders, {REFUSES_TO_START}"
        yield entry.danger_at(("extenders", binders[1], "bindVerb"), message, "keep bindVerb in one of them")


def node_sampling(entry: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Require a large enough node sample: it is taken before filter, and a small one misses the few fitting nodes."""
    own = max(SMALLEST_SHARE_PERCENT, 50 - entry.nodes // 125) if entry.nodes else SMALLEST_SHARE_PERCENT
    field = "percentageOfNodesToScore"
    profiles = enumerate(entry.value.get("profiles") or ())
    sections: list[tuple[YAMLPath, Any]] = [
        ((), entry.value),
        *((("profiles", index), profile) for index, profile in profiles),
    ]
    for path, section in sections:
        percentage, remedy = section.get(field) or 0, f"{field}: 0, the scheduler's own sample, or 100"
        if type(percentage) is not int or not 0 <= percentage <= 100:
            yield entry.danger_at((*path, field), f"{field}: got {percentage}, {REFUSES_TO_START}", remedy)
        elif 0 < percentage < own:
            message = f"{field}: got {percentage}, below its own {own}: nodes that fit are never tried"
            yield ConfigurationFinding("warning", entry.document.locate((*path, field)), message, remedy)


def leader_election(entry: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Require an own lease and name: two with one lease take turns; two with one name place the same pods."""
    election, names = entry.value.get("leaderElection") or {}, profile_names(entry.value)
    election_lease = (
        election.get("resourceNamespace") or DEFAULT_LEASE[0],
        election.get("resourceName") or DEFAULT_LEASE[1],
    )
    if election_lease == DEFAULT_LEASE and DEFAULT_NAME not in names and election.get("leaderElect") is not False:
        remedy = f"resourceNamespace: {NAMESPACE}, resourceName: {OWN_NAME}"
        yield entry.danger_at(("leaderElection",), "leaderElection: the lease of the cluster's own scheduler", remedy)
    if election_lease != DEFAULT_LEASE and DEFAULT_NAME in names:
        message = f"profiles: {DEFAULT_NAME} under a lease of its own: two schedulers place the same pods"
        yield entry.danger_at(("profiles",), message, f"schedulerName: {OWN_NAME}")


def batching(entry: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Report profiles of others whose pods are no longer batched, unless another extender takes that from them too."""
    others = [name for name in batchable_profiles(entry.value) if name != OWN_NAME]
    if others and entry.extender and all(map(_is_ours, entry.value["extenders"])):
        message = (
            f"extenders: switch opportunistic batching (Kubernetes 1.35) off for every pod of {', '.join(others)}, "
            "without GPU too: no default spreading constraints prevent it here"
        )
        remedy = "a scheduler of our own: gpu-usher scheduler-config --for second"
        yield ConfigurationFinding("warning", entry.document.locate(("extenders",)), message, remedy)


EntryCheck = Callable[[ExtenderEntry], Iterator[ConfigurationFinding]]

CHECKS: tuple[EntryCheck, ...] = (
    encrypted_transport,
    extender_routes,
    plain_fields,
    fails_closed,
    http_timeout,
    weight,
    managed_resources_listed,
    asked_about_claims,
)
"""The checks of our entry. A new check is one function, one line here, and one test."""


def profiles_named(entry: ExtenderEntry) -> Iterator[ConfigurationFinding]:
    """Require a profile of a name that policies give pods; without policies, report a misspelt name of ours."""
    names = profile_names(entry.value)
    named = entry.named - {DEFAULT_NAME}
    if not entry.named:
        named = frozenset(OWN_NAME for name in names if get_close_matches(name, [OWN_NAME], 1, 0.8))
    if named and not named & set(names):
        who = "policies have pods name" if entry.named else "the shipped policy has pods name"
        message = f"profiles: got {', '.join(names)}, and {who} {' and '.join(sorted(named))}: they stay Pending"
        yield entry.danger_at(("profiles",), message, f"schedulerName: {min(named)}")


FILE_CHECKS: tuple[EntryCheck, ...] = (
    managed_resources_unique,
    single_binder,
    node_sampling,
    leader_election,
    batching,
    profiles_named,
)
"""The checks of the whole file, made once, beyond our entry."""
