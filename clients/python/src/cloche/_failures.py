"""What to say, and what to do, when no answer came. Free of I/O."""

from __future__ import annotations

import ssl
from typing import Iterator, Optional, Set

import httpx

from ._errors import ClocheCertificateError, ClocheConnectionError, ClocheTimeoutError

_NOT_YET_VALID, _EXPIRED, _OTHER_NAME = 9, 10, 62


def no_answer(error: Exception, host: str, *, gateway: bool) -> ClocheConnectionError:
    """`host`: as the URL has it, port included."""
    refused = _cause(error, ssl.SSLCertVerificationError)
    if isinstance(refused, ssl.SSLCertVerificationError):
        return ClocheCertificateError(f"{host} is not trusted: {refused.verify_message}; {_remedy_of_certificate(refused)}")
    if isinstance(error, httpx.TimeoutException):
        return ClocheTimeoutError(f"no answer from {host}: {_words(error) or 'it took too long'}")
    return ClocheConnectionError(f"no answer from {host}: {_words(error)}; {_remedy(error, gateway)}")


def _remedy_of_certificate(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in (_NOT_YET_VALID, _EXPIRED):
        return "set this machine's clock if it is wrong (timedatectl set-ntp true), else renew the certificate"
    if error.verify_code == _OTHER_NAME:
        return "check CLOCHE_URL and CLOCHE_BASE_DOMAIN: the certificate is of another name"
    return "set CLOCHE_CA_CERT to the service's CA file (`cloche status` on its machine names it)"


def _remedy(error: Exception, gateway: bool) -> str:
    if isinstance(_cause(error, ssl.SSLError), ssl.SSLError):
        return "if it speaks plain HTTP, its address begins with http://"
    if isinstance(error, (httpx.ReadError, httpx.RemoteProtocolError, httpx.WriteError)):
        return "the connection was lost; what was asked may have happened"
    if gateway:
        return "start the service (`npm start`), or set CLOCHE_URL to where it is"
    return "check that the service runs (`cloche status`), and CLOCHE_EDGE_URL where it is on another machine"


def _cause(error: BaseException, kind: type) -> Optional[BaseException]:
    return next((one for one in _chain(error) if isinstance(one, kind)), None)


def _words(error: BaseException) -> str:
    return next((text for text in map(str, _chain(error)) if text), "")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes, outermost first. Each once: a chain can be a circle (`raise error from error`)."""
    seen: Set[int] = set()
    following: Optional[BaseException] = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__
