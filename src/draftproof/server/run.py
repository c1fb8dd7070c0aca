"""Listening, and ending well.

The first SIGTERM or SIGINT finishes what runs and refuses the rest with 503; the second stops at
once. The port is taken before a model is loaded, so that one in use is known at once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from draftproof.errors import ParameterError
from draftproof.server.service import Service

logger = logging.getLogger("draftproof.server")

PATIENCE = 0.05  # seconds between two looks at whether all is done


def listen(host: str, port: int) -> socket.socket:
    """A socket that holds a port; port 0 takes a free one.

    Raises:
        ParameterError: it cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        taken = socket.socket(family, kind, protocol)
        try:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(address)
        except OSError:
            taken.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ParameterError(
            f"port {port} of {host} cannot be used ({reason}): give another --port or --host"
        ) from None
    return taken


def address_of(taken: socket.socket) -> str:
    """Where a socket can be reached."""
    host, port = taken.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Uvicorn(uvicorn.Server):
    """Drains before it stops."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None
        self.stopped = False  # before all was done

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """See ``uvicorn.Server``."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See ``uvicorn.Server``; runs between any two instructions."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self._service.draining:
            logger.warning("stopping at once")
            self._service.halt()
            self.config.timeout_graceful_shutdown = 1  # for those who do not read the news
            self.stopped = self.should_exit = True
            return
        logger.info("finishing what runs; once more stops at once")
        self._service.drain()
        self._draining = asyncio.ensure_future(self._drained())

    async def _drained(self) -> None:
        while not self._service.idle:
            await asyncio.sleep(PATIENCE)
        self.should_exit = True


def run(app: FastAPI, taken: socket.socket, access_log: bool = False) -> int:
    """Serve until a signal ends it.

    Args:
        app: of ``create_app``.
        taken: of ``listen``.
        access_log: whether every request is logged.

    Returns:
        0 if all that ran was finished, 1 if it was stopped.
    """
    service: Service = app.state.service
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=access_log,
        lifespan="on",
        ws="none",
        server_header=False,
    )
    server = _Uvicorn(config, service)
    gc.freeze()  # what is loaded stays: collections need not look through it
    try:
        server.run([taken])
    finally:
        service.stop()
        taken.close()
    return 1 if server.stopped else 0
