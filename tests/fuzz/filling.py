# SPDX-License-Identifier: Apache-2.0
"""Fill every bounded cache of the service before the first input, so that later growth of memory is a leak.

The entries are made from the seeds with a small change each, as strange inputs differ from the seeds by little too.
Each is decoded anew, since the caches hold the strings that were decoded.
"""

import json
from collections.abc import Iterable, Mapping

from app.cluster.core import RULINGS_KEPT
from app.cluster.verdict_cache import DEMANDS_KEPT
from app.kube.pods import read_pod
from app.nodes.conditions import MEMORY
from app.nodes.labels import NODE_CLASSES_KEPT, _read_class
from app.nodes.reading import read_node
from app.placement.ranking import TIE_BREAKS_KEPT, tie_break
from app.server.service import Service
from app.values.quantity import parse_quantity
from tests.builders import knowledge
from tests.fuzz.seeds import seeds


def fill(services: Iterable[Service]) -> None:
    """Fill the rulings and appraisals of each service, and the caches of node classes, names and quantities of the
    process."""
    pods, nodes = seeds("pod"), seeds("node")
    for number in range(RULINGS_KEPT):
        document = json.loads(pods[number % len(pods)])
        document["metadata"].setdefault("annotations", {})["gpu-usher.io/gpu-memory"] = f"{number + 1}Mi"
        for service in services:
            read = read_pod(json.loads(json.dumps(document)))
            service.ruling(read)
            demand = service.demand(read)
            if number < DEMANDS_KEPT:
                service.verdicts(demand)
    for number in range(NODE_CLASSES_KEPT):
        document = json.loads(nodes[number % len(nodes)])
        document["metadata"]["labels"][MEMORY] = str(number)
        read_node(document, knowledge())
        parse_quantity(f"{number}001m")
    for number in range(TIE_BREAKS_KEPT):
        tie_break(f"ip-10-0-{number}.eu-central-1.compute.internal")


def remembered(services: Iterable[Service]) -> Mapping[str, int]:
    """Count the entries of each cache, for all services together."""
    all_services = list(services)
    return {
        "rulings": sum(len(service._rulings._by_template) for service in all_services),
        "demands": sum(len(service._demands._by_template) for service in all_services),
        "appraised demands": sum(len(service._verdicts._tables) for service in all_services),
        "makes of nodes": _read_class.cache_info().currsize,
        "names": tie_break.cache_info().currsize,
        "quantities": parse_quantity.cache_info().currsize,
    }
