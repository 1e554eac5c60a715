# SPDX-License-Identifier: Apache-2.0
"""Real manifests on eight fleets: which pods could run before gpu-usher was installed, and cannot now.

The shipped policies, and those of overlays/production, admit each pod template as a pod. tests/corpus/places.py judges
where the pod could run; on the nodes that are up, the filter judges too. A pod is harmed if there were places for it
and none is left, or if it is denied.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import repeat

import jsonpatch

from app.admission.review import mutate, validate
from app.admission.reviewed_pod import ReviewContext
from app.cluster.files import shipped_policies
from app.kube.objects import RuntimeClass
from app.kube.pods import PREFIX, read_pod
from app.nodes.reading import read_node
from app.placement.engine import class_for_demand, judge_class
from app.policy.compiled import PolicySet
from app.policy.match import ruling_for
from app.values.errors import BadInput
from app.world.state import State
from app.world.world import world_of
from tests.builders import knowledge, shipped
from tests.corpus.manifests import ROOT, Collection, Object
from tests.corpus.places import Cluster, Place, clusters, could_run
from tests.finished import load_policies
from tests.oracles.extended_resources import problems, resource_problems

DENIED = "denied: "
REQUIRE = "NVIDIA_REQUIRE_"


@dataclass(frozen=True)
class Outcome:
    """The result for one pod on one fleet. `ran` tells whether there were places before, and `harmed` why none is left.

    `declared` means that the pod itself says what it needs, in annotations of gpu-usher or NVIDIA_REQUIRE variables.
    `narrowed` gives the reasons for places that it lost while it keeps others. `faults` are those of the patch.
    """

    declared: bool
    ran: bool
    harmed: str = ""
    narrowed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


@dataclass
class Tally:
    """The sums of one fleet under one set of policies."""

    pods: int = 0
    ran: int = 0
    declared: int = 0
    harmed: list[tuple[str, str]] = field(default_factory=list)
    narrowed: Counter[str] = field(default_factory=Counter)
    warned: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[str, str]] = field(default_factory=list)

    def take(self, where: str, outcome: Outcome) -> None:
        """Count one pod."""
        self.pods += 1
        self.ran += outcome.ran
        if outcome.harmed and outcome.declared:
            self.declared += 1
        elif outcome.harmed:
            self.harmed.append((where, outcome.harmed))
        self.narrowed.update(set(outcome.narrowed))
        self.warned.update({_kind(warning) for warning in outcome.warnings})
        self.faults += [(where, fault) for fault in outcome.faults]


def _kind(warning: str) -> str:
    """Drop the container's name from a warning, so that equal warnings count together."""
    head, colon, rest = warning.partition(": ")
    return rest if colon and " " not in head else warning


def production() -> PolicySet:
    """Load the shipped policies and the guards that overlays/production adds."""
    texts = {path.name: path.read_text("utf-8") for path in sorted(shipped_policies().glob("*.yaml"))}
    own = [
        ROOT / "deploy" / "components" / part
        for part in ("guards/guards.yaml", "second-scheduler/second-scheduler.yaml")
    ]
    return load_policies(
        {**texts, **{path.name: path.read_text("utf-8") for path in own}}, knowledge(), shipped().fallback
    )


def _declares(pod: Object) -> bool:
    """Tell whether a pod says itself what GPUs it needs."""
    annotations = (pod["metadata"].get("annotations") or {}).keys()
    variables = (
        variable.get("name", "") for container in pod["spec"]["containers"] for variable in container.get("env") or ()
    )
    return any(key.startswith(PREFIX) for key in annotations) or any(map(str.startswith, variables, repeat(REQUIRE)))


class Trial:
    """One fleet under one set of policies."""

    def __init__(self, cluster: Cluster, policies: PolicySet) -> None:
        self._cluster = cluster
        self._policies = policies
        state = State(knowledge())
        for document in cluster.objects():
            if document["kind"] == "Node":
                state.put_node(document)
        state.runtime_classes = {name: RuntimeClass(name) for name in cluster.classes}
        self._setting = ReviewContext(world_of(state, policies))

    def play(self, manifest_pod: Object) -> Outcome:
        """Admit one pod, and return the result."""
        pod, declared = self._cluster.sent(manifest_pod), _declares(manifest_pod)
        places = list(self._cluster.places(manifest_pod))
        before = [] if resource_problems(pod) else [place for place in places if could_run(pod, place)]
        if pod["spec"].get("runtimeClassName") not in (None, "", *self._cluster.classes):
            before = []
        try:
            verdict = mutate(pod, "team-a", {}, self._setting)
        except BadInput as error:
            return Outcome(declared, bool(before), f"{DENIED}{error}" if before else "")
        if not verdict.allowed:
            codes = ", ".join(sorted({reason.code.name for reason in verdict.reasons}))
            return Outcome(declared, bool(before), DENIED + codes if before else "", warnings=verdict.warnings)
        after = jsonpatch.apply_patch(pod, [operation.as_json() for operation in verdict.operations])
        faults = tuple(self._faults(pod, after))
        lost = [(place, why) for place in before if (why := self._lost(after, place))]
        reasons = tuple(dict.fromkeys(why for _, why in lost))
        gone = bool(before) and len(lost) == len(before)
        harmed = "; ".join(reasons) if gone else ""
        return Outcome(declared, bool(before), harmed, () if gone else reasons, verdict.warnings, faults)

    def _faults(self, before: Object, after: Object) -> Iterator[str]:
        """Yield the faults of the patch itself."""
        again = mutate(after, "team-a", {}, self._setting)
        if again.operations or not again.allowed:
            yield f"a second pass: {[operation.as_json() for operation in again.operations] or again.reasons}"
        if not validate(after, "team-a", {}, self._setting).allowed:
            yield "the validating webhook denies what the mutating one made"
        if after["spec"].get("runtimeClassName") not in (
            None,
            "",
            before["spec"].get("runtimeClassName"),
            *self._cluster.classes,
        ):
            yield "a RuntimeClass that is not there"
        yield from sorted(set(problems(after)) - set(problems(before)))

    def _lost(self, pod: Object, place: Place) -> str:
        """Return why the admitted pod has lost a place, or an empty string if it has not."""
        if not could_run(pod, place):
            return "node affinity or tolerations as admitted"
        if place.template:
            return ""  # the filter judges nodes that exist
        demand = ruling_for(read_pod(pod), {}, self._policies, knowledge()).demand
        refusal = judge_class(demand, class_for_demand(demand, read_node(place.document(), knowledge())))
        needs = "; ".join(need.evidence for need in demand.cuda)
        return f"filter: {refusal.code.name} ({needs or 'no CUDA need'})" if refusal else ""


def run(collections: Iterable[Collection], policies: PolicySet) -> dict[str, Tally]:
    """Admit every pod on every fleet."""
    tallies: dict[str, Tally] = {}
    pods = [gpu_pod for collection in collections for gpu_pod in collection.gpu_pods]
    for cluster in clusters():
        trial, tally = Trial(cluster, policies), tallies.setdefault(cluster.name, Tally())
        for manifest in pods:
            tally.take(manifest.where, trial.play(manifest.pod))
    return tallies
