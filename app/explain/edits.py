# SPDX-License-Identifier: Apache-2.0
"""Edits: one change of a pod, of a policy or of the fleet; and the near miss for which edits are proposed.

`difference` writes an edit of a pod as JSON Patch.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.admission.json_patch import Operation
from app.explain.funnel import Objection
from app.explain.survey import NodeJudge, ScheduledPod, read_scheduled_pod
from app.intree.checks import InTreeCause, InTreeRefusal
from app.intree.inter_pod_constraints import InterPodConstraints
from app.knowledge.mig_profiles import profile_of
from app.kube.gpu_usage import GPUUsage
from app.nodes.model import UNSHARED, Node, Sharing
from app.policy.compiled import PolicySet
from app.values.reasons import Code
from app.world.world import RulingCache, World

EditedDocument = dict[str, Any]


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A node that refuses the pod, with one of its objections, which an edit would have to remove."""

    scheduled_pod: ScheduledPod
    node: Node
    objection: Objection
    snapshot: World

    @property
    def code(self) -> InTreeCause | Code:
        """The cause or code of the objection."""
        return self.objection.cause if isinstance(self.objection, InTreeRefusal) else self.objection.code

    @property
    def about(self) -> tuple[str, ...]:
        """What a kube-scheduler objection is about; empty for the filters' reasons, which say it in their text only."""
        return self.objection.about if isinstance(self.objection, InTreeRefusal) else ()


@dataclass(frozen=True, slots=True)
class Edit:
    """One change.

    `kind` is one of KINDS. `weight` orders fixes of equally many edits by its sum, the smallest first: corrections,
    what keeps the GPUs, other products, fewer GPUs, parts of one; of edits of one kind its fraction is the distance
    from what the pod asks. `pod` changes the Pod in place. `node`
    returns the changed node named `on`, `policies` the changed policy set. `evicts` are pods that must be evicted for
    the change.
    """

    kind: str
    text: str
    weight: float
    pod: Callable[[EditedDocument], None] | None = None
    node: Callable[[Node], Node] | None = None
    on: str = ""
    policies: Callable[[PolicySet], PolicySet] | None = None
    evicts: tuple[GPUUsage, ...] = ()

    @property
    def of(self) -> str:
        """What the edit changes: fleet, policy or pod."""
        return "fleet" if self.node else "policy" if self.policies else "pod"


ENDS_OTHERS = 100
"""The weight from which an edit ends pods of other namespaces: such a change is the last, whatever it is made of."""
EditProposer = Callable[[NearMiss], Iterator[Edit]]
"""A function that proposes edits for a near miss; none if its objection is not one that the function is for."""


def edited(document: Mapping[str, Any], edits: tuple[Edit, ...]) -> EditedDocument:
    """Return the edited Pod; its spec and the lists in it exist then, empty or not, so that an edit can extend them."""
    changed: EditedDocument = copy.deepcopy(dict(document))
    spec = changed["spec"] = changed.get("spec") or {}
    spec |= {name: spec.get(name) or [] for name in ("containers", "initContainers", "tolerations")}
    for edit in edits:
        if edit.pod is not None:
            edit.pod(changed)
    return changed


def judge_edited(
    document: Mapping[str, Any],
    edits: tuple[Edit, ...],
    snapshot: World,
    constraints_of: Callable[[ScheduledPod], InterPodConstraints | None] = lambda _pod: None,
) -> NodeJudge:
    """Try edits of a Pod, and of policies: judge nodes for the Pod as admission would leave it with them.

    `constraints_of` counts the existing pods' constraints on it; without, they are not considered. Edits of nodes are
    applied to the nodes that are asked about, by `edited_node`.

    Raises MalformedPod, QuantityError.
    """
    policies = snapshot.policies
    for edit in edits:
        policies = edit.policies(policies) if edit.policies else policies
    with_policies = replace(snapshot, policies=policies, rulings=RulingCache())  # an edited set keeps its hash
    scheduled_pod = read_scheduled_pod(edited(document, edits), with_policies, admit=True)
    return NodeJudge(scheduled_pod, snapshot.used, constraints_of(scheduled_pod))


def edited_node(node: Node, edits: tuple[Edit, ...]) -> Node:
    """Return a node as the edits of the fleet would make it."""
    for edit in edits:
        if edit.node is not None and edit.on == node.name:
            node = edit.node(node)
    return node


def containers_of(pod: EditedDocument) -> Iterator[EditedDocument]:
    """Iterate over the init containers and the containers of a Pod."""
    yield from (*pod["spec"]["initContainers"], *pod["spec"]["containers"])


def set_annotation(key: str, value: str | None) -> Callable[[EditedDocument], None]:
    """Return an edit of the Pod that sets an annotation, or removes it (None)."""

    def annotate(pod: EditedDocument) -> None:
        metadata = pod["metadata"] = pod.get("metadata") or {}
        others = {name: text for name, text in (metadata.get("annotations") or {}).items() if name != key}
        metadata["annotations"] = others if value is None else {**others, key: value}

    return annotate


KINDS: Mapping[str, str] = {
    "recreate": "creating the pod again",
    "correct-resource": "another spelling of the resource",
    "correct-product": "another spelling of the product",
    "unname-node": "no spec.nodeName",
    "remove-gates": "no scheduling gates",
    "obey": "what admission wants",
    "drop-annotation": "no such annotation",
    "tolerate": "a toleration",
    "change-selector": "another nodeSelector",
    "drop-selector": "no nodeSelector",
    "change-affinity": "another node affinity",
    "drop-affinity": "less node affinity",
    "honor-taints": "a topology spread without tainted nodes",
    "soften-spread": "a softer topology spread",
    "drop-host-port": "no hostPort",
    "drop-name": "no name of what does not exist",
    "drop-pod-affinity": "no pod affinity",
    "drop-pod-anti-affinity": "no pod anti-affinity",
    "allow-product": "another product",
    "lower-need": "a lower need",
    "drop-need": "no such need",
    "ask-fewer": "fewer GPUs",
    "ask-whole": "a whole number of GPUs",
    "request-less": "smaller requests",
    "drop-resource": "no such resource",
    "change-scheduler": "another scheduler",
    "drop-runtime-class": "no runtimeClassName",
    "ask-another": "another GPU resource",
    "older-image": "an older image",
    "image-with-code": "an image with code for the machine",
    "uncordon": "uncordoning a node",
    "free-gpus": "ending pods",
    "allow-in-policy": "another policy",
    "relax-policy": "no such rule of a policy",
}
"""Each kind of edit, and what an explanation calls it where none of its kind helps."""


def several_parts(near_miss: NearMiss) -> bool:
    """Tell whether a pod asks for several GPUs, and gets parts of GPUs on the node."""
    whole = (one for one in near_miss.scheduled_pod.demand.resources if not profile_of(one[0]) and one[1] > 1)
    units = (near_miss.node.node_class.unit(name) for name, _ in whole if not name.endswith(".shared"))
    return any(unit not in (*UNSHARED, Sharing.Unknown) for unit in units)


def distance(wanted: float, offered: float) -> float:
    """Measure how far an offer is from what is wanted, from 0 to just below 1."""
    return min(0.99, abs(wanted - offered) / max(abs(wanted), abs(offered), 1e-9))


def difference(before: Any, after: Any, path: tuple[str, ...] = ()) -> Iterator[Operation]:
    """List the operations that turn one document into another; lists of different length are replaced as a whole.

    Added members that are empty are left out, since `edited` adds such members before an edit.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for key in (*before, *(key for key in after if key not in before)):
            if key not in after:
                yield Operation("remove", (*path, key))
            elif key in before:
                yield from difference(before[key], after[key], (*path, key))
            elif after[key] not in ([], {}):
                yield Operation("add", (*path, key), after[key])
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from difference(one, other, (*path, str(index)))
    elif before != after and (before is not None or after not in ([], {})):
        yield Operation("replace", path, after)
