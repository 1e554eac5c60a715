# SPDX-License-Identifier: Apache-2.0
"""A scrape of a service after requests of every verb, with good and bad bodies, over real sockets."""

import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.builders import gpus, make_service, pod, review
from tests.running import running

ARGUMENTS = {"Pod": pod(annotations={"products": "H100"}), "NodeNames": ["h100-1", "t4-0", "no-such-node"]}
VICTIMS = {"Pod": pod(), "NodeNameToMetaVictims": {"h100-1": {"Pods": [{"UID": "u"}], "NumPDBViolations": 0}}}
REVIEWS = (pod(), pod(gpus("500m")), pod(gpus(9)), pod(annotations={"products": "nonsense"}))


@cache
def scraped() -> str:
    """Return the text of /metrics after these requests."""
    with tempfile.TemporaryDirectory() as folder, running(make_service(Path(folder))) as clients:
        for document in REVIEWS:
            for verb in ("mutate", "validate"):
                clients.tls.post(f"/{verb}", json=review(document))
        for verb in ("filter", "prioritize"):
            clients.tls.post(f"/scheduler/{verb}", json=ARGUMENTS)
        clients.tls.post("/scheduler/preempt", json=VICTIMS)
        for path in ("/mutate", "/validate", "/scheduler/filter"):
            clients.tls.post(path, content=b"{not json")
        return clients.ops.get("/metrics").text


@cache
def offered() -> dict[str, frozenset[str]]:
    """List all metrics that the service can have: sample names, and the labels that they may have.

    A metric that was not counted yet has no samples; its name and labels come from the registry.
    """
    with tempfile.TemporaryDirectory() as folder:
        registry = make_service(Path(folder)).metrics.registry
    labels_by_metric: dict[str, frozenset[str]] = {}
    for collector in registry._collector_to_names:
        labels = frozenset(getattr(collector, "_labelnames", ()))
        for name in registry._collector_to_names[collector]:
            labels_by_metric[name] = labels | ({"le"} if name.endswith("_bucket") else frozenset())
    return labels_by_metric


def samples() -> Iterator[Sample]:
    """Iterate over the samples of the scrape."""
    for family in text_string_to_metric_families(scraped()):
        yield from family.samples
