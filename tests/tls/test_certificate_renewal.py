# SPDX-License-Identifier: Apache-2.0
"""The renewal of the served certificate, with a clock of its own and a mounted Secret as a kubelet makes one."""

import datetime as dt
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from app.server.service import CertificateRenewal, Service
from app.telemetry.logs import LOGGER
from app.tls.authority import KeyPair, issue_leaf, make_authority
from app.tls.serving_certificates import NAMES, Certificates, KeyPairFiles
from tests.builders import make_service

NOW = dt.datetime.now(dt.UTC)
FIVE = dt.timedelta(seconds=5)


class Mounted:
    """A Secret's folder: the files are links into `..data`, which is swapped as a whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._versions = 0
        self.authority = make_authority(NOW)
        self.write(issue_leaf(self.authority, NAMES, NOW))
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (folder / name).symlink_to(f"..data/{name}")
        self.pair = KeyPairFiles(folder / "tls.crt", folder / "tls.key", folder / "ca.crt")

    def write(self, leaf: KeyPair) -> None:
        self._versions += 1
        target = self.folder / f"..{self._versions}"
        target.mkdir(parents=True)
        files = {"tls.crt": leaf.certificate, "tls.key": leaf.key, "ca.crt": self.authority.certificate}
        for name, content in files.items():
            (target / name).write_bytes(content)
        (self.folder / "..new").symlink_to(target.name)
        (self.folder / "..new").rename(self.folder / "..data")


def served(tmp_path: Path) -> tuple[Service, Mounted]:
    built = make_service(tmp_path / "unused")
    mounted = Mounted(tmp_path / "mount")
    settings = replace(built.settings, cert=mounted.pair.certificate, key=mounted.pair.key)
    return Service(settings, Certificates(mounted.pair, NOW), built.state, built.book), mounted


def reloads(service: Service, result: str) -> float:
    return service.metrics.registry.get_sample_value("gpu_usher_cert_reload_total", {"result": result}) or 0.0


def gauge(service: Service, name: str) -> float | None:
    return service.metrics.registry.get_sample_value(f"gpu_usher_{name}_expiry_timestamp_seconds")


def test_swapped_mount_is_taken_at_the_next_turn(tmp_path: Path) -> None:
    """TLS-05, TLS-09."""
    service, mounted = served(tmp_path)
    renewal = CertificateRenewal(service)
    renewal.check(NOW)
    later = NOW + dt.timedelta(days=5)
    mounted.write(issue_leaf(mounted.authority, NAMES, later))

    renewal.check(later)
    renewal.check(later + FIVE)

    assert (reloads(service, "success"), reloads(service, "error")) == (1, 0)
    assert gauge(service, "serving_certificate") == (later + dt.timedelta(days=7)).replace(microsecond=0).timestamp()
    assert gauge(service, "ca") == (NOW + dt.timedelta(days=365)).replace(microsecond=0).timestamp()


def test_mismatched_pair_is_tried_every_turn_said_every_minute_and_mended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault 43: the old pair stays in service meanwhile."""
    service, mounted = served(tmp_path)
    renewal, good = CertificateRenewal(service), service.certificates.serving
    one, other = (issue_leaf(mounted.authority, NAMES, NOW) for _ in range(2))
    mounted.write(KeyPair(one.certificate, other.key))

    with caplog.at_level(logging.ERROR, LOGGER.name):
        for turn in range(24):
            renewal.check(NOW + turn * FIVE)
    assert service.certificates.serving is good
    assert (reloads(service, "success"), reloads(service, "error")) == (0, 24)
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 2
    mounted.write(one)
    renewal.check(NOW + 24 * FIVE)

    assert reloads(service, "success") == 1


def test_expired_certificate_is_said_every_minute_and_fails_readiness_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P44, fault 42, TLS-09: it is still served, as a client may accept it."""
    service, _ = served(tmp_path)
    renewal, good = CertificateRenewal(service), service.certificates.serving
    ended = NOW + dt.timedelta(days=7)

    with caplog.at_level(logging.ERROR, LOGGER.name):
        for turn in range(13):
            renewal.check(ended + turn * FIVE)

    assert not service.certificates.in_date(ended)
    assert service.certificates.serving is good
    assert sum("has expired" in record.message for record in caplog.records) == 2


def test_machine_that_slept_over_the_renewal_is_mended_at_the_next_turn(tmp_path: Path) -> None:
    """Fault 47, TLS-03: the wall clock decides, not the time during which the machine was awake."""
    service = make_service(tmp_path)
    renewal = CertificateRenewal(service)
    renewal.check(NOW)
    awake = NOW + dt.timedelta(days=30)

    renewal.check(awake)

    assert service.certificates.in_date(awake)
    assert reloads(service, "success") == 1
