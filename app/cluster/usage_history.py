# SPDX-License-Identifier: Apache-2.0
"""Reads from a Prometheus how the GPUs that pods hold were used, with range queries of limited size."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from app.cluster.prometheus import QueryAnswer, SeriesValue, read_credentials
from app.cluster.scrape import ScrapeClient, read_url
from app.knowledge.dcgm import DCGM, UsageMetrics
from app.usage.history import MINUTE, History
from app.usage.queries import HALF_MINUTE, RangeQuery, count_query, range_queries, spans, window_seconds
from app.usage.reading import HistoryBuilder
from app.values.errors import SourceError

ANSWER_SECONDS = 120.0
"""Seconds for one query, which is Prometheus' own limit."""
ANSWER_BYTES = 64 << 20
"""Bytes of one answer: 200,000 points of 25 bytes, and 50,000 series with 600 bytes of labels."""


class SeriesValues(msgspec.Struct):
    """One series of a range query: labels, and pairs of time and value."""

    metric: dict[str, str]
    values: list[tuple[float, str]]


class UsageHistory:
    """A Prometheus, or a server with its API, that has the metrics of DCGM exporters.

    `pace` goes through series and holds, in a thread: `pausing` beside an event loop that answers requests.
    """

    def __init__(
        self,
        url: str,
        dcgm: DCGM,
        usage: UsageMetrics,
        token_file: Path | None = None,
        pace: Callable[[Iterable[Any]], Iterable[Any]] = iter,
    ) -> None:
        self.origin = read_url(url, "--prometheus").geturl().rstrip("/")
        self._dcgm = dcgm
        self._usage = usage
        self._token_file = token_file
        self._pace = pace
        self._client = ScrapeClient()
        self._warnings: dict[str, None] = {}

    async def read(self, end: float, seconds: float, window: int | None = None) -> History:
        """Read the history of the `seconds` before `end`, both rounded to whole windows.

        `window` is their length in seconds; without it, that of `window_seconds` is taken.
        Raises SourceError.
        """
        end = end // MINUTE * MINUTE - HALF_MINUTE
        series = await self._count(end, int(seconds))
        length = window_seconds(seconds, series)
        window = window or length
        start = end - max(1, round(seconds / window)) * window
        builder = HistoryBuilder(self._dcgm, self._usage)
        for query in range_queries(self._dcgm, self._usage, window):
            for first, last in spans(start, end, window, series):
                body = await self._range(query, first, last, window)
                await asyncio.to_thread(self._take, builder, query, body, start, window)
        return await asyncio.to_thread(builder.history, start, end, window, tuple(self._warnings), self._pace)

    async def _count(self, end: float, seconds: int) -> int:
        text = count_query(self._dcgm, self._usage, seconds)
        body = await self._get("/api/v1/query", {"query": text, "time": str(end)})
        counts = [_COUNT.decode(raw) for raw in self._result(body, "vector")]
        return int(float(counts[0].value[1])) if counts else 0

    async def _range(self, query: RangeQuery, first: float, last: float, window: int) -> bytes:
        params = {"query": query.text, "start": str(first), "end": str(last), "step": str(window)}
        return await self._get("/api/v1/query_range", params)

    async def _get(self, path: str, params: dict[str, str]) -> bytes:
        headers = await asyncio.to_thread(read_credentials, self._token_file)
        return await self._client.get(self.origin + path, ANSWER_BYTES, ANSWER_SECONDS, params, headers)

    def _result(self, body: bytes, kind: str) -> list[msgspec.Raw]:
        try:
            answer = msgspec.json.decode(body, type=QueryAnswer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SourceError(f"no answer of a Prometheus: {str(error)[:200]}") from error
        if answer.status != "success" or answer.data.resultType != kind:
            raise SourceError(f"got {answer.status[:40]}, {answer.data.resultType[:40]}, wants success, {kind}")
        self._warnings |= dict.fromkeys(warning[:200] for warning in answer.warnings[:4])
        return answer.data.result

    def _take(self, builder: HistoryBuilder, query: RangeQuery, body: bytes, start: float, window: int) -> None:
        for raw in self._pace(self._result(body, "matrix")):
            try:
                series = _MATRIX.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise SourceError(f"no series of a Prometheus: {str(error)[:200]}") from error
            builder.add(query, series.metric, _points(series.values, start, window))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def _points(values: list[tuple[float, str]], start: float, window: int) -> Iterator[tuple[int, float]]:
    """Yield the index of the window and the value of each point; what is no number is passed over."""
    for time, text in values:
        try:
            yield round((time - start) / window) - 1, float(text)
        except (ValueError, OverflowError):
            continue


_COUNT: Any = msgspec.json.Decoder(SeriesValue)
_MATRIX: Any = msgspec.json.Decoder(SeriesValues)
