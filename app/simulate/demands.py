# SPDX-License-Identifier: Apache-2.0
"""Tasks as Pods, and the demands that our policies compile from them, with the outlook of the moment."""

from dataclasses import replace
from typing import Any

from app.knowledge.tables import Knowledge
from app.kube.pods import read_pod
from app.placement.scorers import looks_ahead
from app.placement.workload import ask_of
from app.policy.compiled import PolicySet
from app.policy.demand import Demand
from app.policy.expected_demand import DemandClass, ExpectedDemand
from app.policy.match import compile_demand
from app.simulate.policies import BenchmarkPolicy
from app.simulate.simulated_cluster import GPU
from app.simulate.trace import WHOLE_MILLI, Task


def pod_document(task: Task, name: str = "task") -> dict[str, Any]:
    """Write a task as a Pod. A share of a GPU has no word there: the Pod asks for one, the Demand says how much."""
    gpus = {GPU: str(task.gpus)} if task.gpus else {}
    requests = {"cpu": f"{task.cpu_milli}m", "memory": f"{task.memory_mib}Mi", **gpus}
    annotations = {"gpu-usher.io/products": ",".join(task.products)} if task.products else {}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "simulated", "uid": name, "annotations": annotations},
        "spec": {"containers": [{"name": "main", "resources": {"limits": gpus, "requests": requests}}]},
    }


class Demands:
    """The demands of tasks under one policy of the benchmark."""

    def __init__(self, policies: PolicySet, knowledge: Knowledge, policy: BenchmarkPolicy) -> None:
        self._policies = policies
        self._knowledge = knowledge
        self._policy = policy
        self._compiled: dict[Task, tuple[Demand, DemandClass]] = {}
        self._current: dict[Task, Demand] = {}
        self._outlook: ExpectedDemand | None = None

    def expect(self, outlook: ExpectedDemand | None) -> None:
        """Let the demands from now on carry this outlook."""
        self._outlook = outlook
        self._current = {}

    def ask(self, task: Task) -> DemandClass:
        """Give the class of a task."""
        return self._compile(task)[1]

    def of(self, task: Task) -> Demand:
        """Give the demand of a task."""
        if task not in self._current:
            demand = self._compile(task)[0]
            self._current[task] = replace(demand, outlook=self._outlook) if looks_ahead(demand) else demand
        return self._current[task]

    def _compile(self, task: Task) -> tuple[Demand, DemandClass]:
        if task not in self._compiled:
            pod = read_pod(pod_document(task))
            demand = compile_demand(pod, {}, self._policies, self._knowledge)
            demand = replace(
                demand,
                share_milli=task.gpu_milli % WHOLE_MILLI,
                cpu_milli=task.cpu_milli,
                scores=self._policy.scores or demand.scores,
                ranked=self._policy.ranked,
            )
            self._compiled[task] = (demand, ask_of(demand))
        return self._compiled[task]
