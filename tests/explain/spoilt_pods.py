# SPDX-License-Identifier: Apache-2.0
"""Pods with a known intent: each would run on a sample fleet, and is then spoilt in one place, so that it is pending.

The repair is a change that edits nothing but the spoilt place. `python -m tests.explain.spoilt_pods NUMBER` prints how
often the first change, and one of the first three, is the repair, and how long the default answer is.
"""

import copy
import io
import random
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jsonpatch
from rich.console import Console

from app.cli.explain import snapshot_of
from app.cli.explain_text import print_explanation
from app.demo.sample_fleets import demo_fleet
from app.explain.counterfactual import Fix
from app.explain.explanation import Explanation
from app.explain.pending_pod import explain
from app.explain.survey import read_scheduled_pod
from app.knowledge.mig_profiles import profile_of
from app.values.computations import finish
from app.world.world import World

Document = dict[str, Any]
FLEETS = ("weekday", "mixed", "dgx", "eks", "gke", "aks", "mig", "shared")
GPU = "nvidia.com/gpu"
OURS = "gpu-usher.io/"
IMAGES = (
    "registry.example.com/team/train:1",
    "nvcr.io/nvidia/pytorch:24.05-py3",
    "nvcr.io/nvidia/pytorch:23.10-py3",
    "nvcr.io/nvidia/tritonserver:24.05-py3",
    "nvidia/cuda:12.2.2-runtime-ubuntu22.04",
    "pytorch/pytorch:2.3.1-cuda12.1-cudnn8-runtime",
    "vllm/vllm-openai:v0.5.4",
)
NEWER = {
    "nvcr.io/nvidia/pytorch": "25.12-py3",
    "nvcr.io/nvidia/tritonserver": "25.12-py3",
    "nvidia/cuda": "13.1.0-runtime-ubuntu24.04",
    "pytorch/pytorch": "2.9.0-cuda13.0-cudnn9-runtime",
}
LESSER_KINDS = ("ask-fewer", "ask-another")
"""Kinds of edits by which a pod gets fewer GPUs, or another kind of them."""


@dataclass(frozen=True, slots=True)
class SpoiltPod:
    """A pod that is pending for one reason. `place` are the beginnings of the JSON Pointers of what was spoilt.

    `intended` is the pod that would run.
    """

    fleet: str
    how: str
    place: tuple[str, ...]
    intended: Document
    document: Document
    live: bool
    explanation: Explanation

    def is_repair(self, fix: Fix) -> bool:
        """Tell whether a change edits only the spoilt place; where that was misspelt, it must be the intended word."""
        paths = [_pointer(operation) for operation in fix.patch]
        if not (paths and all(path.startswith(self.place) for path in paths)):
            return False
        if not self.how.startswith("misspelt"):
            return True
        patched = jsonpatch.apply_patch(self.document, [dict(operation) for operation in fix.patch])
        return _misspelt(patched) == _misspelt(self.intended)

    @property
    def rank_of_repair(self) -> int | None:
        """The place of the repair among the changes, from 0; None where it is not proposed."""
        return next((rank for rank, fix in enumerate(self.explanation.fixes) if self.is_repair(fix)), None)

    @property
    def lessens_first(self) -> bool:
        """Whether the first change gives fewer or lesser GPUs while another change of the pod does not."""
        of_pod = [fix for fix in self.explanation.fixes if all(edit.of == "pod" for edit in fix.edits)]
        return bool(of_pod) and lessens(of_pod[0]) and not all(map(lessens, of_pod))

    def lines(self) -> list[str]:
        """Print the default answer in 120 columns."""
        text = io.StringIO()
        print_explanation(Console(file=text, width=120, highlight=False), self.explanation)
        return text.getvalue().splitlines()


def _misspelt(pod: Document) -> tuple[Any, ...]:
    """Give what `misspelt_…` change in a pod: the product, the selector, and the resources."""
    asked = {name for name in _limits(pod) if "/" in name}
    return pod["metadata"]["annotations"].get(OURS + "products"), pod["spec"].get("nodeSelector") or {}, asked


def _pointer(operation: Mapping[str, Any]) -> str:
    """Write the place of an operation; members that are added as a whole count as the one that they have."""
    path, value = str(operation["path"]), operation.get("value")
    while isinstance(value, dict) and len(value) == 1:
        (key, value), *_ = value.items()
        path += "/" + key.replace("~", "~0").replace("/", "~1")
    return path


def lessens(fix: Fix) -> bool:
    """Tell whether a change gives fewer GPUs, a part of one, or GPUs with less memory."""
    words = ("a time-slice", "a share", "not a whole GPU", "a smaller slice", "MiB of memory each", "MPS", "MIG slice")
    return any(
        (edit.kind == "ask-fewer" and GPU.partition("/")[0] in edit.text)
        or (edit.kind != "request-less" and any(word in edit.text for word in words))
        for edit in fix.edits
    )


@cache
def world(fleet: str) -> World:
    """Read a sample fleet with the shipped policies."""
    return snapshot_of(list(demo_fleet(fleet)), None)


def intended(rng: random.Random, fleet: str) -> Document:
    """Write a pod as somebody would who knows one node of the fleet."""
    nodes = [node for node in world(fleet).nodes.values() if node.node_class.offered]
    node = rng.choice(nodes)
    resource = rng.choice([name for name, _ in node.node_class.offered])
    free = max(1, node.free.units.get(resource, 1))
    several = node.node_class.unit_words(resource) == "a whole GPU"
    limits: Document = {resource: str(rng.randint(1, min(free, 8)) if several else 1)}
    limits |= {"cpu": str(rng.randint(1, 4)), "memory": f"{rng.randint(1, 16)}Gi"} if rng.random() < 0.7 else {}
    annotations: dict[str, str] = {}
    row = world(fleet).knowledge.products.by_form.get(node.node_class.product or "")
    if row is not None and rng.random() < 0.5:
        annotations[OURS + "products"] = row.label
    if rng.random() < 0.2:
        annotations[OURS + "cuda"] = rng.choice(["11.8", "12.0", "12.2"])
    if rng.random() < 0.2 and node.node_class.memory_mib:
        annotations[OURS + "gpu-memory"] = f"{max(1, node.node_class.memory_mib // 2048)}Gi"
    if rng.random() < 0.15:
        annotations[OURS + "sharing"] = "Exclusive"
    selector = {}
    own = {
        key: value for key, value in node.labels.items() if not key.startswith(("nvidia.com/mig.config", "feature."))
    }
    if rng.random() < 0.3 and own:
        key = rng.choice(sorted(own))
        selector = {key: own[key]}
    image = rng.choice(IMAGES)
    container = {"name": "main", "image": image, "resources": {"limits": limits}}
    containers = [container]
    if rng.random() < 0.2:
        containers.append({"name": "sidecar", "image": "registry.example.com/logs:1", "resources": {}})
    tolerations = [{"key": key, "operator": "Exists", "effect": effect} for key, _, effect in node.taints]
    metadata = {"name": "p", "namespace": "team-a", "uid": "p", "annotations": annotations}
    spec = {"containers": containers, "nodeSelector": selector, "tolerations": tolerations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


Place = tuple[str, ...]
Spoil = Callable[[random.Random, Document], Place | None]
"""Changes a pod in one place, and returns that place; None where the pod has no such place."""
RESOURCES = ("/spec/containers/0/resources", "/spec/resources")


def _limits(pod: Document) -> dict[str, str]:
    limits: dict[str, str] = pod["spec"]["containers"][0]["resources"]["limits"]
    return limits


def _gpu(pod: Document) -> str:
    return next(name for name in _limits(pod) if "/" in name)


def _annotate(key: str, value: str) -> Spoil:
    def spoil(_: random.Random, pod: Document) -> Place:
        pod["metadata"]["annotations"][OURS + key] = value
        return (f"/metadata/annotations/{OURS.replace('/', '~1')}{key}",)

    return spoil


def _limit(name: str, value: str) -> Spoil:
    def spoil(_: random.Random, pod: Document) -> Place:
        _limits(pod)[name] = value
        return RESOURCES

    return spoil


def misspelt_resource(rng: random.Random, pod: Document) -> Place | None:
    name = _gpu(pod)
    if name != GPU:
        return None
    amount = _limits(pod).pop(name)
    _limits(pod)[rng.choice(["nvidia.com/gpus", "nvidia/gpu", "nvidia.com/GPU", "nvidia.com/gup"])] = amount
    return RESOURCES


def misspelt_product(rng: random.Random, pod: Document) -> Place | None:
    name = pod["metadata"]["annotations"].get(OURS + "products")
    if name is None:
        return None
    at = rng.randrange(len(name))
    return _annotate("products", name[:at] + rng.choice("QZX") + name[at:])(rng, pod)


def absent_product(rng: random.Random, pod: Document) -> Place | None:
    return _annotate("products", rng.choice(["B200", "MI300X", "RTX-6000-Ada", "P100", "GB300"]))(rng, pod)


def too_many(rng: random.Random, pod: Document) -> Place | None:
    _limits(pod)[_gpu(pod)] = str(rng.choice([9, 12, 16, 24]))
    return RESOURCES


def newer_image(_: random.Random, pod: Document) -> Place | None:
    name = pod["spec"]["containers"][0]["image"].partition(":")[0]
    if name not in NEWER:
        return None
    pod["spec"]["containers"][0]["image"] = f"{name}:{NEWER[name]}"
    return ("/spec/containers/0/image",)


def absent_slice(rng: random.Random, pod: Document) -> Place | None:
    name = _gpu(pod)
    if profile_of(name) is None:
        return None
    amount = _limits(pod).pop(name)
    _limits(pod)["nvidia.com/mig-" + rng.choice(["4g.40gb", "1g.12gb", "7g.141gb", "1g.6gb"])] = amount
    return RESOURCES


def selector_of_no_node(rng: random.Random, pod: Document) -> Place:
    pod["spec"]["nodeSelector"][rng.choice(["disktype", "team", "example.com/pool"])] = "none"
    return ("/spec/nodeSelector",)


def misspelt_selector(rng: random.Random, pod: Document) -> Place | None:
    selector = pod["spec"]["nodeSelector"]
    if not selector:
        return None
    key = rng.choice(sorted(selector))
    selector[key] = selector[key] + "x"
    return ("/spec/nodeSelector",)


def forgotten_toleration(_: random.Random, pod: Document) -> Place | None:
    if not pod["spec"]["tolerations"]:
        return None
    pod["spec"]["tolerations"] = []
    return ("/spec/tolerations",)


def affinity_to_no_node(_: random.Random, pod: Document) -> Place:
    term = {"matchExpressions": [{"key": "example.com/rack", "operator": "In", "values": ["r9"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    pod["spec"]["affinity"] = {"nodeAffinity": required}
    return ("/spec/affinity",)


def affinity_to_no_pod(_: random.Random, pod: Document) -> Place:
    term = {"labelSelector": {"matchLabels": {"app": "gone"}}, "topologyKey": "kubernetes.io/hostname"}
    pod["spec"]["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return ("/spec/affinity",)


def gated(_: random.Random, pod: Document) -> Place:
    pod["spec"]["schedulingGates"] = [{"name": "example.com/quota"}]
    return ("/spec/schedulingGates",)


def fraction(_: random.Random, pod: Document) -> Place:
    _limits(pod)[_gpu(pod)] = "0.5"
    return RESOURCES


def more_cpu(rng: random.Random, pod: Document) -> Place | None:
    return _limit("cpu", rng.choice(["200", "400", "1000"]))(rng, pod)


def more_memory(rng: random.Random, pod: Document) -> Place | None:
    return _limit("memory", rng.choice(["3Ti", "6Ti", "9000Gi"]))(rng, pod)


SPOILS: Mapping[str, Spoil] = {
    "misspelt resource": misspelt_resource,
    "misspelt product": misspelt_product,
    "absent product": absent_product,
    "too many GPUs": too_many,
    "CUDA too new": _annotate("cuda", "14.2"),
    "memory too large": _annotate("gpu-memory", "400Gi"),
    "capability too high": _annotate("compute-capability", "15.0"),
    "annotation does not parse": _annotate("gpu-memory", "plenty"),
    "image too new": newer_image,
    "slice that no node has": absent_slice,
    "selector of no node": selector_of_no_node,
    "misspelt selector": misspelt_selector,
    "forgotten toleration": forgotten_toleration,
    "affinity to no node": affinity_to_no_node,
    "affinity to no pod": affinity_to_no_pod,
    "scheduling gate": gated,
    "fraction": fraction,
    "more CPU than a node has": more_cpu,
    "more memory than a node has": more_memory,
    "network that no node has": _limit("rdma/hca", "2"),
}


def _explained(document: Document, fleet: str, live: bool) -> Explanation:
    return finish(explain(document, world(fleet), live))


def spoilt_pods(seed: int, number: int) -> Iterator[SpoiltPod]:
    """Make pods, each of which would run but for one thing, with as many of each kind as there are."""
    rng = random.Random(seed)
    kinds: list[str] = []
    made = 0
    while made < number:
        kinds = kinds or list(SPOILS)
        how = kinds.pop(0)
        for _ in range(30):
            fleet = rng.choice(FLEETS)
            document = intended(rng, fleet)
            spoilt = copy.deepcopy(document)
            place = SPOILS[how](rng, spoilt)
            if place is None or not finish(explain(document, world(fleet), find_fixes=False)).fits:
                continue
            live = rng.random() < 0.5
            if live:
                scheduled_pod = read_scheduled_pod(spoilt, world(fleet), admit=True)
                live = scheduled_pod.review_result.allowed and how not in ("misspelt resource", "fraction")
                status = {"status": {"phase": "Pending"}} if live else {}
                spoilt = {**(dict(scheduled_pod.document) if live else spoilt), **status}
            explanation = _explained(spoilt, fleet, live)
            if not explanation.fits:
                made += 1
                yield SpoiltPod(fleet, how, place, document, spoilt, live, explanation)
                break


def report(number: int, seed: int = 26) -> None:
    """Print the figures of a number of pods."""
    pods = list(spoilt_pods(seed, number))
    ranks = Counter(pod.rank_of_repair for pod in pods)
    first, three = ranks[0], ranks[0] + ranks[1] + ranks[2]
    print(f"{len(pods)} pods: repair first {first / len(pods):.1%}, in the first three {three / len(pods):.1%}")
    print(f"first change gives fewer or lesser GPUs than another: {sum(pod.lessens_first for pod in pods)}")
    lengths = [len(pod.lines()) for pod in pods[:200]]
    print(f"lines of the default answer: median {statistics.median(lengths)}, longest {max(lengths)}")
    for how in SPOILS:
        of_kind = [pod.rank_of_repair for pod in pods if pod.how == how]
        print(f"  {how:30}{len(of_kind):4}  {dict(Counter(map(str, of_kind)).most_common())}")
    if "-v" in sys.argv:
        for pod in pods:
            if pod.rank_of_repair != 0 or pod.lessens_first:
                print(f"\n{pod.fleet} {pod.how} live={pod.live} rank={pod.rank_of_repair}")
                print("\n".join(line for line in pod.lines()))


if __name__ == "__main__":
    report(int(sys.argv[1]))
