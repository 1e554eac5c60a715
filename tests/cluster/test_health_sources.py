# SPDX-License-Identifier: Apache-2.0
"""The readers of GPU health sources: values that are no numbers, arbitrary bytes, URLs and flags."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cluster.exporters import Exporters, read_exposition
from app.cluster.gpu_health_polling import find_source
from app.cluster.prometheus import Prometheus, read_answer
from app.nodes.gpu_health import MetricSample
from app.settings import Settings
from app.values.errors import BadInput, SourceError
from tests.builders import knowledge
from tests.cluster.test_gpu_health_polling import XID, vector, xid_series

DCGM = knowledge().dcgm


def test_values_that_are_no_number_are_a_problem_and_the_others_count() -> None:
    """F72."""
    series = [xid_series(value, UUID=str(index)) for index, value in enumerate(["NaN", "+Inf", "-Inf", "x", "", "79"])]

    polled = read_answer(vector(*series), DCGM)

    assert polled.samples == [MetricSample(XID, "a", "5", "", 79.0)]
    assert polled.problem == "5 values that are not numbers"


def test_warning_of_a_prometheus_is_a_problem_and_its_series_count() -> None:
    """F72: a store behind it may not have answered."""
    polled = read_answer(vector(xid_series("0"), warnings=["store down", "another"]), DCGM)

    assert (len(polled.samples), polled.problem) == (1, "store down")


@pytest.mark.parametrize(
    "url", ["", "prometheus:9090", "ftp://x", "http://", "http://x:y", "http://[", "http://x?q=1", "http://u:secret@x"]
)
def test_url_that_is_none_is_bad_input_that_says_no_password(url: str) -> None:
    """F72."""
    for read in (lambda: Prometheus(url, DCGM), lambda: Exporters([url], DCGM)):
        with pytest.raises(BadInput) as raised:
            read()
        assert "secret" not in str(raised.value)


def test_one_source_at_most_is_taken_and_a_token_needs_a_prometheus() -> None:
    """F72: both flags at once are bad input; without a flag there is no source."""
    assert find_source(Settings(), DCGM) is None
    with pytest.raises(BadInput, match="wants one of them"):
        find_source(Settings(prometheus="http://p", dcgm_exporters=("http://e",)), DCGM)
    with pytest.raises(BadInput, match="token"):
        find_source(Settings(prometheus_token_file=Path("t")), DCGM)


@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)), st.booleans())
def test_any_bytes_are_metrics_or_a_failure(tail: bytes, ours: bool) -> None:
    """F72: they are never a crash."""
    body = (XID.encode() + b'{Hostname="a",' if ours else b"") + tail
    for read in (read_exposition, read_answer):
        with contextlib.suppress(SourceError):
            read(body, DCGM)


LABEL = st.text('abXY_\\"{}=, \n}79#\t', max_size=6)


@given(st.lists(st.tuples(LABEL, LABEL, LABEL), max_size=4))
def test_any_line_of_a_metric_that_is_read_is_a_sample_or_a_failure(parts: list[tuple[str, str, str]]) -> None:
    """F72: it is never a crash."""
    lines = "".join(f'{XID}{{{name}="{value}"}} {end}\n' for name, value, end in parts)
    with contextlib.suppress(SourceError):
        read_exposition(lines.encode(), DCGM)
