"""Whether and when to send a request again. Free of I/O."""

from __future__ import annotations

import random
from typing import Optional

from ._errors import ClocheAPIError, ClocheCertificateError, ClocheConnectionError, ClocheError, ClocheTimeoutError

_WAITS_SECONDS = (0.1, 0.5)
_RETRY_AFTER_MOST_SECONDS = 5.0


def pause_before_retry(error: ClocheError, attempt: int) -> Optional[float]:
    """Seconds to wait before the next attempt of what is safe to repeat; None: this error is final."""
    if attempt >= len(_WAITS_SECONDS) or isinstance(error, (ClocheCertificateError, ClocheTimeoutError)):
        return None
    if isinstance(error, ClocheConnectionError):
        return _WAITS_SECONDS[attempt] * (0.5 + random.random())
    if isinstance(error, ClocheAPIError) and error.code == "unavailable":
        after = error.retry_after_seconds
        return after if after is not None and after <= _RETRY_AFTER_MOST_SECONDS else None
    return None
