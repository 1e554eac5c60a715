# SPDX-License-Identifier: Apache-2.0
"""The API server of a large fleet, played by a process: it writes pages when they are asked for, and streams pods.

`GET /bench/pods?rate=R&seconds=S` streams the lives of pods to the watches, R events a second; each pod is created,
bound, run and deleted. `GET /bench/gone` ends the watches of pods with 410, after which a client lists again.
"""

import argparse
import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from urllib.parse import parse_qs

import uvloop

from tests.bench.cloud_fleet import CloudFleet
from tests.bench.list_server import PAGE, ListServer, arguments, listen

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
BEATS = 50
"""Times a second at which events are written."""
WAIT, LIFE = 8, 200
"""Pods that are created before one is bound, and before one ends."""
BOOKMARK_SECONDS = 5.0
BOOKMARK = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}


class Pages(Sequence[bytes]):
    """The pages of a list of `count` objects, each written when it is read; `write` writes an object."""

    def __init__(self, count: int, write: Callable[[int], str]) -> None:
        self._count, self._write = count, write

    def __len__(self) -> int:
        return -(-self._count // PAGE)

    def __getitem__(self, number: int) -> bytes:  # type: ignore[override]  # no slices
        items = map(self._write, range(number * PAGE, min(self._count, (number + 1) * PAGE)))
        return _list(items, str(number + 1) if (number + 1) * PAGE < self._count else "")


def _list(items: Iterable[str], more: str = "") -> bytes:
    return f'{{"metadata":{{"resourceVersion":"9","continue":"{more}"}},"items":[{",".join(items)}]}}'.encode()


class CloudServer(ListServer):
    """Lists and watches of a fleet."""

    def __init__(self, fleet: CloudFleet) -> None:
        super().__init__({NODES: Pages(fleet.nodes, fleet.node), PODS: Pages(fleet.pods, fleet.pod)})
        self._fleet = fleet
        self._identities = Pages(fleet.pods, fleet.pod_identity)
        self._node_numbers = {name: index for index, name in enumerate(fleet.names)}
        self._watches: dict[asyncio.StreamWriter, str] = {}
        self._streaming: asyncio.Task[None] | None = None

    def watched(self, path: str, writer: asyncio.StreamWriter) -> None:
        """Keep a watch, by the path of its kind."""
        self._watches[writer] = path

    async def send_bookmarks(self) -> None:
        """Send a bookmark to every watch at intervals, as an API server does, so that no cache counts as stale."""
        while True:
            await asyncio.sleep(BOOKMARK_SECONDS)
            for writer in self._watches:
                _write(writer, [json.dumps(BOOKMARK)])

    def _watches_of_pods(self) -> list[asyncio.StreamWriter]:
        return [writer for writer, path in self._watches.items() if path == PODS]

    def body(self, path: str, query: str, head: bytes) -> bytes:
        """Return a page, the pods of one node, or the answer to a wish of the benchmark."""
        words = {key: values[0] for key, values in parse_qs(query).items()}
        if path == "/bench/pods":
            self._streaming = asyncio.create_task(self._stream(int(words["rate"]), float(words["seconds"])))
            return b""
        if path == "/bench/gone":
            self._end_watches()
            return b""
        if path == PODS and "fieldSelector" in words:
            return _list(map(self._fleet.pod, self._pods_of(words["fieldSelector"].partition("=")[2])))
        if path == PODS and b"PartialObjectMetadataList" in head:
            return self._identities[int(words.get("continue", 0))]
        return super().body(path, query, head)

    def _pods_of(self, node: str) -> range:
        return range(self._node_numbers[node], self._fleet.pods, self._fleet.nodes)

    def _end_watches(self) -> None:
        for writer in self._watches_of_pods():
            _write(writer, [json.dumps(GONE)])
            writer.write(b"0\r\n\r\n")
            del self._watches[writer]

    async def _stream(self, rate: int, seconds: float) -> None:
        events = lives(self._fleet, int(rate * seconds / 4))
        clock = asyncio.get_running_loop().time
        began, sent, ended = clock(), 0, False
        while not ended:
            due = int((clock() - began) * rate) - sent
            lines = list(islice(events, due))
            ended = len(lines) < due
            sent += len(lines)
            for writer in self._watches_of_pods():
                _write(writer, lines)
            await asyncio.sleep(1 / BEATS)


def lives(fleet: CloudFleet, count: int) -> Iterator[str]:
    """Yield the events of that many pods, which are all gone in the end; one in five wants a GPU."""
    with_gpus = fleet.gpu_indexes()
    stages = (
        ("ADDED", 0, "Pending"),
        ("MODIFIED", WAIT, "Scheduled"),
        ("MODIFIED", 2 * WAIT, "Running"),
        ("DELETED", LIFE, "Running"),
    )
    version = 10
    for turn in range(count + LIFE):
        for kind, delay, phase in stages:
            number = turn - delay
            if 0 <= number < count:
                version += 1
                wants_gpu = number % 5 == 0
                node = with_gpus[number * 7 % len(with_gpus)] if wants_gpu else number * 11 % fleet.nodes
                pod = fleet.pod_on(node, fleet.pods + number, wants_gpu, phase, version)
                yield f'{{"type":"{kind}","object":{pod}}}'


def _write(writer: asyncio.StreamWriter, lines: Sequence[str]) -> None:
    """Write lines of a watch as one chunk."""
    if lines:
        data = "".join(f"{line}\n" for line in lines).encode()
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))


async def _serve(words: argparse.Namespace) -> None:
    played = CloudServer(CloudFleet(words.nodes, words.pods, words.gpu_share))
    await asyncio.gather(listen(played, words), played.send_bookmarks())


def main() -> None:
    """Play the API server until a signal."""
    parser = arguments()
    parser.add_argument("--gpu-share", type=float, required=True)
    uvloop.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
