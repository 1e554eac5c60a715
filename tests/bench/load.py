# SPDX-License-Identifier: Apache-2.0
"""The load generator: many pods created and deleted quickly, many nodes registered (F121)."""

import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from tests.bench.fleet import node
from tests.controlplane.fleet import registered
from tests.controlplane.kubectl import Api, Object

MAKERS = 4
"""Threads with a connection each; more only queue at the API server on two cores."""


def spread(api: Api, work: Callable[[Api, Object], object], documents: Iterable[Object]) -> None:
    """Do something with many objects over several connections.

    Raises the exception of a thread.
    """
    queue = iter(documents)
    lock = threading.Lock()
    failures: list[BaseException] = []

    def take() -> list[Object]:
        with lock:
            return list(islice(queue, 20))

    def run() -> None:
        try:
            with api.like() as own:
                while batch := take():
                    for document in batch:
                        work(own, document)
        except BaseException as error:  # noqa: BLE001  # raised again in the thread that called
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(MAKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def add_fleet(api: Api, count: int) -> None:
    """Register that many nodes of eight makes."""
    spread(api, lambda own, document: own.create("/api/v1/nodes", document), map(registered, map(node, range(count))))


def add_pods(api: Api, namespace: str, pods: Iterable[Object]) -> None:
    """Create pods."""
    spread(api, lambda own, document: own.create(f"/api/v1/namespaces/{namespace}/pods", document), pods)


def one_gpu_pods(count: int, scheduler: str) -> Iterator[Object]:
    """Write pods of one GPU each for one scheduler."""
    for index in range(count):
        resources = {"limits": {"nvidia.com/gpu": "1", "cpu": "1", "memory": "4Gi"}}
        yield {
            "metadata": {"name": f"load-{index}"},
            "spec": {
                "schedulerName": scheduler,
                "containers": [{"name": "main", "image": "train:1", "resources": resources}],
            },
        }
