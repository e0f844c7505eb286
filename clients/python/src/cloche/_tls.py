"""Whom to trust: the public authorities as httpx has them, and the service's own."""

from __future__ import annotations

import ssl

import httpx

from ._connection import Connection
from ._errors import ClocheConfigError


def tls_context(connection: Connection) -> ssl.SSLContext:
    context = httpx.create_ssl_context()
    if connection.ca_cert is not None:
        try:
            context.load_verify_locations(cadata=connection.ca_cert)
        except ssl.SSLError as error:
            raise ClocheConfigError("CLOCHE_CA_CERT: the file holds no certificate in PEM form") from error
    return context
