# SPDX-License-Identifier: Apache-2.0
"""Filling: what the service remembers is bounded, and full before the first input, so that all growth is a leak.

Filled with what the seeds are made of, each a little different, since strange inputs differ from them as little; each
is read anew, since what is remembered holds the strings that were read.
"""

import json
from collections.abc import Iterable, Mapping

from app.cluster.ruling_cache import RULINGS_KEPT
from app.cluster.verdict_cache import DEMANDS_KEPT
from app.kube.pods import read_pod
from app.nodes.label_keys import MEMORY
from app.nodes.labels import CLASSES_KEPT, _read_class
from app.nodes.reading import read_node
from app.placement.ranking import NAMES_KEPT, tie_break
from app.server.service import Service
from app.values.quantity import parse_quantity
from tests.builders import knowledge
from tests.fuzz.seeds import seeds


def fill(services: Iterable[Service]) -> None:
    """Fill each service's rulings and appraisals, and the makes of nodes, names and quantities that all share."""
    pods, nodes = seeds("pod"), seeds("node")
    for number in range(RULINGS_KEPT):
        document = json.loads(pods[number % len(pods)])
        document["metadata"].setdefault("annotations", {})["gpu-usher.io/gpu-memory"] = f"{number + 1}Mi"
        for service in services:
            asked = read_pod(json.loads(json.dumps(document)))
            service.ruling(asked)
            demand = service.demand(asked)
            if number < DEMANDS_KEPT:
                service.verdicts(demand)
    for number in range(CLASSES_KEPT):
        document = json.loads(nodes[number % len(nodes)])
        document["metadata"]["labels"][MEMORY] = str(number)
        read_node(document, knowledge())
        parse_quantity(f"{number}001m")
    for number in range(NAMES_KEPT):
        tie_break(f"ip-10-0-{number}.eu-central-1.compute.internal")


def remembered(services: Iterable[Service]) -> Mapping[str, int]:
    """Count what is remembered, all services together."""
    kept = list(services)
    return {
        "rulings": sum(len(each._rulings._by_template) for each in kept),
        "demands": sum(len(each._demands._by_template) for each in kept),
        "appraised demands": sum(len(each._verdicts._kept) for each in kept),
        "makes of nodes": _read_class.cache_info().currsize,
        "names": tie_break.cache_info().currsize,
        "quantities": parse_quantity.cache_info().currsize,
    }
