"""The figures' numbers, over HTTP and beside the rules, the engine and the papers."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from importlib.resources import files
from urllib.request import urlopen

import numpy as np
import pytest
from starlette.testclient import TestClient

from draftproof import Draft, Engine, ModelOptions, ParameterError, SamplingParams, Speculation
from draftproof.explain import correction, curve, verification
from draftproof.explain_rounds import DRAFT, DRAFTED, PREFIX, TARGET, WORDS, rounds, schedule
from draftproof.models.table import TableModel
from draftproof.noise import FreshNoise
from draftproof.rules import RULES
from draftproof.server.explain import figures_app


def test_the_words_are_languages() -> None:
    for language in (TARGET, DRAFT):
        for chances in language.values():
            assert set(chances) <= set(WORDS) <= set(language)
            assert sum(chances.values()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("k", [1, 4, 8])
def test_the_schedules_have_the_same_text_and_add_up(k: int) -> None:
    for seed in range(20):
        found = schedule(k, 0.25, 1.5, seed)
        assert found["same"]
        ordinary, speculative = found["ordinary"], found["speculative"]
        assert (ordinary["passes"], ordinary["total"]) == (16, 16)
        now = 0.0
        for one in speculative["rounds"]:
            assert one["start"] == pytest.approx(now)
            assert one["draft"] == 0.25 * one["drafted"]
            assert 1 <= len(one["tokens"]) <= one["drafted"] + 1
            now += one["draft"] + one["verify"]
        assert speculative["total"] == pytest.approx(now)
        assert found["speedup"] == pytest.approx(16 / now)


def test_the_outcomes_of_a_round_are_the_engines() -> None:
    """Run again here, without the figure's own set-up."""
    found = rounds()
    assert [one["accepted"] for one in found["outcomes"]] == [0, 1, 2, 3, 4]
    for outcome in found["outcomes"]:
        models = (table(TARGET), table(DRAFT))
        with Engine(*models, speculation=Speculation(draft_length=4)) as engine:
            params = SamplingParams(temperature=1, seed=outcome["seed"], max_tokens=16)
            engine.submit(list(map(WORDS.index, PREFIX)), params)
            (step,) = engine.step()
        words = [WORDS[token] for token in step.tokens]
        assert tuple(WORDS[token] for token in step.drafted) == DRAFTED
        assert [one["word"] for one in outcome["committed"]] == words
        assert [one["origin"] for one in outcome["committed"]] == list(step.origins)
        assert (outcome["accepted"], outcome["added"]) == (step.accepted, words[-1])
        assert outcome["origin"] == ("bonus" if step.accepted == 4 else "correction")
        assert outcome["cached"] == len(PREFIX) + len(words) - 1


def table(language: dict[str, dict[str, float]]) -> TableModel:
    rows = {
        tuple(map(WORDS.index, key.split())): [chances.get(word, 0) for word in WORDS]
        for key, chances in language.items()
    }
    options = ModelOptions(context_length=64)
    return TableModel({(): [1 / len(WORDS)] * len(WORDS), **rows}, options=options)


def test_the_checks_show_the_targets_rows() -> None:
    for outcome in rounds()["outcomes"]:
        for at, check in enumerate(outcome["checks"]):
            assert check["prefix"] == [*PREFIX, *DRAFTED[:at]]
            *_, before, last = check["prefix"]
            chances = TARGET.get(f"{before} {last}", TARGET[last])
            for top in check["top"]:
                assert chances[top["word"]] == pytest.approx(top["p"], abs=1e-12)
            assert (check["verdict"] == "unread") == (at > outcome["accepted"])
            assert (check["drawn"] is None) == (at > outcome["accepted"])


def test_the_output_is_always_the_target() -> None:
    found = correction()
    assert [step["mass"] for step in found["steps"]] == [i / 100 for i in range(101)]
    for step in found["steps"]:
        p, q, output = (np.array(step[name]) for name in ("p", "q", "output"))
        assert abs(output - p).max() < 1e-12
        assert step["gap"] < 1e-12
        assert sum(step["q"]) == pytest.approx(1, abs=1e-12)
        assert np.allclose(step["accepted"], np.minimum(p, q), atol=1e-12)
        assert step["rate"] == pytest.approx(1 - abs(p - q).sum() / 2, abs=1e-12)
    (equal,) = (step for step in found["steps"] if step["mass"] == found["equal"])
    assert equal["rate"] == pytest.approx(1, abs=1e-12)
    assert np.allclose(equal["q"], equal["p"], atol=1e-15)


def test_the_speedup_is_that_of_the_paper() -> None:
    found = curve(0.8, 4, 0.1, 1.0)
    assert f"{found['chosen']['tokens']:.2f}" == "3.36"
    assert f"{found['chosen']['speedup']:.2f}" == "2.40"
    assert [point["k"] for point in found["points"]] == list(range(1, 13))
    assert found["points"][found["best"] - 1]["speedup"] == max(
        point["speedup"] for point in found["points"]
    )


def test_block_verification_never_keeps_fewer() -> None:
    for k in (1, 2, 3):
        for mass in np.linspace(0.01, 0.99, 15).tolist():
            mean = verification(mass, k)["mean"]
            assert mean["block"] >= mean["token"] - 1e-12
    paper = verification(2 / 3, 2)["mean"]
    assert paper == pytest.approx({"token": 10 / 9, "block": 11 / 9}, abs=1e-12)
    even = verification(1 / 3, 4)["mean"]
    assert even == pytest.approx({"token": 4, "block": 4}, abs=1e-12)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_accepted_lengths_are_those_that_the_rules_give(rule: str) -> None:
    found = verification(0.6, 2)
    p, q = np.array(found["p"]), np.array(found["q"])
    for one in found["drafts"]:
        draft = Draft(tuple("ab".index(letter) for letter in one["draft"]), [q, q])
        counts = np.zeros(3)
        for _ in range(2000):
            counts[RULES[rule]([p] * 3, draft, FreshNoise(), 0).accepted] += 1
        assert sum(one[rule]["lengths"]) == pytest.approx(1, abs=1e-12)
        assert abs(counts / 2000 - one[rule]["lengths"]).max() < 0.06  # over five deviations


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: schedule(0, 0.1, 1.0, 0),
        lambda: schedule(9, 0.1, 1.0, 0),
        lambda: schedule(4, 0.1, 1.0, -1),
        lambda: curve(0.8, 13, 0.1, 1.0),
        lambda: curve(1.1, 4, 0.1, 1.0),
        lambda: curve(0.8, 4, float("nan"), 1.0),
        lambda: curve(0.8, 4, 0.1, 0.0),
        lambda: verification(0.0, 2),
        lambda: verification(0.5, 5),
    ],
)
def test_what_the_sliders_do_not_offer_is_refused(wrong: object) -> None:
    with pytest.raises(ParameterError):
        wrong()


def test_the_routes() -> None:
    client = TestClient(figures_app())
    query = "alpha=.8&draft_length=4&draft_cost=.1&verify_cost=1"
    assert client.get(f"/explain/speedup?{query}").json() == curve(0.8, 4, 0.1, 1.0)
    assert client.get("/explain/rounds").json() == rounds()
    assert client.get("/explain/correction").json() == correction()
    assert client.get("/explain/verification?mass=.5&draft_length=1").json()["p"]
    assert client.get("/explain/schedule?draft_length=2&draft_cost=0&verify_cost=1&seed=3").json()[
        "same"
    ]
    for wrong in ("", "?alpha=1", f"?{query}&more=1", f"?{query.replace('4', 'x')}"):
        answer = client.get(f"/explain/speedup{wrong}")
        assert answer.status_code == 400
        assert answer.json()["error"]["message"]
    assert client.get("/stats").status_code == 204


def test_the_page_allows_nothing_that_is_not_its_own() -> None:
    client = TestClient(figures_app())
    for path in ("/", "/page/main.js", "/page/base.css"):
        answer = client.get(path)
        assert answer.status_code == 200
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'")
        assert "unsafe" not in policy
    assert client.get("/page/../explain.py").status_code == 404


def test_the_files_come_with_the_package_and_ask_for_nothing_else() -> None:
    folder = files("draftproof.server") / "page"
    found = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()}
    index = found["index.html"]
    assert {"main.js", "base.css", "icon.svg"} <= found.keys()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! type=\"module\" src=)", index)
    for name, text in found.items():
        addresses = set(re.findall(r"https?://[^\"' )]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not addresses, name
        assert "innerHTML" not in text
        assert len(text.splitlines()) < 300


COMMAND = """
import sys
from draftproof.cli import cli, main
from draftproof.commands.explain import explain
cli.add_command(explain)
sys.exit(main())
"""


def test_the_command_serves_until_it_is_interrupted() -> None:
    command = [sys.executable, "-c", COMMAND, "explain"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        url = process.stdout.readline().decode().split()[0]
        with urlopen(url) as answer:
            assert b"Draftproof" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert process.stderr.read().strip() == b""
