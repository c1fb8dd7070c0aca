"""Many clients, and those that go away, read slowly, or ask for too much."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx2
import pytest

from draftproof import Engine, ModelError, SamplingParams
from draftproof.server import prepare
from served import Served, Slow, events, eventually, markov, serving

SECONDS = float(os.environ.get("DRAFTPROOF_LOAD_SECONDS", "2"))
CLIENTS = 64


@contextmanager
def endless(model: Slow | None = None, **settings: Any) -> Iterator[Served]:
    with serving(Engine(model or Slow(0.002)), **settings) as server:
        yield server


@contextmanager
def streaming(server: Served, **body: Any) -> Iterator[Iterator[str]]:
    """A stream of which the first line has come."""
    asked = {"prompt": "ab", "max_tokens": 3000, "stream": True, **body}
    with server.client.stream("POST", "/v1/completions", json=asked) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        next(lines)
        yield lines


class Crowd:
    """Clients that ask, cancel and compare."""

    def __init__(self, url: str, alone: Engine) -> None:
        self.url, self.alone = url, alone
        self.known: dict[tuple[str, int, int], str] = {}
        self.answered = self.cancelled = 0

    def expected(self, prompt: str, seed: int, tokens: int) -> str:
        key = (prompt, seed, tokens)
        if key not in self.known:
            params = SamplingParams(temperature=1.0, seed=seed, max_tokens=tokens)
            self.known[key] = self.alone.generate(prompt, params).text
        return self.known[key]

    async def run(self, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        limits = httpx2.Limits(max_connections=CLIENTS)
        async with httpx2.AsyncClient(base_url=self.url, timeout=30, limits=limits) as client:
            await asyncio.gather(*(self.visit(client, end, i) for i in range(CLIENTS)))

    async def visit(self, client: httpx2.AsyncClient, end: float, number: int) -> None:
        coin = random.Random(number)
        while asyncio.get_running_loop().time() < end:
            prompt = "".join(coin.choices("abc", k=coin.randint(1, 12)))
            seed, tokens = coin.randrange(4), coin.choice((1, 8, 40))
            body = {"prompt": prompt, "seed": seed, "max_tokens": tokens}
            body["num_draft_tokens"] = coin.randrange(6)
            if coin.random() < 0.4:
                await self.cancel(client, body, coin)
            elif coin.random() < 0.5:
                answer = await client.post("/v1/completions", json=body)
                assert answer.status_code == 200, answer.text
                assert answer.json()["choices"][0]["text"] == self.expected(prompt, seed, tokens)
                self.answered += 1
            else:
                text = await self.stream(client, body)
                assert text == self.expected(prompt, seed, tokens)
                self.answered += 1

    async def stream(self, client: httpx2.AsyncClient, body: dict[str, Any]) -> str:
        answer = await client.post("/v1/completions", json={**body, "stream": True})
        return "".join(chunk["choices"][0]["text"] for chunk in events(answer.text))

    async def cancel(
        self, client: httpx2.AsyncClient, body: dict[str, Any], coin: random.Random
    ) -> None:
        self.cancelled += 1
        body = {**body, "max_tokens": 200, "ignore_eos": True, "stream": coin.random() < 0.7}
        try:
            async with asyncio.timeout(coin.random() * 0.1):
                async with client.stream("POST", "/v1/completions", json=body) as answer:
                    async for _ in answer.aiter_lines():
                        if coin.random() < 0.2:
                            return
        except TimeoutError:
            pass


def test_a_crowd_that_comes_and_goes_is_answered_as_each_alone() -> None:
    with markov(sequences=1, drafter=None) as alone, serving(markov(sequences=6)) as server:
        crowd = Crowd(server.url, alone)
        asyncio.run(crowd.run(SECONDS))
        assert crowd.answered > CLIENTS
        assert crowd.cancelled > 10
        assert server.settled()
        ends = {k: v for k, v in server.metrics().items() if "draftproof_requests_total" in k}
        assert sum(ends.values()) >= crowd.answered
        assert not any("error" in name for name in ends)
        assert server.complete(temperature=0, max_tokens=3).json()["choices"][0]["text"] == "cab"


def test_who_goes_away_frees_a_place_within_a_round() -> None:
    model = Slow(0.05, sequences=1)
    with endless(model) as server:
        with streaming(server):
            assert server.running() == (1, 0)
        before = model.passes
        assert server.complete(max_tokens=1).status_code == 200
        assert model.passes - before <= 3  # the one that ran, one to notice, one to answer
        assert server.settled()


def test_who_goes_away_before_the_first_token_frees_a_place() -> None:
    with endless(Slow(0.02, sequences=1)) as server, streaming(server):
        for stream in (False, True):
            with pytest.raises(httpx2.ReadTimeout):
                server.client.post(
                    "/v1/completions",
                    json={"prompt": "ab", "max_tokens": 3000, "stream": stream},
                    timeout=0.1,
                )
        assert eventually(lambda: server.running() == (1, 0))


def test_requests_join_and_leave_while_others_run() -> None:
    with endless(Slow(0.005)) as server, streaming(server) as lines:
        for length in (1, 7, 300):
            assert server.complete("a" * length, max_tokens=2).status_code == 200
        assert next(line for line in lines if line).startswith("data: {")
        assert server.running() == (1, 0)


def test_a_full_queue_says_so() -> None:
    with endless(Slow(0.005, sequences=1), max_waiting=1) as server, ExitStack() as open_:
        open_.enter_context(streaming(server))
        waiting = threading.Thread(target=server.complete, kwargs={"max_tokens": 2})
        waiting.start()
        assert eventually(lambda: server.running() == (1, 1))
        full = server.complete()
        assert (full.status_code, full.headers["retry-after"]) == (429, "1")
        assert full.json()["error"]["code"] == "queue_full"
        never = server.complete(n=3)
        assert never.status_code == 429
        open_.close()
        waiting.join(10)
        assert server.complete(n=3).status_code == 400  # it could not be held at all
        assert server.complete(n=2, max_tokens=2).status_code == 200


def read_nothing(server: Served, **body: Any) -> socket.socket:
    """A client that asks for a long answer and does not read it."""
    asked = {"prompt": "ab", "max_tokens": 1200, "stream": True, "logprobs": 3, **body}
    asked["include_rounds"] = True
    data = json.dumps(asked).encode()
    host, port = server.url.removeprefix("http://").split(":")
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect((host, int(port)))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
    reader.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + data)
    return reader


def test_a_slow_reader_does_not_hold_up_others_and_gets_everything() -> None:
    with endless(Slow(0.0, sequences=2)) as server, read_nothing(server) as reader:
        assert eventually(lambda: server.running() == (1, 0))
        assert server.complete(max_tokens=50).status_code == 200
        assert eventually(lambda: server.running() == (0, 0))  # done, and not yet read
        assert not server.service.idle
        reader.settimeout(20)
        text = b""
        while not text.endswith(b"[DONE]\n\n\r\n0\r\n\r\n"):
            new = reader.recv(2**16)
            assert new
            text += new
        assert text.count(b'"token_logprobs"') == 1200
        assert server.settled()


def test_a_reader_that_never_reads_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    with endless(Slow(0.0), write_timeout=0.3) as server, read_nothing(server):
        assert eventually(lambda: server.running() == (1, 0))
        assert server.settled()
        assert "read nothing for 0.3 s" in caplog.text


def test_a_failing_model_fails_what_runs_and_the_server_goes_on() -> None:
    model = Slow(0.01, sequences=1)
    with endless(model) as server:
        server.complete(max_tokens=1)
        model.failure = ModelError("the pass failed: free some memory")
        failed = server.complete(max_tokens=5)
        assert failed.status_code == 500
        assert failed.json()["error"] == {
            "message": "the pass failed: free some memory",
            "type": "server_error",
            "param": None,
            "code": None,
        }
        with streaming(server) as lines:
            waiting: list[httpx2.Response] = []
            thread = threading.Thread(target=lambda: waiting.append(server.complete(max_tokens=2)))
            thread.start()
            assert eventually(lambda: server.running() == (1, 1))
            model.failure = RuntimeError("a bug")
            *_, error, done = [line for line in lines if line]
        assert done == "data: [DONE]"
        assert "its log says why" in json.loads(error.removeprefix("data: "))["error"]["message"]
        thread.join(10)
        assert waiting[0].status_code == 200
        assert server.complete(max_tokens=5).status_code == 200
        assert server.settled()


def test_an_engine_beyond_help_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Slow(0.01)
    with endless(model) as server:
        with streaming(server) as lines:
            monkeypatch.setattr(model, "length", lambda seq: 1 / 0)
            *_, error, done = [line for line in lines if line]
        assert done == "data: [DONE]"
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert server.client.get("/health").status_code == 503
        assert server.complete().status_code == 503
        assert eventually(lambda: server.service.idle)


def test_a_grammar_is_compiled_beside_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, release = threading.Event(), threading.Event()
    compile_ = prepare.constraint_for

    def slow(*arguments: Any) -> Any:
        begun.set()
        release.wait(20)
        return compile_(*arguments)

    monkeypatch.setattr(prepare, "constraint_for", slow)
    with endless(Slow(0.0)) as server:
        found: list[httpx2.Response] = []
        asked = {"max_tokens": 9, "guided_regex": "(ab)*"}
        threads = [
            threading.Thread(target=lambda: found.append(server.complete(**asked)))
            for _ in range(6)  # more than are compiled at once
        ]
        for thread in threads:
            thread.start()
        assert begun.wait(10)
        assert server.complete(max_tokens=5).status_code == 200
        assert not found
        release.set()
        for thread in threads:
            thread.join(20)
        assert [each.json()["choices"][0]["text"] for each in found] == ["ababababa"] * 6
