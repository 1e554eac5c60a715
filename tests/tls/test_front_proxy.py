# SPDX-License-Identifier: Apache-2.0
"""Who the front proxy of kube-apiserver is: read from its ConfigMap, and followed when its CA changes."""

import datetime as dt
from pathlib import Path

import msgspec
import pytest

from app.kube.objects import ConfigMap
from app.tls.front_proxy import NAME, FrontProxyTrust, read_front_proxy
from app.tls.serving_certificates import Certificates, issue_if_needed
from app.values.errors import BadInput
from tests.authorities import make_authority

NOW = dt.datetime.now(dt.UTC)


def config_map(**data: str) -> ConfigMap:
    named = {f"requestheader-{key.replace('_', '-')}": value for key, value in data.items()}
    return msgspec.convert({"metadata": {"name": NAME, "uid": "1"}, "data": named}, ConfigMap)


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
    "found",
    [
        config_map(),
        config_map(client_ca_file="PEM", allowed_names="front-proxy-client"),
        config_map(client_ca_file="PEM", allowed_names='{"a": 1}'),
    ],
)
def test_config_map_that_says_nothing_is_refused(found: ConfigMap) -> None:
    """F104: also where the control plane has no aggregation layer."""
    with pytest.raises(BadInput, match="extension-apiserver-authentication"):
        read_front_proxy(found)


def test_what_was_read_last_stays_and_a_new_ca_counts(tmp_path: Path) -> None:
    """F104: a ConfigMap that is gone, or a CA that is none, changes nothing; a new CA needs no restart."""
    trust = FrontProxyTrust(Certificates(issue_if_needed(tmp_path, NOW), NOW), lambda: NOW)
    watched = trust.watched()
    contexts = [trust.current]

    for authority in (make_authority("one").pem, "no PEM", make_authority("two").pem):
        watched.put(NAME, "1", read_front_proxy(config_map(client_ca_file=authority)))
        contexts.append(trust.current)
    watched.drop(NAME, "1")
    contexts.append(trust.current)

    assert [contexts.index(context) for context in contexts] == [0, 1, 1, 3, 3]
    assert trust.problem_of("front-proxy-client", None).startswith("no client certificate")


def test_renewed_serving_certificate_counts(tmp_path: Path) -> None:
    certificates, later = Certificates(issue_if_needed(tmp_path, NOW), NOW), NOW + dt.timedelta(days=5)
    trust = FrontProxyTrust(certificates, lambda: later if certificates.serving.starts > NOW else NOW)
    trust.take(read_front_proxy(config_map(client_ca_file=make_authority("one").pem)))
    before = trust.current
    issue_if_needed(tmp_path, later)
    certificates.renew(later)

    trust.renew_context()

    assert trust.current is not before
