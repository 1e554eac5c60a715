# SPDX-License-Identifier: Apache-2.0
"""The DRA devices of a node by kind, for filters and scorers: which kinds a claim's selectors can take.

Devices are of one kind if they are equal in all attributes that tell product, driver and size; they may differ in what
identifies them, such as the UUID. The nodes of a fleet have few combinations of kinds, so that each request is selected
for once on each combination, and not on each of thousands of nodes. What cannot be judged for a kind counts as
selected: then filters refuse less.

Admission warns of claims for devices that no node has, and of taints that a claim lacks a toleration for. A claim is
never refused: a node that an autoscaler adds may bring the device.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from app.dra.cel_syntax import SelectorError
from app.dra.counters import lacking, share_of
from app.dra.selectors import compile_selector
from app.dra.words import show_value, unmet
from app.knowledge.tables import Knowledge
from app.kube.claimed_devices import DeviceChoice, DeviceChoices, PublishedShares
from app.kube.device_classes import DeviceClass, DeviceTaintRule, tolerates
from app.kube.device_models import (
    MODEL_ATTRIBUTES,
    NVIDIA_DOMAIN,
    NVIDIA_DRIVER,
    DeviceModel,
    is_of_model,
    with_domain,
)
from app.kube.devices import BLOCKING_EFFECTS, Device, DeviceTaint
from app.kube.resource_claims import DeviceToleration
from app.nodes.model import ClaimableDevices, NodeClass
from app.nodes.reading import class_of_device
from app.values.reasons import counted

KIND_ATTRIBUTES = frozenset(NVIDIA_DOMAIN + name for name in MODEL_ATTRIBUTES)
REQUESTS_KEPT = 256
"""Requests whose devices are kept for each combination of kinds; then it begins anew. A guess, not measured."""


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """Devices of one kind on a node: the first of them, their number, and the taints that keep claims off them.

    `model` is that of a GPU that filters read; None for a device that is not of NVIDIA's driver, or that no container
    can use.
    """

    device: Device
    model: DeviceModel | None
    taints: tuple[DeviceTaint, ...]
    number: int


KindKey = tuple[object, ...]
"""All that makes two devices one kind."""


def kind_key(device: Device, is_shown: bool, taints: tuple[DeviceTaint, ...]) -> KindKey:
    """Return what makes devices one kind; of another vendor's driver all untainted ones are, the shared ones apart."""
    if device.driver != NVIDIA_DRIVER:
        return device.driver, taints, device.allow_multiple_allocations
    return device.model, is_shown, taints


def blocking_taints(device: Device, rules: Iterable[DeviceTaintRule]) -> tuple[DeviceTaint, ...]:
    """List the taints of a device, its own and of rules, that keep claims without a toleration off it."""
    taints = (*device.taints, *[rule.spec.taint for rule in rules if rule.applies(device)])
    return tuple([taint for taint in taints if taint.effect in BLOCKING_EFFECTS]) if taints else ()


class DeviceKinds:
    """The kinds of devices of nodes that are alike, in the order of the allocator; implements DevicesOnNode.

    `serial` is a number that no other object gets. `classes` are the DeviceClasses by name; when one changes, objects
    are made anew.
    """

    def __init__(
        self, serial: int, kinds: tuple[DeviceKind, ...], classes: Mapping[str, DeviceClass], knowledge: Knowledge
    ) -> None:
        self.serial = serial
        self.kinds, self._classes, self._knowledge = kinds, classes, knowledge
        self._selected: dict[tuple[DeviceChoice, bool], tuple[int, ...]] = {}
        self._makes: dict[tuple[NodeClass, int, int | None], NodeClass] = {}

    def with_kinds(self, kinds: tuple[DeviceKind, ...]) -> "DeviceKinds":
        """Return kinds as they would be after a change that is only imagined; no State gives a negative serial."""
        return DeviceKinds(-self.serial, kinds, self._classes, self._knowledge)

    def claimable(
        self, node_class: NodeClass, requests: tuple[DeviceChoices, ...]
    ) -> tuple[tuple[ClaimableDevices, ...], ...]:
        """Select devices for each request; a request is left out where what it can get is not known, or nothing."""
        selected = (tuple(self._claimable(node_class, choice) for choice in request) for request in requests)
        return tuple(tuple(filter(None, devices)) for devices in selected if devices and all(devices))

    def _claimable(self, node_class: NodeClass, choice: DeviceChoice) -> ClaimableDevices | None:
        selected = self.select(choice)
        if not selected or any(self.kinds[kind].model is None for kind in selected):
            return None
        makes = tuple((self._make(node_class, kind, choice), self.kinds[kind].number) for kind in selected)
        return ClaimableDevices(choice.count, makes)

    def next_make(
        self, node_class: NodeClass, requests: tuple[DeviceChoices, ...], order: tuple[int, ...] | None
    ) -> NodeClass | None:
        """Give the class of the node with devices alone of the kind that the first request gets now; None if unknown.

        `order` is that of FreeResources.kinds; where no selected kind is free, the first selected one counts.
        """
        selected = self.select(requests[0][0]) if requests and requests[0] else ()
        free = [kind for kind in order or () if kind in selected]
        taken = next(iter((*free, *selected)), None)
        if taken is None or self.kinds[taken].model is None:
            return None
        return self._make(node_class, taken, requests[0][0])

    def class_selectors(self, name: str) -> tuple[str, ...] | None:
        """Return the selectors of a DeviceClass; None if there is no such class."""
        device_class = self._classes.get(name)
        return device_class.selectors if device_class is not None else None

    def select(self, choice: DeviceChoice, tolerate_all: bool = False) -> tuple[int, ...]:
        """List the kinds, by position, that a choice may take: selected, and without a taint that it does not tolerate.

        With `tolerate_all` taints are left aside.
        """
        key = (choice, tolerate_all)
        known = self._selected.get(key)
        if known is None:
            if len(self._selected) >= REQUESTS_KEPT:
                self._selected.clear()
            known = self._selected[key] = self._select(choice, tolerate_all)
        return known

    def _select(self, choice: DeviceChoice, tolerate_all: bool) -> tuple[int, ...]:
        of_class = self.class_selectors(choice.device_class)
        if of_class is None:
            return ()
        expressions = (*of_class, *choice.selectors)
        return tuple(
            position
            for position, kind in enumerate(self.kinds)
            if all(may_select(expression, kind.device) for expression in expressions)
            and has_capacity(choice, kind.device)
            and (tolerate_all or _tolerated(choice, kind))
        )

    def _make(self, node_class: NodeClass, kind: int, choice: DeviceChoice) -> NodeClass:
        """Give the class of the node with what a choice gets of devices of one kind alone: all of them, or shares."""
        model = self.kinds[kind].model
        share = _share_mib(self.kinds[kind].device, choice)
        key = node_class, kind, share
        if key not in self._makes and model is not None:
            if len(self._makes) >= REQUESTS_KEPT:
                self._makes.clear()
            model = replace(model, memory_mib=share or model.memory_mib)
            self._makes[key] = class_of_device(node_class, model, self._knowledge, share is not None)
        return self._makes[key]


def _share_mib(device: Device, choice: DeviceChoice) -> int | None:
    """Give the MiB of the share that a choice gets, 0 without a bound; None if it gets the device alone."""
    share = share_of(device, dict(choice.capacity))
    return None if share is None else int(share.get("memory", 0) // 2**20)


def has_capacity(choice: DeviceChoice, device: Device) -> bool:
    """Tell whether devices of a kind have what a choice requests of each; True where those of the kind may differ."""
    requested = dict(choice.capacity)
    if device.driver != NVIDIA_DRIVER or not all(is_of_model(with_domain(name)) for name in requested):
        return True
    return not requested or lacking(device, requested) is None


def _tolerated(choice: DeviceChoice, kind: DeviceKind) -> bool:
    tolerations = [DeviceToleration(*toleration) for toleration in choice.tolerations]
    return all(any(tolerates(toleration, taint) for toleration in tolerations) for taint in kind.taints)


def may_select(expression: str, device: Device) -> bool:
    """Tell whether a selector may select devices of the kind of a device; True where that cannot be judged.

    It cannot where the selector reads what identifies a device, where it fails, or where it is no valid one.
    """
    try:
        selector = compile_selector(expression)
    except SelectorError:
        return True
    if not all(_same_for_kind(read.group, read.name) for read in selector.reads):
        return True
    return selector.judge(device).matches is not False


def _same_for_kind(group: str, name: str) -> bool:
    if group in ("attributes", "capacity"):
        return name in KIND_ATTRIBUTES if group == "attributes" else is_of_model(name)
    return True


@dataclass(frozen=True, slots=True)
class KindsOfNode:
    """The kinds of devices of one node, and each device in the order of the allocator with the position of its kind."""

    kinds: DeviceKinds
    by_device: tuple[tuple[Device, int], ...]


SHARE_CAPACITIES: Mapping[str, Fraction] = {"shares": Fraction(1), "memory": Fraction(2**20)}
"""The capacities of which NVIDIA's driver lets a claim have a part, by the least amount that says so."""


def published_shares(fleet: Iterable[DeviceKinds]) -> PublishedShares:
    """Tell how claims get shares of the whole GPUs of a fleet."""
    kinds = (kind for of_node in fleet for kind in of_node.kinds if kind.model and not kind.model.mig_profile)
    devices = [kind.device for kind in kinds if kind.device.allow_multiple_allocations]
    requests = ((name, {name: least}) for name, least in SHARE_CAPACITIES.items())
    capacities = (name for name, request in requests if any(_gives_share(device, request) for device in devices))
    return PublishedShares(frozenset(capacities), any(share_of(device, None) is not None for device in devices))


def _gives_share(device: Device, request: Mapping[str, Fraction]) -> bool:
    return lacking(device, request) is None and share_of(device, request) is not None


MOST_SHOWN = 3
"""Taint keys that one warning names."""


def claim_warnings(
    fleet: Collection[DeviceKinds], requests: tuple[DeviceChoices, ...], tolerated_keys: Collection[str]
) -> tuple[str, ...]:
    """Say what keeps requests from every device of the fleet, or from devices whose taints the policies tolerate.

    `fleet` are the kinds of devices of all nodes, one object for nodes that are alike. `tolerated_keys` are the keys of
    taints that policies tolerate on nodes. A request is warned of only if none of its alternatives can be served.
    """
    if not any(kind.model for of_node in fleet for kind in of_node.kinds):
        return ()
    return tuple(
        dict.fromkeys(warning for request in requests for warning in _of_request(fleet, request, tolerated_keys))
    )


def _of_request(fleet: Collection[DeviceKinds], request: DeviceChoices, keys: Collection[str]) -> Iterator[str]:
    problems = [_impossible(fleet, choice) for choice in request]
    if request and all(problems):
        yield problems[0]
        return
    taints = {
        taint.key: None
        for choice in request
        for of_node in fleet
        for position in of_node.select(choice, tolerate_all=True)
        if position not in of_node.select(choice)
        for taint in of_node.kinds[position].taints
        if taint.key in keys
    }
    if taints:
        named = ", ".join(list(taints)[:MOST_SHOWN])
        yield f"claim: device taint {named} is tolerated for nodes by policy, but not by the claim's own tolerations"


def _impossible(fleet: Collection[DeviceKinds], choice: DeviceChoice) -> str:
    """Say why a choice can be served on no node, whatever is free there; "" if it can, or if that is not known."""
    selectors = next((of_node.class_selectors(choice.device_class) for of_node in fleet), None)
    if selectors is None:
        return ""
    kinds = [kind for of_node in fleet for kind in of_node.kinds]
    left = [kind for kind in kinds if all(may_select(selector, kind.device) for selector in selectors)]
    if not left:
        ours = any(NVIDIA_DRIVER in selector for selector in selectors)
        return f"claim: no device in the cluster is of DeviceClass {choice.device_class}" if ours else ""
    return _unselected(choice, left) or _too_large(choice, left) or _too_many(fleet, choice)


def _unselected(choice: DeviceChoice, left: list[DeviceKind]) -> str:
    """Say which selector leaves no device of the class, by what it wants; "" if some device is left."""
    for selector in choice.selectors:
        before, left = left, [kind for kind in left if may_select(selector, kind.device)]
        if not left:
            wants = unmet(selector, [kind.device for kind in before])
            return f"claim: no device of DeviceClass {choice.device_class} in the cluster has {wants}"
    return ""


def _too_large(choice: DeviceChoice, left: Iterable[DeviceKind]) -> str:
    """Say which capacity no device of the class has, or has as much of; "" if some device does."""
    if any(has_capacity(choice, kind.device) for kind in left):
        return ""
    names = ", ".join(f"{name} {show_value(amount)}" for name, amount in choice.capacity)
    return f"claim: no device of DeviceClass {choice.device_class} in the cluster has the capacity {names}"


def _too_many(fleet: Collection[DeviceKinds], choice: DeviceChoice) -> str:
    selected = [[of_node.kinds[kind] for kind in of_node.select(choice, tolerate_all=True)] for of_node in fleet]
    if any(kind.device.allow_multiple_allocations for of_node in selected for kind in of_node):
        return ""
    most = max(sum(kind.number for kind in of_node) for of_node in selected)
    if choice.count is None or choice.count <= most:
        return ""
    devices = counted(choice.count, "device")
    return f"claim: wants {devices} of DeviceClass {choice.device_class}, and no node has more than {most}"
