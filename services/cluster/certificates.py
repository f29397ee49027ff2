"""The cluster's own certificate authority, and the encryption of launch configurations for one node.

Ray's messages are plain text unless Ray itself is configured for TLS, so neither keys nor settings travel in them: a
node makes its key and sends a request for a certificate, and settings are encrypted with that key. The authority exists
only in the driver's memory and is replaced every day, so a certificate is worth nothing later. Each link has two
certificates of its own, valid for ten minutes, with names that no other link has.

Sources: RFC 5280 (certificates), RFC 5869 (HKDF), NIST SP 800-56A (ephemeral Diffie-Hellman), NIST SP 800-38D (GCM).
"""

from __future__ import annotations

import datetime
import os
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LASTS = datetime.timedelta(days=2)
ROTATED_AFTER = datetime.timedelta(days=1)
"""The old authority is still valid for joins that are under way when it is replaced."""

JOIN_LASTS = datetime.timedelta(minutes=10)
"""Only the handshake checks validity, and it follows within seconds."""

SKEW = datetime.timedelta(minutes=5)
"""How far the clocks of two machines may differ."""

KERNEL_PREFIX = "kernel."
"""The name in the certificate of the kernel's end of a link: this, and the name of the other end."""

_CURVE = ec.SECP256R1()
_NONCE_BYTES = 12
_PURPOSE = b"linckia launch configuration"


class Bundle(NamedTuple):
    """A certificate, its key, and the authority that signed it, in PEM."""

    certificate: str
    key: str
    authority: str


class Authority:
    """Signs the certificates of links. `now` is the current time in UTC."""

    def __init__(self, now: datetime.datetime) -> None:
        self._key = ec.generate_private_key(_CURVE)
        self.issued_at = now
        self._name = _name(f"Linckia cluster authority {os.urandom(8).hex()}")
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        certificate = (
            self._builder(self._name, self._key.public_key(), now, AUTHORITY_LASTS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = _pem(certificate)

    def is_due(self, now: datetime.datetime) -> bool:
        """Return whether it should be replaced."""
        return now - self.issued_at >= ROTATED_AFTER

    def for_kernel(self, name: str, now: datetime.datetime) -> Bundle:
        """Return the kernel's bundle for the link of `name`; its certificate is for `kernel_name(name)`."""
        key = ec.generate_private_key(_CURVE)
        certificate = self._sign(kernel_name(name), key.public_key(), now, ExtendedKeyUsageOID.SERVER_AUTH)
        return Bundle(certificate, private_pem(key), self.pem)

    def for_node(self, request: str, name: str, now: datetime.datetime) -> str:
        """Return a certificate for the key of a request. The name is the driver's choice, whatever the request says.

        Raises ValueError: the request is malformed, or not signed by its own key.
        """
        asked = x509.load_pem_x509_csr(request.encode())
        if not asked.is_signature_valid:
            raise ValueError("the request for a certificate is not signed by its key")
        return self._sign(name, public_key(request), now, ExtendedKeyUsageOID.CLIENT_AUTH)

    def _sign(
        self, name: str, key: ec.EllipticCurvePublicKey, now: datetime.datetime, usage: x509.ObjectIdentifier
    ) -> str:
        certificate = (
            self._builder(_name(name), key, now, JOIN_LASTS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return _pem(certificate)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime.datetime, lasts: datetime.timedelta
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - SKEW)
            .not_valid_after(now + lasts)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )


def kernel_name(name: str) -> str:
    """Return the name in the certificate of the kernel's end of the link of `name`."""
    return KERNEL_PREFIX + name


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(_CURVE)


def request_for(key: ec.EllipticCurvePrivateKey) -> str:
    """Return a request for a certificate of this key, in PEM."""
    request = x509.CertificateSigningRequestBuilder().subject_name(_name("node")).sign(key, hashes.SHA256())
    return _pem(request)


def public_key(request: str) -> ec.EllipticCurvePublicKey:
    """Return the public key of a request. Raises ValueError: it is of another kind."""
    key = x509.load_pem_x509_csr(request.encode()).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("the request for a certificate has no key on an elliptic curve")
    return key


def private_pem(key: ec.EllipticCurvePrivateKey) -> str:
    """Return a private key in PEM, unencrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def seal(data: bytes, to: ec.EllipticCurvePublicKey) -> bytes:
    """Encrypt data so that only the owner of the private key can read it."""
    once = new_key()
    point = once.public_key().public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    nonce = os.urandom(_NONCE_BYTES)
    cipher = AESGCM(_shared_key(once.exchange(ec.ECDH(), to), point))
    return point + nonce + cipher.encrypt(nonce, data, _PURPOSE)


def unseal(sealed: bytes, key: ec.EllipticCurvePrivateKey) -> bytes:
    """Decrypt what `seal` encrypted. Raises cryptography.exceptions.InvalidTag, ValueError: it is not for this key."""
    size = 1 + 2 * ((_CURVE.key_size + 7) // 8)
    point, nonce, text = sealed[:size], sealed[size : size + _NONCE_BYTES], sealed[size + _NONCE_BYTES :]
    once = ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, point)
    return AESGCM(_shared_key(key.exchange(ec.ECDH(), once), point)).decrypt(nonce, text, _PURPOSE)


def _shared_key(secret: bytes, point: bytes) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=point, info=_PURPOSE).derive(secret)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(signed: x509.Certificate | x509.CertificateSigningRequest) -> str:
    return signed.public_bytes(serialization.Encoding.PEM).decode()
