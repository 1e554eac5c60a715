# SPDX-License-Identifier: Apache-2.0
"""Simulated runs: they give the integers of the HTTP route, repeat themselves, and continue an interrupted batch."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

from app.knowledge.tables import Knowledge
from app.kube.pods import read_pod
from app.placement.engine import judge
from app.policy.compiled import PolicySet
from tests.api.client import post
from tests.bench.simulate.policies import pod_document, read_policy
from tests.bench.simulate.run import Options, Simulation, SimulationRun, run
from tests.bench.simulate.simulated_cluster import node_document
from tests.bench.simulate.trace import Trace, synthetic
from tests.builders import knowledge, make_service, policies, policy, shipped

RULES: tuple[PolicySet, Knowledge] = (shipped(), knowledge())
PLAIN = Options(all_pods=True)
BAR = 95.5
"""Percent of the GPUs that the defaults must allocate, half a point below the result of seed 42."""


@cache
def small(workload: str = "default") -> Trace:
    return synthetic(workload, 40)


def play(chosen: str = "fgd", options: Options = PLAIN, trace: Trace | None = None, seed: int = 42) -> SimulationRun:
    return run(trace or small(), read_policy(chosen), seed, options, RULES)


@pytest.mark.parametrize(
    ("chosen", "scores"),
    [
        ("shipped", None),
        ("Spreading=3+ProductPreference=1", "[{name: Spreading, weight: 3}, {name: ProductPreference}]"),
        ("Fragmentation=2+Packing=1", "[{name: Fragmentation, weight: 2}, {name: Packing}]"),
    ],
    ids=["shipped", "others", "looking ahead"],
)
def test_answers_are_those_of_the_http_route(chosen: str, scores: str | None, tmp_path: Path) -> None:
    """F52, F61: nodes and bound pods as documents, and the call over the whole ASGI stack, for both verbs.

    The pods ask for whole GPUs, so that the service's counts equal the simulation's facts per GPU. Its CPU is in whole
    cores.
    """
    trace = small("gpuspec33")
    trace = replace(trace, tasks=tuple(task for task in trace.tasks if task.milli in (0, *range(1000, 9000, 1000))))
    rules = (policies(policy("p", f"placement: {{scores: {scores}}}")) if scores else shipped(), knowledge())
    simulation = Simulation(trace, read_policy(chosen), 42, PLAIN, rules)
    objects: list[dict[str, Any]] = [node_document(machine) for machine in trace.machines]
    for number, task in enumerate(trace.tasks[:100]):
        if (bound := simulation.place(task)) is not None:
            made = pod_document(task, f"bound-{number}")
            made["spec"]["nodeName"] = bound[1].name
            objects.append({**made, "status": {"phase": "Running"}})
    service = make_service(tmp_path, objects, rules[0])
    without = next(task for task in trace.tasks if not task.gpus)
    simulation.demands.expect(service.demand(read_pod(pod_document(without, "seen-0"))).expected_demand)
    for number, task in enumerate(trace.tasks[100:130]):
        names = list(simulation.fleet.nodes)
        Random(number).shuffle(names)
        question = json.dumps({"Pod": pod_document(task, f"asked-{number}"), "NodeNames": names})

        kept_names = post("/scheduler/filter", question.encode(), service).json()["NodeNames"]
        scored = post("/scheduler/prioritize", question.encode(), service).json()

        demand = simulation.demands.of(task)
        fits = [name for name in names if judge(demand, simulation.fleet.nodes[name], recount=True) is None]
        assert kept_names == fits
        assert [score["Score"] for score in scored] == simulation.scores(task, names)
    assert chosen.startswith("Spreading") != (simulation.demands.of(trace.tasks[0]).expected_demand is not None)


@pytest.mark.parametrize("workload", ["default", "gpuspec33"])
def test_defaults_give_out_more_gpus_than_others(workload: str) -> None:
    """F51, F52: on a twentieth of a fleet like the published one, seed 42 gives 96.05 and 96.06 % with a shortlist.

    Where filter names all nodes it gives 96.05 and 96.22 %.
    """
    trace = synthetic(workload, 60)

    allocated = {
        policy: play(policy, trace=trace).allocated_percent["100"]
        for policy in ("shortlist", "shipped", "packing", "fgd", "bestfit")
    }

    others = max(allocated[policy] for policy in ("packing", "fgd", "bestfit"))
    assert min(allocated["shortlist"], allocated["shipped"]) > max(others, BAR)
