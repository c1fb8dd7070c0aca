"""What a person sees, on a real pseudo-terminal: colours, statistics, progress, a conversation."""

from __future__ import annotations

import logging
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from draftproof.stats import Completion, Stats
from draftproof.terminal import (
    STYLES,
    Interrupt,
    Notices,
    Terminal,
    one_line,
    printable,
    statistics_line,
)
from draftproof.types import Origin, Piece

pty = pytest.importorskip("pty")

PAIR = (
    *("--target", "table:markov", "--draft", "table:markov-draft"),
    *("--draft-length", "4"),
)
ENDLESS = (*PAIR, "--context-length", "1000000", "--max-tokens", "1000000")
GREEN, MAGENTA, CYAN = "\x1b[32m", "\x1b[1;35m", "\x1b[36m"
OWN = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS")
BASE = {name: value for name, value in os.environ.items() if name not in OWN}


class Screen:
    """A program on a terminal of its own."""

    def __init__(self, *args: str, **env: str) -> None:
        self.master, slave = pty.openpty()
        self.seen = ""
        self.child = subprocess.Popen(
            [sys.executable, "-m", "draftproof", *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=BASE | {"TERM": "xterm-256color", "COLUMNS": "200"} | env,
            preexec_fn=lambda: _control(slave),
        )
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def expect(self, text: str) -> str:
        """Read on until ``text``; returns all that was seen before it since the last call."""
        deadline = time.monotonic() + 20
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen[-2000:]
            assert self._read(), self.seen[-2000:]
        before, _, self.seen = self.seen.partition(text)
        return before

    def prompt(self) -> None:
        """Wait for the prompt, and a moment more: a Ctrl-C in the same instant would be missed."""
        self.expect("> ")
        time.sleep(0.2)

    def _read(self) -> bool:
        """Take in what there is; False at the end."""
        if select.select([self.master], [], [], 0.1)[0]:
            with suppress(OSError):
                data = os.read(self.master, 65536)
                self.seen += data.decode(errors="replace")
                return bool(data)
            return False
        return True

    def end(self) -> str:
        """The rest of what it shows; it must end by itself."""
        while self._read():
            pass
        self.child.wait(timeout=20)
        return self.seen

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        os.close(self.master)


def _control(slave: int) -> None:
    """Make it the terminal that Ctrl-C comes from."""
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)


@pytest.fixture
def screens() -> Iterator[list[Screen]]:
    opened: list[Screen] = []
    yield opened
    for screen in opened:
        screen.close()


def generate(screens: list[Screen], *args: str, **env: str) -> str:
    screens.append(Screen("generate", *PAIR, *args, **env))
    return screens[-1].end()


def lines(shown: str) -> list[str]:
    """What stays on the screen, without colours; bars are gone."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    return [line.rpartition("\r")[2] for line in text.replace("\r\n", "\n").splitlines()]


def test_tokens_are_coloured_by_origin(screens: list[Screen]) -> None:
    shown = generate(screens, "ab", "--temperature", "1", "--seed", "5", "--max-tokens", "40")
    for colour in (GREEN, MAGENTA, CYAN):
        assert re.search(re.escape(colour) + "[abc]+\x1b\\[0m", shown)
    *_, legend, statistics = lines(shown)
    assert re.fullmatch(r"\d+ accepted \+ \d+ corrections? \+ \d+ bonus( \+ \d plain)?", legend)
    assert re.match(r"\d+ tokens in \d+ rounds, \d\.\d\d per target pass, drafts", statistics)


def test_statistics_say_what_happened(screens: list[Screen]) -> None:
    *_, text, legend, statistics = lines(generate(screens, "ab", "--max-tokens", "9"))
    assert text == "cabcabcab"
    assert legend == "7 accepted + 2 bonus"
    assert re.fullmatch(
        r"9 tokens in 2 rounds, 4\.50 per target pass, drafts 7 of 7 accepted \(100%\), "
        r"\d+\.\d tokens/s, first after \d\.\d\d s, cut off by length",
        statistics,
    )


def test_no_color_is_honoured(screens: list[Screen]) -> None:
    shown = generate(screens, "ab", "--max-tokens", "9", NO_COLOR="1")
    assert "\x1b[3" not in shown
    assert "\x1b[2m" not in shown
    assert lines(shown)[-2] == "cabcabcab"


def test_a_plain_terminal_gets_no_codes(screens: list[Screen]) -> None:
    shown = generate(screens, "ab", "--max-tokens", "9", TERM="dumb")
    assert "\x1b" not in shown
    assert "cabcabcab" in shown


def test_force_color_colours_a_pipe() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "draftproof", "generate", *PAIR, "ab", "--max-tokens", "2"],
        capture_output=True,
        text=True,
        env=BASE | {"FORCE_COLOR": "1"},
    )
    assert GREEN + "c" in done.stdout
    assert "2 tokens in 1 round" in done.stderr


def test_rejected_drafts_are_struck_through_and_not_in_plain_text() -> None:
    """Greedy lookup behind abab proposes ab again; the model goes on with c."""
    command = [sys.executable, "-m", "draftproof", "generate", "--target", "table:markov"]
    command += ["--draft", "lookup", "--draft-length", "4", "abaab", "--max-tokens", "4"]
    shown = {
        mode: subprocess.run(
            [*command, "--show-rejected"], capture_output=True, text=True, env=BASE | extra
        ).stdout
        for mode, extra in (("colour", {"FORCE_COLOR": "1"}), ("plain", {}))
    }
    struck, correction = "\x1b[9;31ma\x1b[0m", "\x1b[1;35mc"
    assert struck + correction in shown["colour"]
    assert shown["plain"] == "cabc\n"


def test_bars_show_loading_and_a_long_prompt_and_go_away(screens: list[Screen]) -> None:
    shown = generate(screens, "ab" * 3000, "--context-length", "9000", "--max-tokens", "3")
    assert "loading" in shown
    assert "reading the prompt" in shown
    assert "cab" in lines(shown)
    # The last thing done to the line of the bar is to erase it.
    assert shown.rindex("\x1b[2K") > shown.rindex("reading the prompt")


def test_json_on_a_terminal_leaves_the_document_alone(screens: list[Screen]) -> None:
    shown = lines(generate(screens, "ab", "--max-tokens", "9", "--json"))
    assert shown[-1].startswith('{"text": "cabcabcab", ')


def test_a_missing_prompt_on_a_terminal_is_one_line(screens: list[Screen]) -> None:
    assert lines(generate(screens)) == [
        "draftproof: error: no prompt: give it as an argument, with --prompt-file, or by a pipe"
    ]
    assert screens[0].child.returncode == 2


def test_text_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        Terminal().write([Piece("\x1b]0;x\x07\ta\n\x9b2J\r\x7f [bold]:smile:", Origin.ACCEPTED)])
        shown = os.read(master, 1000).decode()
    os.close(master)
    assert shown == "\\x1b]0;x\\x07\ta\r\n\\x9b2J\\x0d\\x7f [bold]:smile:"


def test_warnings_wait_for_the_end_of_the_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    warning = logging.LogRecord("x", logging.WARNING, "", 0, "%d\nslow " + "x" * 99, (3,), None)
    terminal.write([Piece("a", Origin.PLAIN)])
    Notices(terminal).emit(warning)
    assert capsys.readouterr() == ("a", "")
    terminal.line()
    assert capsys.readouterr() == ("\n", "draftproof: warning: 3 slow " + "x" * 99 + "\n")


def test_a_pipe_gets_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().write([Piece("\x1b[2J\r\x07 ", Origin.BONUS), Piece("\tx" * 200, Origin.PLAIN)])
    assert capsys.readouterr().out == "\x1b[2J\r\x07 " + "\tx" * 200


def test_messages_are_one_printable_line() -> None:
    assert one_line(" a\n\tb\x1b[0m ") == "a b\\x1b[0m"
    assert printable("é日\n\t") == "é日\n\t"


def test_statistics_without_rounds_or_drafts() -> None:
    nothing = Completion("", (), "cancelled", Stats(prompt_tokens=9))
    assert statistics_line(nothing) == "0 tokens in 0 rounds, interrupted"
    one = Stats(prompt_tokens=9, cached_tokens=4, rounds=1, plain=1, first=1, total=0.5, ttft=0.5)
    assert statistics_line(Completion("a", (0,), "stop", one)) == (
        "1 token in 1 round, 1.00 per target pass, no drafts, 2.0 tokens/s, first after 0.50 s, "
        "4 of 9 prompt tokens cached"
    )


def test_ctrl_c_prints_the_statistics(screens: list[Screen]) -> None:
    screens.append(Screen("generate", *ENDLESS, "ab"))
    screen = screens[0]
    screen.expect("\x1b[36mb")
    screen.type("\x03")
    assert lines(screen.end())[-1].endswith(", interrupted")
    assert screen.child.returncode == 130


def test_a_second_ctrl_c_raises() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        assert not interrupt.asked
        signal.raise_signal(signal.SIGINT)
        assert interrupt.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


def test_a_conversation(screens: list[Screen]) -> None:
    """History, commands, Ctrl-C in an answer, at the prompt, and Ctrl-D."""
    screens.append(Screen("chat", *ENDLESS, NO_COLOR="1"))
    screen = screens[0]
    screen.prompt()
    screen.type("ab\r")
    screen.expect("cabcabcab")
    screen.type("\x03")
    screen.expect("interrupted")
    screen.prompt()
    screen.type("/help\r")
    screen.expect("/clear")
    screen.prompt()
    screen.type("cc\r")
    screen.expect("abcabcabc")
    screen.type("\x03")
    screen.expect("prompt tokens cached")
    screen.prompt()
    screen.type("\x03")
    screen.expect("Ctrl-C again or Ctrl-D leaves")
    screen.prompt()
    screen.type("\x04")
    screen.end()
    assert screen.child.returncode == 0


def test_ctrl_c_twice_at_the_prompt_leaves(screens: list[Screen]) -> None:
    screens.append(Screen("chat", *PAIR))
    screen = screens[0]
    screen.prompt()
    screen.type("\x03")
    screen.expect("leaves")
    screen.prompt()
    screen.type("\x03")
    screen.end()
    assert screen.child.returncode == 0


def test_every_origin_has_a_style() -> None:
    assert STYLES.keys() == set(Origin)
