"""The command line: what goes to which stream, exit codes, and one line for every mistake."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import draftproof
from draftproof import ModelOptions, SamplingParams, Speculation
from draftproof.__main__ import main as start
from draftproof.cli import cli, main

PAIR = (
    *("--target", "table:markov", "--draft", "table:markov-draft"),
    *("--draft-length", "4"),
)
ENDLESS = (*PAIR, "--context-length", "1000000", "--max-tokens", "1000000")
PLAIN = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "draftproof", *args]


def run(*args: str, given: str | bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    data = given.encode() if isinstance(given, str) else given
    return subprocess.run(
        command(*args), input=data, capture_output=True, timeout=30, env=PLAIN | env
    )


# What is written where


def test_a_pipe_gets_the_text_and_one_line_end() -> None:
    plain = run("generate", "--target", "table:markov", "ab", "--max-tokens", "9")
    assert (plain.returncode, plain.stdout, plain.stderr) == (0, b"cabcabcab\n", b"")
    drafted = run("generate", *PAIR, "ab", "--max-tokens", "9")
    assert (drafted.returncode, drafted.stdout, drafted.stderr) == (0, b"cabcabcab\n", b"")


def test_json_is_one_document_with_the_promised_keys() -> None:
    done = run("generate", *PAIR, "ab", "--max-tokens", "9", "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    document = json.loads(done.stdout)
    assert list(document) == ["text", "token_ids", "finish_reason", "stats"]
    assert document["text"] == "cabcabcab"
    assert document["token_ids"] == [2, 0, 1, 2, 0, 1, 2, 0, 1]
    assert document["finish_reason"] == "length"
    stats = document["stats"]
    promised = {
        *("prompt_tokens", "completion_tokens", "rounds", "drafted", "evaluated", "accepted"),
        *("acceptance_rate", "acceptance_length", "accepted_at_position", "seconds"),
        *("tokens_per_second", "ttft"),
    }
    assert promised <= set(stats)
    assert set(stats["seconds"]) == {"load", "prefill", "draft", "verify", "other", "total"}
    assert (stats["prompt_tokens"], stats["completion_tokens"], stats["rounds"]) == (2, 9, 2)
    assert (stats["drafted"], stats["accepted"], stats["acceptance_rate"]) == (7, 7, 1.0)


def test_the_prompt_comes_from_a_file_or_a_pipe(tmp_path: Path) -> None:
    options = ("generate", *PAIR, "--max-tokens", "3")
    assert run(*options, given="ab\n").stdout == b"cab\n"
    assert run(*options, "--prompt-file", "-", given=b"\xef\xbb\xbfab\r\n").stdout == b"cab\n"
    file = tmp_path / "prompt"
    file.write_text("ab\n")
    assert run(*options, "--prompt-file", str(file), given="xx").stdout == b"cab\n"


def test_options_reach_the_library() -> None:
    seeded = ("generate", *PAIR, "ab", "--temperature", "1", "--seed", "3", "--json")
    first, second = (json.loads(run(*seeded).stdout) for _ in range(2))
    assert first["text"] == second["text"]
    stopped = run("generate", *PAIR, "ab", "--stop", "x", "--stop", "bc")
    assert stopped.stdout == b"ca\n"
    shorter = run("generate", *PAIR, "ab", "--draft-length", "1", "--max-tokens", "8", "--json")
    assert json.loads(shorter.stdout)["stats"]["drafted"] == 4


@pytest.mark.model
def test_the_template_is_used_unless_raw(
    capsys: pytest.CaptureFixture[str], tiny: dict[str, Path]
) -> None:
    def prompt_tokens(*args: str) -> int:
        target = ("--target", str(tiny["llama"]), "--threads", "1", "--max-tokens", "1")
        assert main(["generate", *target, "--json", "hello", *args]) == 0
        return json.loads(capsys.readouterr().out)["stats"]["prompt_tokens"]

    raw, chat, system = prompt_tokens("--raw"), prompt_tokens(), prompt_tokens("--system", "Hi")
    assert raw < chat < system


def test_verbose_logs_a_line_per_request() -> None:
    done = run("generate", *PAIR, "ab", "--max-tokens", "9", "--verbose")
    assert done.stdout == b"cabcabcab\n"
    assert re.fullmatch(
        rb"draftproof: request 0: length, .* 7 accepted, 0 rejected.*\n", done.stderr
    )


def test_version() -> None:
    assert run("--version").stdout == f"draftproof {draftproof.__version__}\n".encode()


def test_help_shows_every_default_and_loads_no_model_library() -> None:
    program = (
        "import sys; from draftproof.cli import main; main(['generate', '--help']);"
        "sys.exit(bool({'llama_cpp', 'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    for entry in re.split(r"\n  (?=-)", done.stdout.split("Options:\n", 1)[1])[1:-1]:
        takes_a_value = re.match(r"--[a-z-]+ \S", entry)
        shown = re.search(r"\[(default:|required)", entry)
        assert bool(shown) == bool(takes_a_value), entry


LIBRARY_ONLY = ("max_sequences", "processors")
SCORES = ("logprobs", "prompt_logprobs")


def test_defaults_are_the_librarys() -> None:
    for name in ("generate", "chat"):
        options = {option.name: option for option in cli.commands[name].params}
        for kind in (SamplingParams, Speculation, ModelOptions):
            for field in fields(kind):
                if field.name not in (*LIBRARY_ONLY, *(SCORES if name == "chat" else ())):
                    assert options[field.name].default == field.default


def test_no_command_shows_the_help() -> None:
    done = run()
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"Usage: draftproof")


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    child = subprocess.Popen(
        command("generate", *ENDLESS, "ab"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdout.read(100).startswith(b"cabcab")
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait(timeout=30) == 1
    child.stderr.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command("generate", *PAIR, "ab"), stdout=full, stderr=subprocess.PIPE, timeout=30
        )
    assert done.returncode == 1
    assert re.fullmatch(rb"draftproof: error: .*No space left on device\n", done.stderr)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "args", [("generate", "--target", "table:no", "hi"), ("generate", "--bogus")]
)
def test_an_error_that_cannot_be_written_keeps_its_exit_code(args: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command(*args), stdout=subprocess.PIPE, stderr=full, timeout=30)
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_closed_streams_are_no_trouble(closed: str) -> None:
    line = " ".join(command("generate", *PAIR, "ab", "--max-tokens", "3"))
    done = subprocess.run(["sh", "-c", f"{line} {closed}"], capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == (b"" if closed == ">&-" else b"cab\n")


# Ctrl-C


@pytest.fixture
def endless() -> Iterator[subprocess.Popen[bytes]]:
    """An answer in mid-flight."""
    child = subprocess.Popen(
        command("generate", *ENDLESS, "ab"),
        bufsize=0,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with child:
        yield child
        child.kill()


def test_ctrl_c_keeps_what_there_is(endless: subprocess.Popen[bytes]) -> None:
    assert endless.stdout is not None
    head = b""
    while len(head) < 60:  # an unbuffered read may return less
        head += endless.stdout.read(60 - len(head))
    assert head.startswith(b"cab")
    endless.send_signal(signal.SIGINT)
    rest, err = endless.communicate(timeout=30)
    assert endless.returncode == 130
    assert re.fullmatch(rb"(cab)*c?a?\n", head + rest)
    assert err == b""


def test_ctrl_c_while_it_starts_is_quiet() -> None:
    program = """
import runpy, sys
class Interrupted:
    def find_spec(self, name, *_):
        if name == "draftproof.cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
runpy.run_module("draftproof", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_the_console_command_begins_there_too() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"draftproof": f"{start.__module__}:{start.__name__}"}


# Conversations over a pipe


def test_chat_answers_line_by_line() -> None:
    done = run("chat", *PAIR, "--max-tokens", "2", given="ab\n\n/clear\nb\n/exit\nc\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"ca\nca\n", b"")


def test_chat_keeps_its_history_and_clear_forgets_it() -> None:
    """Only the last answer's room tells how long the history is: 8 tokens in all."""
    options = ("chat", *PAIR, "--context-length", "8", "--max-tokens", "2")
    kept = run(*options, given="ab\nbc\n")
    assert kept.stdout == b"ca\nab\n"
    outgrown = run(*options, given="ab\nbc\nab\nb\n/clear\nb\n")
    assert outgrown.stdout == b"ca\nab\nca\n"
    says = b"the conversation has %d tokens and the context 8: /clear starts a new one\n"
    assert outgrown.stderr.split(b"draftproof: error: ") == [b"", says % 10, says % 9]
    assert outgrown.returncode == 2


def test_chat_goes_on_after_a_mistake() -> None:
    done = run("chat", *PAIR, "--max-tokens", "2", given="xyz\n/what\nab\n")
    assert done.stdout == b"ca\n"
    assert [line.split(b": ")[2] for line in done.stderr.splitlines()] == [
        b"this model knows the letters a to d only, not 'x'",
        b"no command /what",
    ]
    assert done.returncode == 2


def test_chat_skips_a_line_that_is_not_utf8() -> None:
    done = run("chat", *PAIR, "--max-tokens", "2", given=b"ab\n\xff\nb\xff\nbc\n")
    assert (done.returncode, done.stdout) == (2, b"ca\nab\n")
    says = "draftproof: error: a line of standard input is not UTF-8 text (byte %d): convert it"
    assert [line[: len(says) - 1] for line in done.stderr.decode().splitlines()] == [
        says % 0,
        says % 1,
    ]


def test_chat_reuses_the_cache() -> None:
    done = run("chat", *PAIR, "--max-tokens", "4", "--verbose", given="ab\nabc\n")
    assert b"2 prompt and 4 completion" in done.stderr
    assert b"9 prompt and 4 completion" in done.stderr


def test_explain_tells_what_each_round_did_on_standard_error() -> None:
    fixed = run("generate", *PAIR, "ab", "--max-tokens", "9", "--explain")
    assert fixed.stdout == b"cabcabcab\n"
    first, second = fixed.stderr.decode().splitlines()
    assert re.fullmatch(
        r"draftproof: round 1: 4 drafted, 4 accepted, 5 tokens in [\d.e+]+ ms", first
    )
    assert "3 drafted, 3 accepted, 4 tokens" in second
    auto = ("--draft-length", "auto", "--ignore-eos", "--max-tokens", "40")
    done = run("generate", *PAIR, "ab", "--explain", *auto)
    assert re.search(rb"expected \d\.\d\d in [\d.e+-]+ ms", done.stderr)


@pytest.mark.parametrize("length", ["-1", "x", "1.5", "Auto"])
def test_a_draft_length_is_a_number_or_auto(length: str) -> None:
    done = run("generate", *PAIR, "ab", "--draft-length", length)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.count(b"\n") == 1
