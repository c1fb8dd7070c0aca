"""benchmarks/replayed.py: recorded answers at the costs of any machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    import replayed

    return replayed


def found(passes: dict[int, float]) -> dict[str, Any]:
    """A prompt whose answer repeats it, and one whose answer does not."""
    repeated = [7, 8, 9, 10, 11, 12, 13, 14] * 6
    fresh = list(range(100, 140))
    return {
        "pair": "F16 + lookup",
        "temperature": 0,
        "prompts": [
            {"category": "copy", "token_ids": [1, *repeated]},
            {"category": "new", "token_ids": [1, 2, 3]},
        ],
        "rows": [
            {"prompt": 0, "arm": "plain", "token_ids": repeated},
            {"prompt": 1, "arm": "plain", "token_ids": fresh},
            {"prompt": 1, "arm": "lookup@2", "token_ids": fresh},
        ],
        "costs": {
            "kind": "measured",
            "machine": "a machine",
            "model": "a model",
            "context": 10,
            "source": "a test",
            "passes": [[n, 1, seconds, None, None] for n, seconds in passes.items()],
            "drafts": {},
        },
    }


def test_an_answer_that_ended_ends_again(replayed: Any) -> None:
    copy, new = replayed.texts(found({}))
    assert copy.answer[-1] != replayed.END
    assert new.answer[-1] == replayed.END
    assert copy.prompt[1:] == copy.answer


def test_where_passes_cost_nothing_more_copies_are_fast(replayed: Any) -> None:
    document = found({1: 1.0, 17: 1.0})
    every, costs = replayed.texts(document), replayed.costs("here", document)
    speeds = {
        arm: replayed.replay(every, replayed.Recorded(costs, 200, 0.0), make, length)
        for arm, make, length in (
            ("plain", None, 0),
            ("three", replayed.LookupDrafter, 3),
            ("auto", replayed.LookupDrafter, None),
        )
    }
    assert speeds["plain"] == pytest.approx({"all": 1.0, "copy": 1.0, "new": 1.0})
    assert speeds["three"]["copy"] == pytest.approx(48 / 12)
    assert speeds["auto"]["copy"] > 10
    assert speeds["auto"]["new"] == pytest.approx(1.0)


def test_the_whole_of_it(
    replayed: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "found.json"
    file.write_text(json.dumps({"pairs": [found({1: 1.0, 17: 17.0})]}))
    monkeypatch.setattr(sys, "argv", ["replayed.py", str(file), "--lengths", "2", "4"])
    replayed.main()
    lines = capsys.readouterr().out.splitlines()
    head = lines[2].split()
    assert head[:4] == ["plain", "2", "4", "simple@3"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[3:]}
    assert set(rows) == {"all", "copy", "new"}
    assert float(rows["all"][0]) == 1.0
    assert float(rows["all"][4]) >= 0.99, "auto drafts nothing where nothing pays"
