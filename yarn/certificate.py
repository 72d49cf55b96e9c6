"""The key and certificate by which a job's containers and its skein master know each other.

skein's own are valid from the moment of submission on. A container on a node whose clock is behind
that of the submitting machine refuses them, and the job ends: the master "does not answer". Who has
the key belongs to the job, at whatever time; so these are valid for all clocks.
"""

from __future__ import annotations

import datetime


def make() -> tuple[bytes, bytes]:
    """(certificate, key) in PEM, for one job."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.x509.oid import NameOID

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    # The name that skein's clients expect of its master.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "skein-internal")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(1970, 1, 1))
        .not_valid_after(datetime.datetime(9999, 12, 31, 23, 59, 59))  # RFC 5280: no end
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
