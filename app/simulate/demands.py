# SPDX-License-Identifier: Apache-2.0
"""The demands of tasks: tasks as Pods, compiled by our policies, with the current expected demand."""

from dataclasses import replace
from typing import Any

from app.demo.gfd import WHOLE_GPU
from app.knowledge.tables import Knowledge
from app.kube.pods import read_pod
from app.nodes.model import WHOLE_MILLI
from app.placement.expected_demand import demand_class
from app.placement.scorers import uses_expected_demand
from app.policy.compiled import PolicySet
from app.policy.demand import Demand, DemandClass, ExpectedDemand
from app.policy.match import compile_demand
from app.simulate.policies import BenchmarkPolicy
from app.simulate.trace import Task


def pod_document(task: Task, name: str = "task") -> dict[str, Any]:
    """Return a task as a Pod. Pods cannot ask for a share of a GPU: the Pod asks for one, the Demand has the share."""
    gpus = {WHOLE_GPU: str(task.gpus)} if task.gpus else {}
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
        self._expected_demand: ExpectedDemand | None = None

    def expect(self, expected_demand: ExpectedDemand | None) -> None:
        """Give this expected demand to all demands from now on."""
        if expected_demand is not self._expected_demand:
            self._expected_demand = expected_demand
            self._current = {}

    def class_of(self, task: Task) -> DemandClass:
        """Return the demand class of a task."""
        return self._compile(task)[1]

    def of(self, task: Task) -> Demand:
        """Return the demand of a task."""
        if task not in self._current:
            demand = self._compile(task)[0]
            self._current[task] = (
                replace(demand, expected_demand=self._expected_demand) if uses_expected_demand(demand) else demand
            )
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
            self._compiled[task] = (demand, demand_class(demand))
        return self._compiled[task]
