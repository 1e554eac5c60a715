# SPDX-License-Identifier: Apache-2.0
"""Check an existing KubeSchedulerConfiguration: what in it is dangerous, where, and what to write instead.

scheduler_findings.yaml says what each field must be, why, and what to write. Here are the checks that need more than
the field's value.

Opportunistic batching, which an extender switches off: from 1.35 on, kube-scheduler gives equal pods in a row, each of
which fills its node, the nodes that it found for the first of them. A process with an extender does so for none of its
profiles (pkg/scheduler/framework/runtime/framework.go computeBatchablePlugins), and no profile does so for pods to
which default spreading constraints apply, as they do unless its configuration says otherwise
(framework/plugins/podtopologyspread/plugin.go SignPod). Read in 1.36.3 and 1.37.2.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from app.knowledge.reported_faults import SchedulerFinding
from app.kube.pod_object import DEFAULT_SCHEDULER
from app.policy.document import Document, YAMLPath, read_documents
from app.schedulerconfig.write import EXTENDER_WEIGHT, OTHER_PODS, OWN_NAME, TIMEOUT_SECONDS
from app.values.computations import finish
from app.values.errors import KnowledgeError, PolicyError
from app.values.json_members import JSONObject, object_if_any, objects_if_any
from app.values.quantity import parse_seconds

SPREADING = "PodTopologySpread"
POINTS = ("preFilter", "filter", "preScore", "score")
"""The extension points at which kube-scheduler looks for plugins that do not allow batching."""


def profile_names(value: Mapping[str, Any]) -> tuple[str, ...]:
    """List the schedulerNames of a configuration, in its order."""
    return tuple(str(profile.get("schedulerName") or DEFAULT_SCHEDULER) for profile in value.get("profiles") or [{}])


def batchable_profiles(value: Mapping[str, Any]) -> tuple[str, ...]:
    """List the schedulerNames of the profiles whose pods would be batched if there were no extender."""
    profiles = zip(profile_names(value), value.get("profiles") or [{}], strict=True)
    return tuple(name for name, profile in profiles if not _spreads_by_default(profile))


def describe_batching(value: Mapping[str, Any]) -> str:
    """Say in one line what holds for a configuration."""
    batchable = ", ".join(batchable_profiles(value))
    if not batchable:
        return "opportunistic batching: no profile has it, by the default spreading constraints; an extender costs none"
    if not value.get("extenders"):
        return f"opportunistic batching: profile {batchable}"
    return f"opportunistic batching: off by extenders; without any, profile {batchable} would have it"


def _spreads_by_default(profile: JSONObject) -> bool:
    """Tell whether spreading constraints that no pod names apply to the pods of a profile."""
    if not any(_runs_spreading(profile, point) for point in POINTS):
        return False
    rows = [row for row in profile.get("pluginConfig") or () if row.get("name") == SPREADING]
    args = object_if_any(rows[0], "args") if rows else {}
    return args.get("defaultingType", "System") != "List" or bool(args.get("defaultConstraints"))


def _runs_spreading(profile: JSONObject, point: str) -> bool:
    """Tell whether the plugin runs at an extension point; multiPoint has it enabled by default."""
    if SPREADING in _names(profile, point, "enabled"):
        return True
    off = {SPREADING, "*"}
    if not off.isdisjoint(_names(profile, point, "disabled")):
        return False
    return SPREADING in _names(profile, "multiPoint", "enabled") or off.isdisjoint(
        _names(profile, "multiPoint", "disabled")
    )


def _names(profile: JSONObject, point: str, member: str) -> Iterator[str]:
    plugins = (profile.get("plugins") or {}).get(point) or {}
    return (str(row.get("name")) for row in plugins.get(member) or ())


CONFIGURATION_VERSION = "kubescheduler.config.k8s.io/v1"
DEFAULT_LEASE = ("kube-system", "kube-scheduler")
"""The Lease of kube-scheduler where its file sets none (pkg/scheduler/apis/config/v1)."""
_LOOPBACK = re.compile(r"https?://(?:127(?:\.\d{1,3}){3}|localhost|\[::1\])(?::\d+)?(?:/|$)", re.ASCII)
_TYPES = {
    **dict.fromkeys(("extenders", "profiles", "managedResources", "pluginConfig", "enabled", "disabled"), list),
    **dict.fromkeys(("leaderElection", "tlsConfig", "plugins", "multiPoint", *POINTS), dict),
}
EXTENDER_ROUTES = ("/scheduler", f"/scheduler/{OTHER_PODS}")
SMALLEST_SHARE_PERCENT = 5
"""kube-scheduler's own sample is max(5, 50 - nodes / 125) % of the nodes (docs/reference/control-plane.md#sampling)."""
PACKING = ("MostAllocated", "RequestedToCapacityRatio")
"""The types of NodeResourcesFit's scoringStrategy that may fill one node after the other."""


@dataclass(frozen=True, slots=True)
class ConfigurationFinding:
    """One finding. `where` is file:line:column."""

    severity: Literal["danger", "warning"]
    where: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A configuration, and what is known of the fleet.

    `offered` are the GPU resources of the fleet, empty if not known. `nodes` is the number of its nodes, 0 if not
    known. `claims` says that the fleet has ResourceSlices of GPUs. `named` are the schedulers that policies have pods
    name, empty if not known.
    """

    value: Mapping[str, Any]
    offered: tuple[str, ...]
    nodes: int
    claims: bool
    named: frozenset[str]

    @property
    def own_lease(self) -> bool:
        """Whether the scheduler takes another lease than the cluster's own."""
        election = self.value.get("leaderElection") or {}
        namespace, name = DEFAULT_LEASE
        return (election.get("resourceNamespace") or namespace, election.get("resourceName") or name) != DEFAULT_LEASE


def verify(
    rows: Iterable[SchedulerFinding],
    file: str,
    text: str,
    offered: tuple[str, ...] = (),
    nodes: int = 0,
    claims: bool = False,
    named: frozenset[str] = frozenset(),
) -> list[ConfigurationFinding]:
    """List the dangers of a configuration for a fleet, as in CheckedFile.

    Raises PolicyError where the text is not YAML, or not one document.
    """
    documents = finish(read_documents(file, text))
    if len(documents) != 1:
        raise PolicyError((f"{file}:1:1: got {len(documents)} YAML documents, wants one KubeSchedulerConfiguration",))
    document = documents[0]
    value = document.value if isinstance(document.value, dict) else {}
    if value.get("kind") != "KubeSchedulerConfiguration" or value.get("apiVersion") != CONFIGURATION_VERSION:
        return [_danger(document, (), "no KubeSchedulerConfiguration of v1", f"apiVersion: {CONFIGURATION_VERSION}")]
    if malformed := list(_malformed(document, value)):
        return malformed
    ours = [(index, each) for index, each in enumerate(value.get("extenders") or ()) if _is_ours(each)]
    if not ours and not _packs_alone(value):
        remedy = "take the extenders entry that gpu-usher scheduler-config writes"
        return [_danger(document, ("extenders",), "no extender whose urlPrefix ends in /scheduler", remedy)]
    kind = {True: "other-pods", False: "gpu-pods"}
    sections: list[tuple[YAMLPath, Mapping[str, Any], tuple[str, ...]]] = [
        *((("extenders", index), each, ("extender", kind[_is_for_other_pods(each)])) for index, each in ours),
        ((), value, ("file", "profile")),
        *((("profiles", index), each, ("profile",)) for index, each in enumerate(value.get("profiles") or ())),
    ]
    checked = CheckedFile(value, offered, nodes, claims, named)
    return [
        ConfigurationFinding(
            row.severity,
            document.locate((*path, row.field)),
            f"{row.field}: {row.message.replace('{got}', got)}",
            row.remedy.replace("{got}", got),
        )
        for path, fields, kinds in sections
        for row in rows
        if row.of in kinds and (got := _what_is_wrong(row, fields, checked))
    ]


def _what_is_wrong(row: SchedulerFinding, fields: Mapping[str, Any], file: CheckedFile) -> str:
    """Tell what is wrong with a field; empty if nothing.

    Raises KnowledgeError for a row of a check that is not there.
    """
    field_value = fields.get(row.field)
    if row.wants:
        return "" if field_value in row.wants else str(field_value) or "an empty text"
    if row.check not in CHECKS:
        raise KnowledgeError(f"scheduler_findings.yaml: got check {row.check[:40]}, wants one of {', '.join(CHECKS)}")
    return str(CHECKS[row.check](field_value, fields, file) or "")


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
        [document] = finish(read_documents("configuration", text))
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
            yield _danger(document, where, f"{field}: got another shape, the scheduler refuses to start", wants)
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
    return url.endswith(EXTENDER_ROUTES) or "gpu-usher" in url


def _is_for_other_pods(extender: Mapping[str, Any]) -> bool:
    return _url(extender).endswith(f"/scheduler/{OTHER_PODS}")


def unencrypted(url: Any, fields: Mapping[str, Any], _: CheckedFile) -> object:
    """Require encryption, since pod and node names, and preemption victims, are sent."""
    encrypted = str(url).startswith("https://") and fields.get("enableHTTPS")
    return not encrypted and not _LOOPBACK.match(str(url)) and url


def unverified(tls: Any, fields: Mapping[str, Any], _: CheckedFile) -> object:
    """Require a CA where https is used."""
    trusts = tls and not tls.get("insecure") and (tls.get("caData") or tls.get("caFile"))
    encrypted = str(fields.get("urlPrefix")).startswith("https://")
    return encrypted and not trusts


def too_long(timeout: Any, _: Mapping[str, Any], __: CheckedFile) -> object:
    """Require a short timeout: scheduling is one loop, and the default is 5 s."""
    seconds = parse_seconds(timeout)
    if seconds is not None and 0 < seconds <= TIMEOUT_SECONDS:
        return None
    return "absent, which means 5s" if timeout is None else f"got {timeout}"


def not_listed(managed: Any, _: Mapping[str, Any], file: CheckedFile) -> object:
    """List the GPU resources of the fleet whose pods never call us."""
    names = [row.get("name") for row in managed or ()]
    return names and ", ".join(name for name in file.offered if name not in names)


def misses_claims(_: Any, __: Mapping[str, Any], file: CheckedFile) -> object:
    """Tell whether GPUs are claimed and each entry of ours asks only about pods that name a resource."""
    return file.claims and all(each.get("managedResources") for each in file.value["extenders"] if _is_ours(each))


def listed_twice(extenders: Any, _: Mapping[str, Any], __: CheckedFile) -> object:
    """Find the resources that all extenders together name more than once."""
    rows = [row for extender in extenders or () for row in extender.get("managedResources") or ()]
    return ", ".join(name for name, count in Counter(str(row.get("name")) for row in rows).items() if count > 1)


def ours_twice(extenders: Any, _: Mapping[str, Any], __: CheckedFile) -> object:
    """Tell whether two entries of ours have one purpose."""
    kinds = [_is_for_other_pods(each) for each in extenders or () if _is_ours(each)]
    return len(kinds) > len(set(kinds))


def binders(extenders: Any, _: Mapping[str, Any], __: CheckedFile) -> object:
    """Count the extenders that bind, of which there may be one."""
    number = sum(bool(each.get("bindVerb")) for each in extenders or ())
    return number > 1 and f"{number} extenders"


def small_share(percentage: Any, _: Mapping[str, Any], file: CheckedFile) -> object:
    """Require a sample of nodes as large as kube-scheduler's own: it is taken before filter."""
    own = max(SMALLEST_SHARE_PERCENT, 50 - file.nodes // 125) if file.nodes else SMALLEST_SHARE_PERCENT
    return type(percentage) is int and 0 < percentage < own and f"{percentage}, below its own {own}"


def takes_clusters_lease(election: Any, _: Mapping[str, Any], file: CheckedFile) -> object:
    """Tell whether another scheduler takes turns with the cluster's own."""
    elects = (election or {}).get("leaderElect") is not False
    return elects and not file.own_lease and DEFAULT_SCHEDULER not in profile_names(file.value)


def unbatched(extenders: Any, _: Mapping[str, Any], file: CheckedFile) -> object:
    """Name the profiles of others whose pods are no longer batched, unless another extender takes that from them."""
    others = [name for name in batchable_profiles(file.value) if name != OWN_NAME]
    return extenders and all(map(_is_ours, extenders)) and ", ".join(others)


def unnamed_profiles(_: Any, __: Mapping[str, Any], file: CheckedFile) -> object:
    """Name the schedulers of policies of which no profile has a name; without policies, ours where it is misspelt."""
    names = profile_names(file.value)
    misspelt = any(get_close_matches(name, [OWN_NAME], 1, 0.8) for name in names)
    named = file.named - {DEFAULT_SCHEDULER} if file.named else frozenset((OWN_NAME,) if misspelt else ())
    return named.isdisjoint(names) and " or ".join(sorted(named))


CHECKS: Mapping[str, Callable[[Any, Mapping[str, Any], CheckedFile], object]] = {
    "absent": lambda verb, _, __: verb is None,
    "unencrypted": unencrypted,
    "no_route": lambda _, fields, __: not _url(fields).endswith(EXTENDER_ROUTES),
    "unverified": unverified,
    "too_long": too_long,
    "no_weight": lambda got, fields, _: fields.get("prioritizeVerb") and (type(got) is not int or got <= 0),
    "low_weight": lambda got, fields, _: (
        fields.get("prioritizeVerb") and type(got) is int and 0 < got < EXTENDER_WEIGHT and got
    ),
    "can_stop_everything": lambda managed, fields, file: (
        not managed and not fields.get("ignorable") and DEFAULT_SCHEDULER in profile_names(file.value)
    ),
    "not_listed": not_listed,
    "uncounted": lambda managed, _, __: ", ".join(
        str(row.get("name")) for row in managed or () if row.get("ignoredByScheduler")
    ),
    "misses_claims": misses_claims,
    "no_share": lambda got, _, __: got and (type(got) is not int or not 0 < got <= 100) and got,
    "small_share": small_share,
    "ours_twice": ours_twice,
    "listed_twice": listed_twice,
    "binders": binders,
    "only_other_pods": lambda got, _, __: got and all(_is_for_other_pods(each) for each in got if _is_ours(each)),
    "takes_clusters_lease": takes_clusters_lease,
    "second_default": lambda _, __, file: file.own_lease and DEFAULT_SCHEDULER in profile_names(file.value),
    "unbatched": unbatched,
    "unnamed_profiles": unnamed_profiles,
}
"""The checks by their name in scheduler_findings.yaml: what is wrong with a field's value, if anything.

What a check returns is {got} of the texts.
"""
