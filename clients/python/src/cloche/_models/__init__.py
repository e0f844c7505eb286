"""What the service answers, one module a noun, in the contract's names. Timestamps are RFC 3339 UTC with milliseconds."""

from . import _checkpoints, _exec, _files, _processes, _sandbox, _services, _store, _team
from ._checkpoints import *
from ._exec import *
from ._files import *
from ._processes import *
from ._sandbox import *
from ._services import *
from ._store import *
from ._team import *

__all__: "list[str]" = []
__all__ += _checkpoints.__all__
__all__ += _exec.__all__
__all__ += _files.__all__
__all__ += _processes.__all__
__all__ += _sandbox.__all__
__all__ += _services.__all__
__all__ += _store.__all__
__all__ += _team.__all__
