# SPDX-License-Identifier: Apache-2.0
"""Reads DCGM's metrics from a Prometheus, with one instant query for all of them."""

import asyncio
import math
from collections.abc import Mapping
from pathlib import Path

import msgspec

from app.cluster.scrape import PollResult, ScrapeClient, read_url
from app.knowledge.dcgm import DCGM
from app.nodes.gpu_health import MetricSample, read_sample
from app.values.errors import SourceError

FRESH_SECONDS = 120
"""Older samples are not read. An instant query itself looks back five minutes for a series that was not marked as ended
(pushed metrics); exporters are scraped every 15 to 60 s."""
QUERY_SECONDS = 20.0
"""Less than the time between two polls; Prometheus' own limit for a query is two minutes."""
ANSWER_BYTES = 32 << 20
"""140,000 series of some 230 bytes: the two metrics enabled by default, of 5,000 nodes with 14 GPUs."""

SILENCE = "max by (registry) (gpu_usher_registry_silence_seconds) > 0"


class SeriesValue(msgspec.Struct):
    """One series of an instant query: labels, and the pair of time and value."""

    metric: dict[str, str]
    value: tuple[float, str]


class QueryData(msgspec.Struct):
    """The result of a query, of any type."""

    resultType: str  # noqa: N815  # Prometheus' spelling
    result: list[msgspec.Raw]


class QueryAnswer(msgspec.Struct):
    """The answer of /api/v1/query. `warnings` tells, for example, that some stores behind Prometheus did not answer."""

    status: str
    data: QueryData
    warnings: list[str] = []


class PrometheusClient(ScrapeClient):
    """The API of a Prometheus, or of a server like it. `token_file` is read each time: projected tokens are renewed."""

    def __init__(self, url: str, token_file: Path | None) -> None:
        super().__init__()
        self.origin = read_url(url, "--prometheus").geturl().rstrip("/")
        self._token_file = token_file

    async def ask(self, path: str, params: Mapping[str, str], limit_bytes: int, seconds: float) -> bytes:
        """Run one query.

        Raises SourceError.
        """
        headers = await asyncio.to_thread(read_credentials, self._token_file)
        return await self.get(self.origin + path, limit_bytes, seconds, params, headers)


class Prometheus:
    """A Prometheus as a source of samples."""

    def __init__(
        self, url: str, dcgm: DCGM, token_file: Path | None = None, fresh_seconds: int = FRESH_SECONDS
    ) -> None:
        self._client = PrometheusClient(url, token_file)
        self.origin, self.close = self._client.origin, self._client.close
        self._query = query(dcgm, fresh_seconds)
        self._dcgm = dcgm

    async def poll(self) -> PollResult:
        """Run the query once.

        Raises SourceError.
        """
        body = await self._client.ask("/api/v1/query", {"query": self._query}, ANSWER_BYTES, QUERY_SECONDS)
        return await asyncio.to_thread(read_answer, body, self._dcgm)


def read_credentials(token_file: Path | None) -> dict[str, str]:
    """Read the bearer token for a Prometheus, as the headers of a request; none without a file.

    Raises SourceError.
    """
    if token_file is None:
        return {}
    try:
        token = token_file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{token_file}: {error}") from error
    if not token.isprintable():
        raise SourceError(f"{token_file}: wants one line with a token")
    return {"Authorization": f"Bearer {token}"}


def query(dcgm: DCGM, fresh_seconds: int) -> str:
    """Build the query for series that exist now and had a sample lately, with only the labels that are read.

    `last_over_time` alone would still show ended series, the series alone those that were not marked as ended. `and`
    ignores the metric's name unless `on` lists it; with it each metric is matched with itself.
    """
    series = '{__name__=~"' + "|".join(dcgm.readings) + '"}'
    labels = ", ".join(("__name__", *dcgm.labels))
    return f"max by ({labels}) ({series} and on ({labels}) last_over_time({series}[{fresh_seconds}s]))"


def read_result(body: bytes, kind: str) -> QueryAnswer:
    """Read the answer to a query whose result is of a type such as vector.

    Raises SourceError if it is not one.
    """
    try:
        answer = msgspec.json.decode(body, type=QueryAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"no answer of a Prometheus: {str(error)[:200]}") from error
    if answer.status != "success" or answer.data.resultType != kind:
        raise SourceError(f"got {answer.status[:40]}, {answer.data.resultType[:40]}, wants success, {kind}")
    return answer


def read_answer(body: bytes, dcgm: DCGM) -> PollResult:
    """Read the answer to the instant query.

    Raises SourceError if it is not one.
    """
    answer = read_result(body, "vector")
    samples: list[MetricSample] = []
    not_finite = 0
    for row in rows(answer):
        value = number(row.value[1])
        if value is None:
            not_finite += 1
            continue
        sample = read_sample(row.metric.get("__name__", ""), row.metric, value, dcgm)
        if sample is not None:
            samples.append(sample)
    problems = [
        *(f"{not_finite} values that are not numbers" for _ in range(bool(not_finite))),
        *(warning[:200] for warning in answer.warnings[:1]),
    ]
    return PollResult(samples, "; ".join(problems) or None)


def rows(answer: QueryAnswer) -> list[SeriesValue]:
    """Read the series of the answer to an instant query.

    Raises SourceError.
    """
    try:
        return [_VECTOR.decode(raw) for raw in answer.data.result]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"no answer of a Prometheus: {str(error)[:200]}") from error


async def silent_registries(url: str) -> dict[str, float]:
    """Return for how many seconds registries of images have not answered our replicas, of those that do not answer.

    Raises SourceError.
    """
    client = PrometheusClient(url, None)
    try:
        body = await client.ask("/api/v1/query", {"query": SILENCE}, ANSWER_BYTES, QUERY_SECONDS)
    finally:
        await client.close()
    silence = ((row.metric.get("registry", ""), number(row.value[1])) for row in rows(read_result(body, "vector")))
    return {registry: seconds for registry, seconds in silence if seconds}


def number(text: str) -> float | None:
    """Read a value; None for NaN, infinity and what is no number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


_VECTOR = msgspec.json.Decoder(SeriesValue)
