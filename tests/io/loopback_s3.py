"""A real S3 API on loopback: moto's server in a thread of this process."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

KEYS = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Start the service; give its URL."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # one line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def make_bucket(endpoint: str, name: str, objects: Mapping[str, bytes]) -> None:
    """Make a bucket with objects in it."""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=KEYS["region"],
        aws_access_key_id=KEYS["access_key_id"],
        aws_secret_access_key=KEYS["secret_access_key"],
    )
    try:
        client.create_bucket(Bucket=name)
        for key, data in objects.items():
            client.put_object(Bucket=name, Key=key, Body=data)
    finally:
        client.close()


def options(endpoint: str, **more: Any) -> dict[str, Any]:
    """Return the options of a `Store` for this service."""
    config = {**KEYS, "endpoint": endpoint, "virtual_hosted_style_request": False}
    return {"config": config, "client": {"allow_http": True}, **more}
