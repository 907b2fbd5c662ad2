"""Fetching over TLS: whose certificates are trusted, and connections that end early (I6)."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest
from scripted_server import ScriptedServer, ok

from spdl_async import FetchError, Retry
from spdl_async.io import Fetch

pytest.importorskip("aiohttp")
pytest.importorskip("cryptography")

BODY = bytes(range(256)) * 400
QUICK = Retry(5, backoff=0.0)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a certificate for 127.0.0.1 that nobody has signed, and its key, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "loopback")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "loopback.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return file


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_a_connection_that_ends_early(
    tls: ssl.SSLContext, certificate: Path, then: str
) -> None:
    steps = [ok(BODY, etag='"v"', cut=60_000, then=then), ok(BODY, etag='"v"')]
    async with ScriptedServer({"/o": steps}, tls=tls) as server:
        op = Fetch(ssl_context=ssl.create_default_context(cafile=certificate), retry=QUICK)
        assert await op(server.url("/o")) == BODY
        assert op.statistics().retries >= 1


async def test_a_certificate_that_is_not_trusted_is_final(tls: ssl.SSLContext) -> None:
    # In debug mode asyncio reports a client that hangs up as an error of the server.
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    async with ScriptedServer({"/o": [ok(BODY)]}, tls=tls) as server:
        op = Fetch(retry=QUICK)
        with pytest.raises(FetchError, match="certificate verify failed") as caught:
            await op(server.url("/o"))
        assert caught.value.attempts == 1
        assert not server.requests


async def test_a_handshake_that_is_not_answered_ends() -> None:
    """The time for a connection holds TLS too; this server waits for a line of HTTP."""
    async with ScriptedServer({"/o": [ok(BODY)]}) as server:
        op = Fetch(retry=Retry(2, backoff=0.0), connect_timeout=0.5)
        with pytest.raises(FetchError, match="no connection after 0") as caught:
            await op(server.url("/o").replace("http://", "https://"))
        assert caught.value.attempts == 2
