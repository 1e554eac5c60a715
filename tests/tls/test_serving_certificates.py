# SPDX-License-Identifier: Apache-2.0
"""Serving certificates: issued where none is valid, reused while young, never replaced by a bad pair."""

import datetime as dt
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from app.tls.authority import CA_LIFE, LEAF_LIFE, make_authority
from app.tls.serving_certificates import NAMES, Certificates, KeyPairFiles, issue_if_needed, load_serving
from app.values.errors import CertificateError

NOW = dt.datetime(2026, 11, 21, 12, 0, tzinfo=dt.UTC)
FILES = ("ca.crt", "ca.key", "tls.crt", "tls.key")


def contents(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in FILES]


def test_first_start_makes_a_ca_and_a_leaf_with_private_keys(tmp_path: Path) -> None:
    """P50."""
    issue_if_needed(tmp_path, NOW)

    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ca.key", "tls.key")]
    leaf = x509.load_pem_x509_certificate((tmp_path / "tls.crt").read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert modes == [0o600, 0o600]
    assert {str(name.value) for name in names} == set(NAMES)
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

    assert Certificates(issue_if_needed(tmp_path, NOW), NOW).in_date(NOW)


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

    assert certificates.renew(later)
    assert certificates.in_date(NOW + dt.timedelta(days=11))
    assert not certificates.renew(later)


def test_chain_that_is_none_and_a_leaf_without_names_are_refused(tmp_path: Path) -> None:
    """TLS-05: OpenSSL accepts both without an error."""
    pair = issue_if_needed(tmp_path, NOW)
    leaf = pair.certificate.read_bytes()
    pair.certificate.write_bytes(leaf + make_authority(NOW).certificate)

    with pytest.raises(CertificateError, match="a chain wants each certificate signed by the next"):
        load_serving(pair, NOW)
    pair.certificate.write_bytes(leaf + (tmp_path / "ca.crt").read_bytes())
    assert load_serving(pair, NOW).expires == NOW + LEAF_LIFE
    nameless(pair)
    with pytest.raises(CertificateError, match="no subjectAltName"):
        load_serving(pair, NOW)


def nameless(pair: KeyPairFiles) -> None:
    """Replace a pair by a self-signed certificate without names."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpu-usher")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - dt.timedelta(hours=1))
        .not_valid_after(NOW + dt.timedelta(days=30))
        .sign(key, hashes.SHA256())
    )
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pair.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, plain))


def test_end_of_the_ca_is_known_where_it_stands_beside(tmp_path: Path) -> None:
    """TLS-09."""
    pair = issue_if_needed(tmp_path, NOW)

    assert load_serving(pair, NOW).authority_expires == NOW + CA_LIFE
    assert load_serving(KeyPairFiles(pair.certificate, pair.key), NOW).authority_expires is None


def test_ca_stays_while_its_leaves_are_renewed(tmp_path: Path) -> None:
    """TLS-10: kube-scheduler reads the CA once, so that a new one with each leaf would lock it out."""
    issue_if_needed(tmp_path, NOW)
    ca = (tmp_path / "ca.crt").read_bytes()

    for day in range(5, 240, 5):
        issue_if_needed(tmp_path, NOW + dt.timedelta(days=day))

    assert ca == (tmp_path / "ca.crt").read_bytes()
    assert load_serving(issue_if_needed(tmp_path, NOW + dt.timedelta(days=240)), NOW + dt.timedelta(days=240))


def test_key_that_was_lost_leaves_the_published_ca_trusted(tmp_path: Path) -> None:
    issue_if_needed(tmp_path, NOW)
    ca, leaf = (tmp_path / "ca.crt").read_bytes(), (tmp_path / "tls.crt").read_bytes()
    (tmp_path / "ca.key").unlink()

    issue_if_needed(tmp_path, NOW)

    assert (tmp_path / "ca.crt").read_bytes().endswith(ca)
    assert leaf == (tmp_path / "tls.crt").read_bytes()


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
        Certificates(KeyPairFiles(tmp_path / "tls.crt", tmp_path / "tls.key"), NOW)
