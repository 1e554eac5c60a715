# SPDX-License-Identifier: Apache-2.0
"""DCGM's metrics from the exporters themselves: every address of a name, so that a headless Service gives all."""

import asyncio
import math
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from app.cluster.scrape import PollResult, ScrapeClient, read_url
from app.knowledge.dcgm import DCGM
from app.nodes.gpu_health import MetricSample, read_sample
from app.values.errors import SourceError

PORT = 9400
"""dcgm-exporter's own."""
TOGETHER = 32
"""Scrapes at a time; an answer of eight GPUs takes an exporter some 10 ms."""
SCRAPE_SECONDS = 5.0
ROUND_SECONDS = 20.0
"""Bound on all of them; less than the time between two polls. Who did not answer by then is missing in this one."""
ANSWER_BYTES = 8 << 20
"""An exporter with 16 GPUs and every counter on says 1 MB."""


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """One address to scrape. `host`: the name that it was found by, for the Host header and the certificate."""

    scheme: str
    host: str
    address: str
    port: int
    path: str

    @property
    def url(self) -> str:
        """Write the URL of the address."""
        return f"{self.scheme}://{_bracketed(self.address)}:{self.port}{self.path}"


class Exporters:
    """Exporters by URL; a name is resolved at every poll. The path is /metrics unless the URL has one."""

    def __init__(self, urls: Iterable[str], dcgm: DCGM) -> None:
        self._urls = [read_url(url, "--dcgm-exporters") for url in urls]
        self.origin = ", ".join(url.geturl() for url in self._urls)
        self._dcgm = dcgm
        self._web = ScrapeClient()

    async def poll(self) -> PollResult:
        """Scrape every exporter once; those that fail are the problem, not a failure, as long as one answers.

        Raises SourceError.
        """
        targets, problems = await self._targets()
        turns = asyncio.Semaphore(TOGETHER)
        scrapes = {
            asyncio.create_task(self._scrape(each, turns)): each for each in sorted(targets, key=lambda t: t.url)
        }
        try:
            if scrapes:
                await asyncio.wait(scrapes, timeout=ROUND_SECONDS)
        finally:
            for task in scrapes:
                task.cancel()
            ended = await asyncio.gather(*scrapes, return_exceptions=True)
        samples: list[MetricSample] = []
        for target, found in zip(scrapes.values(), ended, strict=True):
            if isinstance(found, PollResult):
                samples += found.samples
                problems += [f"{target.url}: {found.problem}"] if found.problem else []
            elif isinstance(found, SourceError | asyncio.CancelledError):
                problems.append(f"{target.url}: {found or 'no answer in time'}")
            else:
                raise found
        if not any(isinstance(found, PollResult) for found in ended):
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
                    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:  # TimeoutError is an OSError
                problems.append(f"{host}: {str(error) or 'no answer in time'}")
                continue
            path = url.path if url.path.strip("/") else "/metrics"
            targets |= {ScrapeTarget(url.scheme, host, str(each[4][0]), port, path) for each in found}
        return targets, problems

    async def _scrape(self, target: ScrapeTarget, turns: asyncio.Semaphore) -> PollResult:
        async with turns:
            headers = {"Host": f"{_bracketed(target.host)}:{target.port}"}
            name = target.host if target.scheme == "https" else None
            body = await self._web.get(target.url, ANSWER_BYTES, SCRAPE_SECONDS, headers=headers, server_name=name)
            return await asyncio.to_thread(read_exposition, body, self._dcgm)

    async def close(self) -> None:
        """Close the connections."""
        await self._web.close()


def read_exposition(body: bytes, dcgm: DCGM) -> PollResult:
    """Read what an exporter says, in Prometheus' text format.

    Raises SourceError for what is none.
    """
    wanted = tuple(dcgm.readings)
    text = body.decode("utf-8", "replace")
    lines = "".join(f"{line}\n" for line in text.split("\n") if line.startswith(wanted))  # a tenth of all, if so much
    samples: list[MetricSample] = []
    odd = 0
    try:
        for family in text_string_to_metric_families(lines):
            for name, labels, value, *_ in family.samples:
                found = read_sample(name, labels, float(value), dcgm)
                if not math.isfinite(value):
                    odd += 1
                elif found is not None:
                    samples.append(found)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise SourceError(f"no metrics in Prometheus' text format: {str(error)[:200]}") from error
    return PollResult(samples, f"{odd} values that are no number" if odd else None)


def _summary(problems: list[str]) -> str | None:
    """Say the first problem, and how many there are."""
    if not problems:
        return None
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{problems[0]}{more}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
