"""What HTTP costs: eight streams through the server against the engine alone, in turns in one run.

Not a test: it prints ratios. The clients are a process of their own. The overhead of a token is
the processor time of the serving process less that of the engine alone, with a model that costs
next to nothing and one token to a chunk. Run it with ``python benchmarks/serve.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx2
import uvicorn

from draftproof import Engine, ModelOptions, SamplingParams
from draftproof.models.table import TableModel
from draftproof.server.app import create_app
from draftproof.server.run import address_of, listen
from draftproof.server.settings import Settings

STREAMS = 8
ENDLESS = {(): (0.4, 0.3, 0.3, 0.0), (0,): (0.1, 0.6, 0.3, 0.0), (1,): (0.3, 0.1, 0.6, 0.0)}
Measure = Callable[[], None]


async def stream(client: httpx2.AsyncClient, prompt: str, tokens: int) -> int:
    body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    asked = client.stream("POST", "/v1/completions", json={**body, "stream": True})
    async with asked as answer:
        answer.raise_for_status()
        return sum([line.startswith("data: {") async for line in answer.aiter_lines()])


async def ask(url: str, prompts: list[str], tokens: int) -> None:
    async with httpx2.AsyncClient(base_url=url, timeout=600) as client:
        await asyncio.gather(*(stream(client, prompt, tokens) for prompt in prompts))


def clients(url: str) -> None:
    """Ask as often as a line comes in, and say when it is done."""
    for line in sys.stdin:
        tokens, *prompts = line.rstrip("\n").split("\t")
        asyncio.run(ask(url, prompts, int(tokens)))
        print(flush=True)


@contextmanager
def served(engine: Engine, prompts: list[str], tokens: int) -> Iterator[Measure]:
    """A function that has all prompts answered over HTTP."""
    port = listen("127.0.0.1", 0)
    app = create_app(engine, Settings(name="bench"))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, args=([port],))
    url = address_of(port)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    command = [sys.executable, __file__, "--clients", url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as asking:
        assert asking.stdin
        assert asking.stdout

        def measure() -> None:
            print(tokens, *prompts, sep="\t", file=asking.stdin, flush=True)
            asking.stdout.readline()

        yield measure
        asking.stdin.close()
    server.should_exit = True
    thread.join()


def directly(engine: Engine, prompts: list[str], tokens: int) -> None:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    engine.generate_many(prompts, params)


def compare(make: Callable[[], Engine], prompts: list[str], tokens: int, turns: int) -> list[float]:
    """Medians: seconds and processor seconds, the engine alone and served."""
    alone: list[tuple[float, float]] = []
    through: list[tuple[float, float]] = []
    with make() as first, make() as second, served(second, prompts, tokens) as measure:
        for _ in range(turns + 1):
            alone.append(timed(lambda: directly(first, prompts, tokens)))
            through.append(timed(measure))
    arms = (*zip(*alone[1:], strict=True), *zip(*through[1:], strict=True))  # the first warms up
    return [statistics.median(arm) for arm in arms]


def timed(work: Measure) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def letters() -> Engine:
    options = ModelOptions(max_sequences=STREAMS, context_length=4096)
    return Engine(TableModel(ENDLESS, "letters", 3, options))


def demo() -> Engine:
    return Engine(
        "demo", options=ModelOptions(max_sequences=STREAMS, context_length=512, threads=1)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--clients", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.clients:
        clients(given.clients)
        return
    logging.basicConfig(level=logging.WARNING)
    tokens = 500
    _, cpu, _, served_cpu = compare(letters, ["ab"] * STREAMS, tokens, given.turns)
    overhead = (served_cpu - cpu) / (STREAMS * tokens) * 1e3
    print(f"a token of a stream: {overhead:.3f} ms of the server's processor time (at most 0.2)")
    prompts = [f"Chapter {number}. The lighthouse" for number in range(STREAMS)]
    wall, cpu, served_wall, served_cpu = compare(demo, prompts, given.tokens, given.turns)
    rate = STREAMS * given.tokens / wall
    print(f"eight streams: {wall / served_wall:.3f} of the engine alone (at least 0.95), which")
    print(f"gives {rate:.1f} tokens/s on one thread; {served_cpu / cpu:.3f} of its processor time")


if __name__ == "__main__":
    main()
