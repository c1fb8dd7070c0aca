"""Real servers in threads, and what is said to them."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx2
import numpy as np
import uvicorn
from fastapi import FastAPI

from draftproof import Chunk, Engine, ModelOptions
from draftproof.models.table import TableModel
from draftproof.server.app import create_app
from draftproof.server.run import address_of, listen
from draftproof.server.service import Service
from draftproof.server.settings import Settings

NAME = "letters"
ENDLESS = {(): (0.4, 0.3, 0.3, 0.0), (0,): (0.1, 0.6, 0.3, 0.0), (1,): (0.3, 0.1, 0.6, 0.0)}


class Slow(TableModel):
    """A table model that never ends, takes its time, and fails when told to."""

    def __init__(self, seconds: float = 0.0, sequences: int = 4, context: int = 4096) -> None:
        options = ModelOptions(max_sequences=sequences, context_length=context)
        super().__init__(ENDLESS, "slow", 3, options)
        self.seconds = seconds
        self.failure: Exception | None = None
        self.passes = 0

    def forward(self, chunks: Sequence[Chunk]) -> list[np.ndarray]:
        self.passes += 1
        time.sleep(self.seconds)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        return super().forward(chunks)


def markov(sequences: int = 4, drafter: str | None = "table:markov-draft") -> Engine:
    options = ModelOptions(max_sequences=sequences, context_length=256)
    return Engine("table:markov", drafter, options=options)


class Served:
    """A running server: what to ask it with, and its inside."""

    def __init__(self, app: FastAPI, url: str) -> None:
        self.url = url
        self.service: Service = app.state.service
        self.client = httpx2.Client(base_url=url, timeout=60)

    def post(self, path: str, **body: Any) -> httpx2.Response:
        return self.client.post(path, json=body)

    def chat(self, text: str = "ab", **body: Any) -> httpx2.Response:
        messages = [{"role": "user", "content": text}]
        return self.post("/v1/chat/completions", messages=messages, **body)

    def complete(self, prompt: Any = "ab", **body: Any) -> httpx2.Response:
        return self.post("/v1/completions", prompt=prompt, **body)

    def metrics(self) -> dict[str, float]:
        lines = self.client.get("/metrics").text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def settled(self) -> bool:
        """Whether nothing is open any more, soon."""
        return eventually(lambda: self.service.idle and self.running() == (0, 0))

    def running(self) -> tuple[int, int]:
        stats = self.client.get("/stats").json()
        return stats["running"], stats["waiting"]


def eventually(holds: Callable[[], bool], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while not (done := holds()) and time.monotonic() < end:
        time.sleep(0.01)
    return done


@contextmanager
def serving(engine: Engine, **settings: Any) -> Iterator[Served]:
    """A server of this engine on a free port."""
    app = create_app(engine, Settings(**{"name": NAME, **settings}))
    port = listen("127.0.0.1", 0)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**14)  # so that slow readers show
    config = uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([port],))
    url = address_of(port)
    thread.start()
    try:
        assert eventually(lambda: server.started)
        served = Served(app, url)
        with served.client:
            yield served
    finally:
        server.should_exit = True
        thread.join(20)
        engine.close()
    assert not thread.is_alive()


def events(text: str) -> list[dict[str, Any]]:
    """The documents of a stream, which must end in [DONE]."""
    *parts, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(part.startswith("data: {") for part in parts)
    return [json.loads(part.removeprefix("data: ")) for part in parts]
