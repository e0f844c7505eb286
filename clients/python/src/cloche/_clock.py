"""How far this machine's clock is from the service's, learnt from the `Date` of its answers.

Tokens expire by the service's clock: with this they are renewed in time whatever the clock here says, and an error can say that
it is wrong.
"""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from typing import Mapping, Optional

_NOTICEABLE_SECONDS = 30


class ServiceClock:
    def __init__(self) -> None:
        self._ahead = 0.0

    def learn(self, headers: Mapping[str, str]) -> None:
        try:
            ahead = time.time() - parsedate_to_datetime(headers["date"]).timestamp()
        except (KeyError, TypeError, ValueError):
            return
        # The header has whole seconds, and the answer was under way: as much is no error of a clock.
        self._ahead = ahead if abs(ahead) > 2 else 0.0

    def now(self) -> float:
        """Unix seconds by the service's clock."""
        return time.time() - self._ahead

    def remedy(self) -> Optional[str]:
        """What to do about this machine's clock; None where it is right."""
        if abs(self._ahead) < _NOTICEABLE_SECONDS:
            return None
        direction = "ahead of" if self._ahead > 0 else "behind"
        return f"this machine's clock is {abs(self._ahead):.0f} s {direction} the service's: set it (timedatectl set-ntp true)"
