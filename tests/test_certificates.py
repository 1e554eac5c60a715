# SPDX-License-Identifier: Apache-2.0
"""Certificates: made where none is valid, reused while young, never replaced by a bad pair."""

import datetime as dt
import stat
from pathlib import Path

import pytest
from cryptography import x509

from app.certificates import NAMES, Certificates, Pair, issue_if_needed
from app.errors import CertificateError

NOW = dt.datetime(2026, 11, 21, 12, 0, tzinfo=dt.UTC)
FILES = ("ca.crt", "ca.key", "tls.crt", "tls.key")


def contents(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in FILES]


def test_first_start_makes_a_ca_and_a_leaf_with_private_keys(tmp_path: Path) -> None:
    issue_if_needed(tmp_path, NOW)

    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ca.key", "tls.key")]
    leaf = x509.load_pem_x509_certificate((tmp_path / "tls.crt").read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert modes == [0o600, 0o600]
    assert {str(each.value) for each in names} == set(NAMES)
    assert leaf.not_valid_before_utc <= NOW - dt.timedelta(minutes=59)


@pytest.mark.parametrize(("days", "same"), [(0, True), (1, True), (4, True), (5, False), (8, False), (400, False)])
def test_pair_is_reused_until_two_thirds_of_its_life(tmp_path: Path, days: int, same: bool) -> None:
    """F102, TLS-02."""
    issue_if_needed(tmp_path, NOW)
    before = contents(tmp_path)

    issue_if_needed(tmp_path, NOW + dt.timedelta(days=days))

    assert same is (before == contents(tmp_path))


@pytest.mark.parametrize("damage", ["", "not PEM", "missing"])
@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key"])
def test_damaged_file_is_replaced(tmp_path: Path, name: str, damage: str) -> None:
    issue_if_needed(tmp_path, NOW)
    if damage == "missing":
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(damage, "utf-8")

    pair = issue_if_needed(tmp_path, NOW)

    assert Certificates(pair, NOW).in_date(NOW)


def test_other_names_make_another_certificate(tmp_path: Path) -> None:
    issue_if_needed(tmp_path, NOW)
    before = contents(tmp_path)

    issue_if_needed(tmp_path, NOW + dt.timedelta(seconds=60), ("localhost", "usher.example"))

    assert before != contents(tmp_path)


def test_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")

    with pytest.raises(CertificateError, match="wants a directory that can be written"):
        issue_if_needed(tmp_path / "file", NOW)


def test_renewed_files_come_into_service(tmp_path: Path) -> None:
    """F101."""
    certificates = Certificates(issue_if_needed(tmp_path, NOW), NOW)
    later = NOW + dt.timedelta(days=5)
    issue_if_needed(tmp_path, later)

    renewed = certificates.renew(later)

    assert renewed
    assert certificates.in_date(NOW + dt.timedelta(days=11))
    assert not certificates.renew(later)


@pytest.mark.parametrize("damage", ["another key", "truncated", "empty", "expired"])
def test_bad_pair_never_replaces_a_good_one(tmp_path: Path, damage: str) -> None:
    """TLS-05."""
    certificates = Certificates(issue_if_needed(tmp_path / "a", NOW), NOW)
    good = certificates.serving
    issue_if_needed(tmp_path / "b", NOW - dt.timedelta(days=300 if damage == "expired" else 0))
    if damage == "expired":
        for name in ("tls.crt", "tls.key"):
            (tmp_path / "a" / name).write_bytes((tmp_path / "b" / name).read_bytes())
    else:
        key = (tmp_path / "b" / "tls.key").read_bytes()
        (tmp_path / "a" / "tls.key").write_bytes({"another key": key, "truncated": key[:50], "empty": b""}[damage])

    with pytest.raises(CertificateError):
        certificates.renew(NOW)

    assert good is certificates.serving


def test_missing_pair_is_no_start(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"tls\.crt"):
        Certificates(Pair(tmp_path / "tls.crt", tmp_path / "tls.key"), NOW)
