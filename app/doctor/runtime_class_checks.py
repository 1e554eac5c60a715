# SPDX-License-Identifier: Apache-2.0
"""Checks of RuntimeClasses against the runtime handlers of nodes, on a snapshot and on a live cluster.

Users get no warning of a class that is missing when their pods are admitted, since they can change neither it nor a
policy. A GPU Operator with CDI, and a cloud's own device plugin, need no class at all.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from app.doctor.fleet_checks import Finding, FindingLevel
from app.knowledge.runtimes import Runtimes
from app.knowledge.tables import Knowledge
from app.nodes.model import Node
from app.nodes.runtime_handlers import RuntimeClass, lacks_handler
from app.policy.schema_admission import AUTO


@dataclass(frozen=True, slots=True)
class ExaminedRuntimes:
    """What is examined: the GPU nodes of vendors whose toolkit has a runtime handler, and the RuntimeClasses by name.

    `wanted` are the values of runtimeClassName of the policies, which may be Auto.
    """

    nodes: tuple[Node, ...]
    classes: Mapping[str, RuntimeClass]
    wanted: frozenset[str]
    runtimes: Runtimes

    def of_toolkit(self) -> tuple[str, ...]:
        """Name the classes that name the handler of a vendor's toolkit."""
        handlers = self.runtimes.handlers.values()
        return tuple(sorted(name for name, found in self.classes.items() if found.handler in handlers))


def class_absent(examined: ExaminedRuntimes) -> Iterator[Finding]:
    """Report a class that the policies name and that does not exist, or that pods may need and that was never
    created."""
    for name in sorted(examined.wanted - {AUTO} - set(examined.classes)):
        other = f"; RuntimeClass {examined.of_toolkit()[0]} has the toolkit's handler" if examined.of_toolkit() else ""
        remedy = (
            "create it (the GPU Operator does), or write runtimeClassName: Auto in the policies, which sets a class "
            "only where one is needed and its handler is there"
        )
        yield _advice("RuntimeClassAbsent", f"no RuntimeClass {name}: pods get none{other}", remedy, name)
    if AUTO not in examined.wanted or examined.of_toolkit():
        return
    for handler in examined.runtimes.handlers.values():
        may_need = [node.name for node in examined.nodes if _may_need(node, handler)]
        if may_need and handler not in examined.wanted:
            remedy = (
                f"create one for handler {handler} (the GPU Operator does) if containers see no GPU; nothing to do "
                "where the nodes' default runtime or CDI gives it to them"
            )
            what = f"no RuntimeClass {handler}: pods get none"
            yield _advice("RuntimeClassAbsent", what, remedy, handler)


def _may_need(node: Node, handler: str) -> bool:
    """Tell whether pods on a node may need the class of a handler, by all that the node shows."""
    facts = node.node_class
    return not (lacks_handler(facts, handler) or facts.runtime_class_unneeded or facts.dra_resources)


def handler_absent(examined: ExaminedRuntimes) -> Iterator[Finding]:
    """Report a class with whose handler some GPU nodes start no pod."""
    named = examined.wanted & set(examined.classes)
    for name in sorted(named | set(examined.of_toolkit())):
        handler = examined.classes[name].handler
        lacking = tuple(node.name for node in examined.nodes if lacks_handler(node.node_class, handler))
        if lacking:
            which = "no GPU node has" if len(lacking) == len(examined.nodes) else "these nodes do not have"
            what = (
                f"RuntimeClass {name} names runtime handler {handler}, which {which}: a pod of the class does not start"
            )
            remedy = (
                "delete the class if CDI or the default runtime gives containers their GPUs; else configure the "
                "handler (nvidia-ctk runtime configure; restart k3s and RKE2 after the toolkit is installed)"
            )
            yield _advice("RuntimeHandlerAbsent", what, remedy, name, lacking)


def selects_other_nodes(examined: ExaminedRuntimes) -> Iterator[Finding]:
    """Report a class whose node selector keeps its pods off GPU nodes."""
    named = set(examined.of_toolkit()) if AUTO in examined.wanted else set()
    for name in sorted((named | examined.wanted) & set(examined.classes)):
        selector = examined.classes[name].node_selector
        missed = tuple(sorted(node.name for node in examined.nodes if not selector.items() <= node.labels.items()))
        if missed:
            pairs = ", ".join(f"{key}={value}" for key, value in sorted(selector.items()))
            what = f"RuntimeClass {name} keeps pods off: its nodeSelector is {pairs}"
            remedy = "label the nodes accordingly, or correct scheduling.nodeSelector of the class"
            yield Finding("RuntimeClassSelector", FindingLevel.Problem, what, remedy, nodes=missed)


CHECKS = (class_absent, handler_absent, selects_other_nodes)


def examine_runtime_classes(
    nodes: Iterable[Node], classes: Mapping[str, RuntimeClass] | None, wanted: frozenset[str], knowledge: Knowledge
) -> tuple[Finding, ...]:
    """Run every check; nothing is found where the RuntimeClasses are not known."""
    with_toolkit = tuple(node for node in nodes if node.has_gpus and _has_toolkit(node, knowledge))
    if classes is None or not with_toolkit:
        return ()
    examined = ExaminedRuntimes(with_toolkit, classes, wanted, knowledge.runtimes)
    return tuple(finding for check in CHECKS for finding in check(examined))


def _has_toolkit(node: Node, knowledge: Knowledge) -> bool:
    """Tell whether any of a node's labels or resources is of a vendor whose toolkit has a runtime handler."""
    domains = tuple(
        family.whole.partition("/")[0] + "/"
        for family in knowledge.families.all
        if family.name in knowledge.runtimes.handlers
    )
    return any(key.startswith(domains) for key in (*node.labels, *node.allocatable))


def _advice(check: str, what: str, remedy: str, name: str, nodes: tuple[str, ...] = ()) -> Finding:
    return Finding(check, FindingLevel.Advice, what, remedy, nodes, (f"RuntimeClass {name}",))
