"""The Python client of Cloche: isolated machines that can be forked, suspended and rewound.

    from cloche import Cloche

    with Cloche() as cloche, cloche.create() as sandbox:
        print(sandbox.exec(["python3", "-c", "print(6 * 7)"]).stdout)

`Cloche` is for ordinary programs, `AsyncCloche` for asyncio; both have the same methods. Without arguments they read CLOCHE_URL and
CLOCHE_API_KEY, and find a service on this machine by themselves.
"""

# First, and in words that every Python parses: an older one then says what is wrong in one line.
import sys

if sys.version_info < (3, 9):
    raise ImportError(
        "cloche needs Python 3.9 or newer, and this is Python %d.%d: run it with a newer python3" % sys.version_info[:2]
    )

from . import _errors, _models
from ._async.attachment import AsyncAttachment
from ._async.checkpoints import AsyncCheckpoints
from ._async.client import AsyncCloche
from ._async.data_plane import AsyncDataPlane
from ._async.files import AsyncFiles
from ._async.gateway import AsyncGateway
from ._async.processes import AsyncProcesses
from ._async.sandbox import AsyncSandbox
from ._async.services import AsyncServices
from ._async.store import AsyncStore
from ._async.stream import AsyncByteStream, AsyncStream
from ._errors import *
from ._models import *
from ._sync.attachment import Attachment
from ._sync.checkpoints import Checkpoints
from ._sync.client import Cloche
from ._sync.data_plane import DataPlane
from ._sync.files import Files
from ._sync.gateway import Gateway
from ._sync.processes import Processes
from ._sync.sandbox import Sandbox
from ._sync.services import Services
from ._sync.store import Store
from ._sync.stream import ByteStream, Stream
from ._version import __version__

__all__ = [
    "AsyncAttachment",
    "AsyncByteStream",
    "AsyncCheckpoints",
    "AsyncCloche",
    "AsyncDataPlane",
    "AsyncFiles",
    "AsyncGateway",
    "AsyncProcesses",
    "AsyncSandbox",
    "AsyncServices",
    "AsyncStore",
    "AsyncStream",
    "Attachment",
    "ByteStream",
    "Checkpoints",
    "Cloche",
    "DataPlane",
    "Files",
    "Gateway",
    "Processes",
    "Sandbox",
    "Services",
    "Store",
    "Stream",
    "__version__",
]
__all__ += _errors.__all__
__all__ += _models.__all__
