# SPDX-License-Identifier: Apache-2.0
"""Who the front proxy of kube-apiserver is: read from its ConfigMap, and followed when its CA changes."""

import asyncio
import datetime as dt
import json
from pathlib import Path

import pytest

from app.tls.front_proxy import FrontProxyTrust, read_front_proxy
from app.tls.serving_certificates import Certificates, issue_if_needed
from app.values.errors import ApiError, BadInput
from tests.authorities import make_authority

NOW = dt.datetime.now(dt.UTC)


def config_map(**data: str) -> bytes:
    return json.dumps(
        {"kind": "ConfigMap", "data": {f"requestheader-{k.replace('_', '-')}": v for k, v in data.items()}}
    ).encode()


def test_names_and_headers_are_read_as_kube_apiserver_writes_them() -> None:
    """F104."""
    proxy = read_front_proxy(
        config_map(client_ca_file="PEM", allowed_names='["front-proxy-client"]', username_headers='["X-Remote-User"]')
    )

    assert (proxy.authority, proxy.names, proxy.user_headers) == (
        "PEM",
        frozenset({"front-proxy-client"}),
        ("x-remote-user",),
    )


@pytest.mark.parametrize(
    "body",
    [
        config_map(),
        config_map(client_ca_file="PEM", allowed_names="front-proxy-client"),
        config_map(client_ca_file="PEM", allowed_names='{"a": 1}'),
        b"[]",
        b"\xff",
        b'{"data": {"requestheader-client-ca-file": 1}}',
    ],
)
def test_config_map_that_says_nothing_is_refused(body: bytes) -> None:
    """F104: also where the control plane has no aggregation layer."""
    with pytest.raises(BadInput, match="extension-apiserver-authentication"):
        read_front_proxy(body)


def test_what_was_read_last_stays_and_a_new_ca_counts(tmp_path: Path) -> None:
    """F104: a ConfigMap that cannot be read, or a CA that is none, changes nothing; a new CA needs no restart."""
    certificates = Certificates(issue_if_needed(tmp_path, NOW), NOW)
    answers: list[bytes | ApiError] = [
        ApiError(403, "no"),
        config_map(client_ca_file=make_authority("one").pem),
        ApiError(None, "away"),
        config_map(client_ca_file="no PEM"),
        config_map(client_ca_file=make_authority("two").pem),
    ]

    async def read() -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    trust = FrontProxyTrust(certificates, read, lambda: NOW)
    contexts = []

    async def go() -> None:
        for _ in range(5):
            await trust.refresh()
            trust.renew_context()
            contexts.append(trust.current)

    asyncio.run(go())

    assert [contexts.index(context) for context in contexts] == [0, 1, 1, 1, 4]
    assert trust.problem_of("front-proxy-client", None).startswith("no client certificate")
