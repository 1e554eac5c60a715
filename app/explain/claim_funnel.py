# SPDX-License-Identifier: Apache-2.0
"""The funnel of a pod's device requests over the fleet: how many devices are left after each stage, and why.

Objections to a node that come from the pod's claims are recognized by `is_of_claims`.
"""

from collections import Counter
from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.dra.cluster_devices import holder_names
from app.dra.pod_judge import ClaimJudge
from app.dra.selectors import ClaimError, NotJudged, shortened
from app.dra.stages import DeviceStage, NodeDevices, StageKind, stages_of
from app.dra.words import condition, failing_parts, has_instead, nearest
from app.explain.survey import Groups
from app.intree.checks import InTreeCause, InTreeRefusal
from app.kube.device_classes import untolerated
from app.kube.devices import Device, show_taint
from app.kube.resource_claims import ALL, DeviceRequest, ResourceClaim
from app.nodes.model import Node
from app.values.reasons import FunnelStage

NODES_COUNTED_AT_ONCE = 32
MOST_HOLDERS_NAMED = 3
"""Claims, or taints, that a stage names; others are counted."""


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """One stage: the devices that are left, and the nodes with enough of them. `detail` says what cut most."""

    stage: str
    devices: int
    nodes: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RequestFunnel:
    """One request of a claim, or one alternative, over the fleet."""

    claim: str
    request: str
    wants: str
    steps: tuple[DeviceStep, ...]


class _RequestTally:
    """What one request makes of the devices of the nodes seen so far."""

    def __init__(self, claim: str, request: DeviceRequest) -> None:
        self.claim, self.request, self.stages = claim, request, stages_of(request)
        self.stops: dict[Device, tuple[int, str]] = {}
        self.nodes = [0] * len(self.stages)
        self.of_new_kinds: set[Device] = set()

    def add(self, node: str, stops: Sequence[tuple[Device, int]], new_kind: bool) -> None:
        """Add the devices of a node; of nodes that are alike the first is of a new kind, and stands for the others."""
        if new_kind:
            self.of_new_kinds.update(device for device, _ in stops)
        left = [0] * len(self.stages)
        for device, stop in stops:
            known = self.stops.get(device)
            if known is None or known[0] < stop:
                self.stops[device] = stop, node
            for index in range(stop):
                left[index] += 1
        wanted = 1 if self.request.mode == ALL else self.request.count
        for index, count in enumerate(left):
            self.nodes[index] += count >= wanted

    def funnel(self, judge: ClaimJudge) -> RequestFunnel:
        left, steps = len(self.stops), []
        for index, stage in enumerate(self.stages):
            cut = [device for device, (stop, _) in self.stops.items() if stop == index]
            left -= len(cut)
            if cut or stage.kind in (StageKind.CLASS, StageKind.SELECTOR):
                detail = self._detail(stage, cut, judge)
                steps.append(DeviceStep(stage_text(self.request, stage), left, self.nodes[index], detail))
        wants = "all devices" if self.request.mode == ALL else f"{self.request.count}"
        text = f"{wants} of DeviceClass {self.request.device_class}"
        return RequestFunnel(self.claim, self.request.name, text, tuple(steps))

    def _detail(self, stage: DeviceStage, cut: Sequence[Device], judge: ClaimJudge) -> str:
        different = [device for device in cut if device in self.of_new_kinds] or cut
        if stage.kind is StageKind.SELECTOR and (device := nearest(stage.selector, different)) is not None:
            parts = failing_parts(stage.selector, device)
            facts = "; ".join(f"wants {condition(part)}, and {has_instead(part)}" for part in parts)
            return f"nearest is {device.name} of {self.stops[device][1]}: {facts}"
        if stage.kind is StageKind.TAINT:
            taints = Counter(str(untolerated_taint(judge, self.request, device)) for device in cut)
            return ", ".join(f"{taint} on {count}" for taint, count in taints.most_common(MOST_HOLDERS_NAMED))
        if stage.kind in (StageKind.ALLOCATED, StageKind.CAPACITY):
            return holders_text(judge, cut)
        return ""


def untolerated_taint(judge: ClaimJudge, request: DeviceRequest, device: Device) -> str:
    """Write the taint that keeps a device from a request."""
    taint = untolerated(device, judge.cluster.taint_rules, request.tolerations)
    return "" if taint is None else show_taint(taint)


def holders_text(judge: ClaimJudge, devices: Sequence[Device]) -> str:
    """Name the pods that have devices, those with most of them first; a claim that no pod uses by its own name."""
    holders = Counter(holder for device in devices for holder in holder_names(judge.cluster, device))
    named = [f"{count} of {holder}" for holder, count in holders.most_common(MOST_HOLDERS_NAMED)]
    more = len(holders) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def stage_text(request: DeviceRequest, stage: DeviceStage) -> str:
    """Name a stage for a person."""
    if stage.kind is StageKind.CLASS:
        return f"of DeviceClass {request.device_class}"
    return shortened(stage.selector) if stage.kind is StageKind.SELECTOR else stage.kind.value


def funnels(judge: ClaimJudge, nodes: Mapping[str, Node]) -> Generator[None, None, tuple[RequestFunnel, ...]]:
    """Count the devices of the fleet for each request of the claims that have none yet; empty if that fails."""
    tallies = [
        _RequestTally(claim.key, request)
        for claim in judge.pod_claims.to_allocate
        for choices in claim.spec.requests
        for request in choices
    ]
    known: dict[Hashable, list[int]] = {}
    for index, (name, node) in enumerate(nodes.items()):
        devices = NodeDevices(node, judge.cluster, judge.selection)
        try:
            for number, tally in enumerate(tallies):
                key = number, judge.alike.key(node) or name
                new_kind = key not in known
                if new_kind:
                    known[key] = [stop for _, stop in devices.stops(tally.request)]
                tally.add(name, list(zip(devices.devices, known[key], strict=True)), new_kind)
        except (ClaimError, NotJudged):
            return ()
        if index % NODES_COUNTED_AT_ONCE == 0:
            yield
    return tuple(tally.funnel(judge) for tally in tallies)


def is_of_claims(objection: object) -> bool:
    """Tell whether an objection is one of the claims."""
    return isinstance(objection, InTreeRefusal) and objection.cause.stage is FunnelStage.Claims


def with_claim_errors(groups: Groups) -> Groups:
    """Let a claim that kube-scheduler cannot handle on a node stand against all nodes that would fit.

    It gives up on a pod whose claim fails on any node that it asks about, as where a selector reads an attribute that a
    device lacks (plugins/dynamicresources/dynamicresources.go Filter, statusError).
    """
    error = next(iter(erring(groups)), None)
    if error is None or () not in groups:
        return groups
    others = {objections: names for objections, names in groups.items() if objections}
    return {**others, error: [*others[error], *groups[()]]}


def erring(groups: Groups) -> Groups:
    """Return the nodes that have nothing but a claim that kube-scheduler gives up on against the pod."""
    return {
        objections: names
        for objections, names in groups.items()
        if len(objections) == 1
        and isinstance(objections[0], InTreeRefusal)
        and objections[0].cause is InTreeCause.ClaimNotUsable
    }


def claims_in_words(claims: Iterable[ResourceClaim], demanded: Iterable[tuple[str, int | None]]) -> tuple[str, ...]:
    """Say what claims ask for, of GPUs and of other devices; alternatives in their order, which are never added up.

    `demanded` are the devices that a demand counts, of which those of extended resources have no claim yet.
    """
    totals: Counter[str] = Counter()
    lines = []
    for choices in (choices for claim in claims for choices in claim.spec.requests):
        if len(choices) == 1 and choices[0].mode != ALL:
            totals[choices[0].device_class] += choices[0].count
            continue
        words: list[str] = []
        device_class = ""
        for choice in choices:
            count = "all" if choice.mode == ALL else str(choice.count)
            of_class = f" of DeviceClass {choice.device_class}" if choice.device_class != device_class else ""
            words, device_class = [*words, f"{count}{of_class}"], choice.device_class
        lines.append(f"claims {', or else '.join(words)}")
    named = {choice.device_class for claim in claims for choices in claim.spec.requests for choice in choices}
    others = {name: count for name, count in demanded if name not in named}
    counts = [*totals.items(), *((name, "all" if count is None else count) for name, count in others.items())]
    return (*(f"claims {count} of DeviceClass {name}" for name, count in counts), *lines)
