"""A certificate authority of the rig's own, and what it signs: good certificates and bad ones.

    authority = Authority(workdir)
    good = authority.issue()                                 # dns.rig, 127.0.0.1 and ::1
    old = authority.issue(expired=True)
    elsewhere = authority.issue(hosts=["other.rig"])
    stranger = Authority(workdir, "another").issue()         # signed by somebody unknown

Programs read certificates from files, so everything is written to `workdir` as PEM. Names and
addresses alike go into the subject's alternative names; the common name says nothing.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HOST = "dns.rig"
"""The name in the certificates that are issued without another."""

_DEFAULT_HOSTS = (HOST, "127.0.0.1", "::1")
_DAY = timedelta(days=1)
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Certificate:
    """A server's certificate and its key, as files that any program reads."""

    chain: Path
    key: Path

    def context(self, *alpn: str) -> ssl.SSLContext:
        """A server's TLS settings for sockets of this process, offering `alpn`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.chain, self.key)
        if alpn:
            context.set_alpn_protocols(list(alpn))
        return context


class Authority:
    """Signs certificates; `file` is what a client must trust."""

    def __init__(self, workdir: Path, name: str = "rig") -> None:
        self._workdir = workdir
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} authority")])
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        self._identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self._certificate = (
            _builder(self._subject, self._key, -_DAY, 30 * _DAY)
            .issuer_name(self._subject)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(self._identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.file = self._write("authority", _pem(self._certificate))

    def issue(self, hosts: Sequence[str] = _DEFAULT_HOSTS, *, expired: bool = False) -> Certificate:
        """A certificate for `hosts`, names or addresses; it ran out yesterday if `expired`."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a server of the rig")])
        begins, ends = (-10 * _DAY, -_DAY) if expired else (-_DAY, 10 * _DAY)
        certificate = (
            _builder(subject, key, begins, ends)
            .issuer_name(self._subject)
            .add_extension(x509.SubjectAlternativeName(list(map(_name_of, hosts))), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        key_pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return Certificate(
            self._write("chain", _pem(certificate) + _pem(self._certificate)),
            self._write("key", key_pem),
        )

    def _write(self, what: str, pem: bytes) -> Path:
        path = self._workdir / f"{self._name}-{what}-{next(_numbers)}.pem"
        path.write_bytes(pem)
        os.chmod(path, 0o644)  # a server that gives up root reads it too
        return path


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, begins: timedelta, ends: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
    )


def _name_of(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
