# SPDX-License-Identifier: Apache-2.0
"""Reads DCGM's metrics from the exporters, at every address of their host names, as a headless Service has them."""

import asyncio
import math
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from app.cluster.scrape import PollResult, ScrapeClient, read_url
from app.knowledge.dcgm import DCGM
from app.nodes.gpu_health import MetricSample, read_sample
from app.values.errors import SourceError

PORT = 9400
"""The default port of dcgm-exporter."""
SCRAPES_AT_ONCE = 32
"""Scrapes at a time; an exporter with eight GPUs takes some 10 ms for an answer."""
SCRAPE_SECONDS = 5.0
ROUND_SECONDS = 20.0
"""For all scrapes of a poll, less than the time between two polls. Exporters that have not answered are left out."""
ANSWER_BYTES = 8 << 20
"""Largest answer in bytes; an exporter with 16 GPUs and every counter on sends 1 MB."""


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """One address to scrape. `host` is the name that it was resolved from, for the Host header and the certificate."""

    scheme: str
    host: str
    address: str
    port: int
    path: str

    @property
    def url(self) -> str:
        return f"{self.scheme}://{_bracketed(self.address)}:{self.port}{self.path}"


class Exporters:
    """Exporters by URL. Names are resolved at every poll. The path is /metrics unless the URL has one."""

    def __init__(self, urls: Iterable[str], dcgm: DCGM) -> None:
        self._urls = [read_url(url, "--dcgm-exporters") for url in urls]
        self.origin = ", ".join(url.geturl() for url in self._urls)
        self._dcgm = dcgm
        self._client = ScrapeClient()

    async def poll(self) -> PollResult:
        """Scrape every exporter once. Exporters that fail are reported as the problem, if at least one answers.

        Raises SourceError.
        """
        targets, problems = await self._targets()
        semaphore = asyncio.Semaphore(SCRAPES_AT_ONCE)
        scrapes = {
            asyncio.create_task(self._scrape(target, semaphore)): target
            for target in sorted(targets, key=lambda t: t.url)
        }
        try:
            if scrapes:
                await asyncio.wait(scrapes, timeout=ROUND_SECONDS)
        finally:
            for task in scrapes:
                task.cancel()
            results = await asyncio.gather(*scrapes, return_exceptions=True)
        samples: list[MetricSample] = []
        for target, result in zip(scrapes.values(), results, strict=True):
            if isinstance(result, PollResult):
                samples += result.samples
                problems += [f"{target.url}: {result.problem}"] if result.problem else []
            elif isinstance(result, SourceError | asyncio.CancelledError):
                problems.append(f"{target.url}: {result or 'no answer in time'}")
            else:
                raise result
        if not any(isinstance(result, PollResult) for result in results):
            raise SourceError(_summary(problems) or "no address to scrape")
        return PollResult(samples, _summary(problems))

    async def _targets(self) -> tuple[set[ScrapeTarget], list[str]]:
        targets: set[ScrapeTarget] = set()
        problems: list[str] = []
        loop = asyncio.get_running_loop()
        for url in self._urls:
            host, port = url.hostname or "", url.port or PORT
            try:
                async with asyncio.timeout(SCRAPE_SECONDS):
                    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:  # TimeoutError is an OSError
                problems.append(f"{host}: {str(error) or 'no answer in time'}")
                continue
            path = url.path if url.path.strip("/") else "/metrics"
            targets |= {ScrapeTarget(url.scheme, host, str(address[4][0]), port, path) for address in addresses}
        return targets, problems

    async def _scrape(self, target: ScrapeTarget, semaphore: asyncio.Semaphore) -> PollResult:
        async with semaphore:
            headers = {"Host": f"{_bracketed(target.host)}:{target.port}"}
            name = target.host if target.scheme == "https" else None
            body = await self._client.get(target.url, ANSWER_BYTES, SCRAPE_SECONDS, headers=headers, server_name=name)
            return await asyncio.to_thread(read_exposition, body, self._dcgm)

    async def close(self) -> None:
        await self._client.close()


def read_exposition(body: bytes, dcgm: DCGM) -> PollResult:
    """Read an exporter's answer in Prometheus' text format.

    Raises SourceError if it is not in that format.
    """
    samples: list[MetricSample] = []
    not_finite = 0
    for sample in _samples(body, tuple(dcgm.readings)):
        name, labels, value = sample.name, sample.labels, float(sample.value)
        if name in dcgm.readings and not math.isfinite(value):
            not_finite += 1
        elif (health := read_sample(name, labels, value, dcgm)) is not None:
            samples.append(health)
    return PollResult(samples, f"{not_finite} values that are no number" if not_finite else None)


def _samples(body: bytes, names: tuple[str, ...]) -> Iterator[Sample]:
    """Yield the samples of some metrics.

    Raises SourceError.
    """
    text = body.decode("utf-8", "replace")
    lines = "".join(f"{line}\n" for line in text.split("\n") if line.startswith(names))  # a tenth of all, if so much
    try:
        for family in text_string_to_metric_families(lines):
            yield from family.samples
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise SourceError(f"no metrics in Prometheus' text format: {str(error)[:200]}") from error


def _summary(problems: list[str]) -> str | None:
    """Return the first problem and the number of others."""
    if not problems:
        return None
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{problems[0]}{more}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
