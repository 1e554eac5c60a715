# SPDX-License-Identifier: Apache-2.0
"""The runtime class of a GPU pod: which one it gets, if any, and what is wrong with the one that it names.

A class is written only where every node that could serve the pod starts pods of it, since no pod that starts without
gpu-usher may fail with it (docs/decisions/0045-set-a-runtime-class-only-where-every-node-that-fits-has-its-handler.md).
"""

from collections.abc import Iterator, Mapping, Sequence

from app.admission.json_patch import put
from app.admission.reviewed_pod import TEMPLATES, PodChange, ReviewedPod
from app.admission.tolerations import taint_tolerated
from app.kube.objects import RuntimeClass
from app.nodes.reading import lacks_handler
from app.policy.schema_admission import AUTO
from app.values.reasons import Code, reason
from app.world.fleet_facts import NodeGroup, affinity_label_keys

NOT_SET = "runtimeClassName not set"


def set_runtime_class(review: ReviewedPod) -> Iterator[PodChange]:
    """Set runtimeClassName where the pod names none, and where that breaks no pod.

    A pod that claims devices gets none: NVIDIA's DRA driver hands them over by CDI, which the container runtime applies
    under any class (NVIDIA/k8s-dra-driver-gpu cmd/gpu-kubelet-plugin/cdi.go); beside that, the class would add what the
    image's variables name. The same holds where DRA serves the resource.
    """
    wanted, present = review.rules.runtime_class_name, review.pod.runtime_class_name
    if present:
        yield from _warn_of_own_class(review, present)
    claimed = review.ruling.claimed
    if wanted is None or wanted == present or not review.gpus.resources or claimed.requests or claimed.unknown:
        return
    replaces = wanted != AUTO and "runtime_class_name" in review.rules.override
    if present is not None and (not replaces or review.document["spec"].get("overhead")):
        return  # a pod of another class has its overhead already, and the API server would refuse a second one
    handlers = _toolkit_handlers(review)
    if not handlers if wanted == AUTO else not _suits_family(review, wanted):
        return
    classes, groups = review.context.world.fleet.runtime_classes, _groups_that_serve(review)
    name = _class_of(handlers, classes or {}, groups) if wanted == AUTO else wanted
    if classes is None or name not in classes:
        state = "is not known to exist" if classes is None else "does not exist"
        # `gpu-usher doctor` reports it with a remedy
        yield PodChange((), f"RuntimeClass {name} {state}, {NOT_SET}")
    elif obstacle := _obstacle(review, name, classes[name].node_selector):
        yield PodChange((), obstacle, obstacle)
    elif obstacle := _missing_runtime(review, name, classes[name], groups):
        yield PodChange((), obstacle, obstacle if wanted != AUTO else None)
    elif wanted == AUTO and (why := _why_left(review, name, classes[name], groups)):
        yield PodChange((), f"{NOT_SET}: {why}")
    else:
        lacking = any(lacks_handler(group.node_class, classes[name].handler) for group in groups)
        warning = f"RuntimeClass {name}: some nodes that fit lack its handler {classes[name].handler}"
        operation = put(review.document, ("spec", "runtimeClassName"), name)
        yield PodChange((operation,), f"runtimeClassName set to {name}", warning if lacking else None)


def _warn_of_own_class(review: ReviewedPod, name: str) -> Iterator[PodChange]:
    """Warn of a class that does not exist, where no other check does, and of one whose pods no node that fits
    starts."""
    classes = review.context.world.fleet.runtime_classes
    if classes is None:
        return
    if name not in classes:
        if review.context.form in TEMPLATES:
            missing = reason(Code.RuntimeClassMissing, f"RuntimeClass {name[:24]} does not exist").message
            yield PodChange((), missing, f"{missing}: no pod of this template would be created")
        return
    handler, groups = classes[name].handler, _selected_groups(review)
    if groups and all(lacks_handler(group.node_class, handler) for group in groups):
        problem = f"no node that fits has runtime handler {handler[:24]} of RuntimeClass {name[:24]}"
        yield PodChange((), problem, f"{problem}: the pod would not start")


def _toolkit_handlers(review: ReviewedPod) -> Sequence[str]:
    """List the runtime handlers that the toolkits of the pod's GPU vendors install."""
    handlers = review.context.world.knowledge.runtimes.handlers
    return [handlers[family.name] for family in review.families if family.name in handlers]


def _groups_that_serve(review: ReviewedPod) -> Sequence[NodeGroup]:
    """List the node groups that could serve the pod; where none can now, all with GPUs of the vendors that it asks for.

    Nodes to come are most likely like them.
    """
    fleet, of = review.context.world.fleet, review.context.world.knowledge.families.of
    families = review.families
    return _selected_groups(review) or [
        group for group in fleet.node_groups if any(of(name) in families for name, _ in group.node_class.offered)
    ]


def _selected_groups(review: ReviewedPod) -> Sequence[NodeGroup]:
    """List the node groups that could serve the pod, without those that its node selector excludes for certain.

    Nor is one listed whose taints it does not tolerate and that do not pass, such as that of a virtual node.
    """
    selector = review.document["spec"].get("nodeSelector") or {}  # read_pod has checked its type
    known = [(key, selector[key]) for key in affinity_label_keys(review.context.world.knowledge) if key in selector]
    is_fault = review.context.world.knowledge.families.is_fault
    return [
        group
        for group in review.fitting
        if all(group.label(key) == value for key, value in known)
        and all(is_fault(taint[0]) or taint_tolerated(review, taint) for taint in group.taints)
    ]


def _class_of(handlers: Sequence[str], classes: Mapping[str, RuntimeClass], groups: Sequence[NodeGroup]) -> str:
    """Choose the class for the toolkit's handler: one that every node starts, if possible named as the handler.

    The handler's name is the answer where no class is the toolkit's.
    """
    names = [name for name, found in classes.items() if name in handlers or found.handler in handlers]

    def order(name: str) -> tuple[bool, bool, str]:
        lacking = any(lacks_handler(group.node_class, classes[name].handler) for group in groups)
        return lacking, name not in handlers, name

    return min(names, key=order, default=handlers[0])


def _missing_runtime(review: ReviewedPod, name: str, found: RuntimeClass, groups: Sequence[NodeGroup]) -> str | None:
    """Say why no node starts pods of the class, or why none needs it as DRA serves the resource; None if some may."""
    if groups and all(_is_served_by_dra(review, group) for group in groups):
        return f"{NOT_SET}: DRA serves {', '.join(review.gpus.resources)}"
    if groups and all(lacks_handler(group.node_class, found.handler) for group in groups):
        return f"{NOT_SET}: no node that fits has handler {found.handler[:24]} of RuntimeClass {name[:24]}"
    return None


def _why_left(review: ReviewedPod, name: str, found: RuntimeClass, groups: Sequence[NodeGroup]) -> str | None:
    """Say why the mode Auto leaves a class out that some node starts; None if it is to be set.

    A node of unknown handlers that needs no class may lack the handler. A class that selects nodes would keep the pod
    off others, on which it starts without the class.
    """
    selected = review.document["spec"].get("nodeSelector") or {}
    unneeded = [group.node_class.runtime_class_unneeded for group in groups]
    if any(_is_served_by_dra(review, group) for group in groups):
        return f"DRA serves {', '.join(review.gpus.resources)} on some nodes that fit"
    if any(lacks_handler(group.node_class, found.handler) for group in groups):
        return f"some nodes that fit lack handler {found.handler[:24]} of RuntimeClass {name[:24]}"
    if any(group.node_class.runtime_class_unneeded and group.node_class.runtime_handlers is None for group in groups):
        return next(filter(None, unneeded))
    if unneeded and all(unneeded):
        return unneeded[0]
    if not found.node_selector.items() <= selected.items():
        return f"RuntimeClass {name[:24]} would keep the pod off nodes that its nodeSelector does not select"
    return None


def _is_served_by_dra(review: ReviewedPod, group: NodeGroup) -> bool:
    return any(resource in group.node_class.dra_resources for resource in review.gpus.resources)


def _obstacle(review: ReviewedPod, name: str, selector: Mapping[str, str]) -> str | None:
    """Return why the API server would refuse the pod with this RuntimeClass: it selects other nodes. None if not."""
    node_selector = review.document["spec"].get("nodeSelector") or {}
    for key, value in selector.items():
        if node_selector.get(key, value) != value:
            return f"RuntimeClass {name} selects nodes with {key}={value}, the pod others: {NOT_SET}"
    return None


def _suits_family(review: ReviewedPod, name: str) -> bool:
    """Tell whether the pod asks for GPUs of the vendor that the runtime class is named after, if it is after one."""
    owners = [family for family in review.context.world.knowledge.families.all if name.startswith(family.name)]
    return not owners or any(family in owners for family in review.families)
