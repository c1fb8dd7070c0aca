"""How a server begins and ends: ports, signals, the command."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner

from draftproof.commands.serve import serve
from draftproof.errors import ParameterError
from draftproof.server.run import address_of, listen
from draftproof.server.settings import Settings
from served import events, eventually

SLOW = """
import sys
sys.path.insert(0, sys.argv[1])
from draftproof import Engine
from draftproof.server.app import create_app
from draftproof.server.run import address_of, listen, run
from draftproof.server.settings import Settings
from served import Slow
port = listen("127.0.0.1", 0)
with Engine(Slow(0.02, sequences=1)) as engine:
    app = create_app(engine, Settings(name="slow"))
    print(address_of(port), flush=True)
    sys.exit(run(app, port))
"""


@contextmanager
def process(*command: str) -> Iterator[tuple[subprocess.Popen[str], httpx2.Client]]:
    """A server in a process that tells its address on the first line it writes."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        try:
            assert server.stdout
            url = server.stdout.readline().split()[-1]
            with httpx2.Client(base_url=url, timeout=30) as client:
                assert eventually(lambda: healthy(client))
                yield server, client
        finally:
            server.kill()


def healthy(client: httpx2.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx2.TransportError:
        return False


class Asking(threading.Thread):
    """A request on its way."""

    def __init__(self, client: httpx2.Client, **body: Any) -> None:
        super().__init__()
        self.client, self.body = client, {"prompt": "ab", **body}
        self.answer: httpx2.Response | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self.client.post("/v1/completions", json=self.body)
        except httpx2.TransportError:
            self.answer = None


def busy(client: httpx2.Client) -> tuple[int, int]:
    stats = client.get("/stats").json()
    return stats["running"], stats["waiting"]


def test_a_signal_finishes_what_runs_and_refuses_the_rest() -> None:
    with process("-c", SLOW, str(Path(__file__).parent)) as (server, client):
        runs = Asking(client, max_tokens=40, stream=True)
        assert eventually(lambda: busy(client) == (1, 0))
        waits = Asking(client, max_tokens=5)
        assert eventually(lambda: busy(client) == (1, 1))
        server.send_signal(signal.SIGTERM)
        assert eventually(lambda: client.get("/health").status_code == 503)
        refused = client.post("/v1/completions", json={"prompt": "ab"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        waits.join(10)
        assert waits.answer is not None
        assert waits.answer.status_code == 503
        runs.join(10)
        assert runs.answer is not None
        chunks = events(runs.answer.text)
        assert sum(len(chunk["choices"][0]["text"]) for chunk in chunks) == 40
        assert server.wait(10) == 0
        assert server.stdout
        assert "Traceback" not in server.stdout.read()


def test_the_second_signal_stops_at_once() -> None:
    with process("-c", SLOW, str(Path(__file__).parent)) as (server, client):
        runs = Asking(client, max_tokens=3000)
        assert eventually(lambda: busy(client) == (1, 0))
        server.send_signal(signal.SIGTERM)
        assert eventually(lambda: client.get("/health").status_code == 503)
        assert server.poll() is None
        server.send_signal(signal.SIGINT)
        assert server.wait(10) == 1
        runs.join(10)
        assert runs.answer is not None
        assert runs.answer.status_code == 503
        assert server.stdout
        assert "Traceback" not in server.stdout.read()


def test_a_port_is_had_or_refused_in_one_line() -> None:
    with listen("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ParameterError, match=f"port {port} of 127.0.0.1 cannot be used"):
            listen("127.0.0.1", port)
    with pytest.raises(ParameterError, match="cannot be used"):
        listen("no.such.host.invalid", 1)
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::1", 0))
        assert address_of(taken) == f"http://[::1]:{taken.getsockname()[1]}"


def test_the_command_serves_and_ends_well() -> None:
    code = "import sys; from draftproof.commands.serve import serve as s; sys.exit(s.main("
    code += "sys.argv[1:], standalone_mode=False))"
    options = ("--target", "table:markov", "--draft", "table:markov-draft", "--port", "0")
    names = ("--model-name", "m", "--alias", "gpt", "--parallel", "2", "--context-length", "128")
    with process("-c", code, *options, *names, "--api-key", "k") as (server, client):
        client.headers["Authorization"] = "Bearer k"
        models = client.get("/v1/models").json()["data"]
        assert [(m["id"], m["max_model_len"]) for m in models] == [("m", 128), ("gpt", 128)]
        assert client.get("/stats").json()["drafter"] == "table:markov-draft"
        body = {"model": "gpt", "prompt": "ab", "temperature": 0, "max_tokens": 3}
        assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == "cab"
        server.terminate()
        assert server.wait(10) == 0


def test_the_command_refuses_what_it_cannot_do() -> None:
    with listen("127.0.0.1", 0) as taken:
        taken.listen()
        port = str(taken.getsockname()[1])
        for options, message in (
            (("--port", port), "give another --port"),
            (("--draft-length", "3"), "needs a drafter"),
            (("--gpu-layers", "3"), "does nothing for a table"),
            (("--api-key", ""), "an API key must not be empty"),
        ):
            done = CliRunner().invoke(serve, ["--target", "table:markov", *options])
            assert isinstance(done.exception, ParameterError), done
            assert message in str(done.exception)


def test_settings_are_checked() -> None:
    for wrong in ({"name": ""}, {"aliases": ("",)}, {"max_waiting": -1}, {"max_body": 1.5}):
        with pytest.raises(ParameterError):
            Settings(**{"name": "m", **wrong})


def test_the_server_is_not_loaded_by_the_library() -> None:
    code = "import json, sys, draftproof.cli; print(json.dumps(list(sys.modules)))"
    environment = os.environ | {"PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    loaded = {name.split(".")[0] for name in json.loads(done.stdout)}
    assert not loaded & {"fastapi", "starlette", "uvicorn", "pydantic", "prometheus_client"}
