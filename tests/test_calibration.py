"""The table of passes: measured once, kept, measured anew where anything is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from draftproof import Engine, ModelError, SamplingParams, Speculation
from draftproof.calibration import LOOK, REPEATS, WIDTHS, Calibration, measure
from draftproof.control.latency import Latency, Scale, Table
from draftproof.drafters.lookup import LookupDrafter
from draftproof.drafters.model import ModelDrafter
from draftproof.models import Chunk
from toys import Toy, agrees, cycle

AUTO = Speculation(draft_length=None)


class Filed(Toy):
    """A toy that is a file, and so worth a table."""

    def __init__(self, path: Path, **named: object) -> None:
        super().__init__(1, 256, **named)
        if not path.exists():
            path.touch()
        self.path = str(path)

    @property
    def measured(self) -> int:
        """Passes that look like measuring: all positions of a few tokens are wanted."""
        return sum(len(call[0].tokens) == call[0].logits == max(WIDTHS) for call in self.calls)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache" / "deep"
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(folder))
    return folder


def table_of(passes: str, each: object = 0) -> str:
    """The text of a file."""
    return f'{{"passes": {passes}, "each": {each}, "shared": 0}}'


def run(target: Filed) -> None:
    """One answer of a new engine, which must be right whatever was measured."""
    engine = Engine(target, LookupDrafter(), speculation=AUTO)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    for prompt in ([1, 2, 1, 2], [1, 2, 1, 2, 3]):
        assert agrees(engine.generate(prompt, params), target, prompt, params)


def test_measured_once_for_all_engines(tmp_path: Path, cache: Path) -> None:
    target = Filed(tmp_path / "model.gguf")
    run(target)
    assert target.measured == REPEATS
    (file,) = cache.iterdir()
    assert sorted(map(int, json.loads(file.read_text())["passes"])) == sorted(WIDTHS)
    run(target)
    run(again := Filed(tmp_path / "model.gguf"))
    assert (target.measured, again.measured) == (REPEATS, 0)


def test_another_file_or_number_of_threads_is_another_table(tmp_path: Path, cache: Path) -> None:
    run(Filed(tmp_path / "model.gguf"))
    run(Filed(tmp_path / "other.gguf"))
    threaded = Filed(tmp_path / "model.gguf")
    threaded.threads = 3
    run(threaded)
    assert len(list(cache.iterdir())) == 3


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "3", "{}", '{"passes": {"1": 1}}', table_of("{}")),
        *(table_of(f'{{"1": {bad}}}') for bad in ('"x"', "0", "NaN", "null")),
        *(table_of('{"a": 1}'), table_of('{"1": 1}', -1), table_of('{"1": 1}', "Infinity")),
    ],
)
def test_a_broken_file_is_measured_anew(tmp_path: Path, cache: Path, text: str) -> None:
    run(Filed(tmp_path / "model.gguf"))
    (file,) = cache.iterdir()
    file.write_text(text)
    run(target := Filed(tmp_path / "model.gguf"))
    assert target.measured == REPEATS
    assert json.loads(file.read_text())


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").touch()
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "taken"))
    for _ in range(2):
        run(target := Filed(tmp_path / "model.gguf"))
        assert target.measured == REPEATS


def test_no_table_where_it_is_of_no_use(tmp_path: Path, cache: Path) -> None:
    target = Filed(tmp_path / "model.gguf")
    params = SamplingParams(max_tokens=5)
    Engine(target, LookupDrafter(), speculation=Speculation(draft_length=3)).generate([1], params)
    Engine(target, speculation=AUTO).generate([1], params)
    Engine(Toy(1), LookupDrafter(), speculation=AUTO).generate([1], params)
    assert not target.measured
    assert not cache.exists()


def test_measuring_ends_in_time() -> None:
    now = [0.0]

    class Slow(Toy):
        def forward(self, chunks: Sequence[Chunk]) -> list:
            now[0] += 0.1 + 0.1 * len(chunks[0].tokens)
            return super().forward(chunks)

    target = Slow(1, 256)
    table = measure(target, lambda: now[0])
    assert table.passes == pytest.approx({1: 0.2, 5: 0.6, 2: 0.3})
    assert table.each == table.shared == 0  # nor is there time to read more
    assert target.length(0) == 0


class Looking(Toy):
    """Its passes take a second for each token, and more for each entry it looks at."""

    now = 0.0

    def forward(self, chunks: Sequence[Chunk]) -> list:
        width = len(chunks[0].tokens)
        self.now += 1e-3 * width + (1e-6 * width + 1e-5) * self.length(0)
        return super().forward(chunks)


def test_what_a_context_costs_is_measured_apart() -> None:
    target = Looking(1, 1024)
    table = measure(target, lambda: target.now)
    assert table.passes == pytest.approx({n: 1e-3 * n for n in WIDTHS})
    assert (table.each, table.shared) == pytest.approx((1e-6, 1e-5))
    assert target.length(0) == 0


def test_a_context_too_short_and_a_model_that_fails_give_none() -> None:
    assert measure(Toy(1, 16)) == Table({})
    target = Toy(1, 256)
    target.failures = {3: (ModelError("down"), "half")}
    assert measure(target) == Table({})
    assert target.length(0) == 0


def test_a_table_of_another_shape_is_replaced(tmp_path: Path, cache: Path) -> None:
    """A machine that is slower as a whole is no reason."""
    target = Filed(tmp_path / "model.gguf", table=cycle())
    latency = Latency(Scale())
    calibration = Calibration(target, latency)
    assert calibration.begin()
    (file,) = cache.iterdir()
    kept = {int(n): s for n, s in json.loads(file.read_text())["passes"].items()}
    for table, replaced in (
        ({n: 5 * s for n, s in kept.items()}, False),
        ({n: s * (1 + n) for n, s in kept.items()}, True),
    ):
        before = file.read_text()
        latency.adopt(Table(table))
        for _ in range(LOOK):
            calibration.keep()
        assert (file.read_text() != before) == replaced


def test_a_draft_model_is_measured_too_and_reads_its_text_again(
    tmp_path: Path, cache: Path
) -> None:
    """Whoever used it before: a shared draft model's cache is emptied by measuring."""
    target, model = Filed(tmp_path / "target.gguf"), Filed(tmp_path / "draft.gguf")
    drafter = ModelDrafter(model, target)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    fixed = Engine(target, drafter, speculation=Speculation(draft_length=3))
    fixed.generate([1, 2, 1, 2], params)
    assert model.measured == 0
    engine = Engine(target, drafter, speculation=AUTO)
    answer = engine.generate([1, 2, 1, 2], params)
    assert (target.measured, model.measured) == (REPEATS, REPEATS)
    assert len(list(cache.iterdir())) == 2
    assert answer.stats.rejected == 0  # it is the target's own copy
    again = fixed.generate([1, 2, 1, 2], params)
    assert again.token_ids == answer.token_ids
    assert again.stats.rejected == 0


def test_a_file_that_is_gone_is_no_error(tmp_path: Path, cache: Path) -> None:
    target = Filed(tmp_path / "model.gguf")
    (tmp_path / "model.gguf").unlink()
    run(target)
    assert not target.measured
