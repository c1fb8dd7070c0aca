"""A mistake on the command line: one line on standard error that says what to do, exit code 2."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from draftproof.cli import main
from draftproof.models import LOADERS
from draftproof.models.table import TABLES, LetterTokenizer, TableModel

PAIR = ("--target", "table:markov", "--draft", "table:markov-draft")


def refusal(capsys: pytest.CaptureFixture[str], *args: str, code: int = 2) -> str:
    """The one line a mistake gives."""
    assert main(list(args)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("draftproof: error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    return err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["generate"], "Missing option '--target' (see draftproof generate --help)"),
        (["generate", "--bogus"], "No such option '--bogus'"),
        (["gen"], "No such command 'gen' (see draftproof --help)"),
        (["generate", *PAIR, "a", "b"], "unexpected extra argument (b)"),
        (["generate", *PAIR, "a", "--top-k", "x"], "'x' is not a valid integer"),
        (["generate", *PAIR, "a", "--rule", "lenient"], "'lenient' is not one of"),
        (["generate", *PAIR, "a", "--temperature", "-1"], "temperature must be 0"),
        (["generate", *PAIR, "a", "--temperature", "1", "--top-p", "2"], "top_p must lie"),
        (["generate", *PAIR, "a", "--max-tokens", "0"], "0 is not in the range x>=1"),
        (["generate", *PAIR, "a", "--draft-length", "-1"], "draft_length must be"),
        (["generate", *PAIR, "a", "--json", "--show-rejected"], "shows nothing with --json"),
        (["generate", *PAIR, "a", "--stop", ""], "'--stop': it is empty: give it some text"),
        (["generate", *PAIR, ""], "the prompt is empty"),
        (["generate", *PAIR, " \n"], "the prompt is empty"),
        (["generate", *PAIR, "\udcff"], "it is not UTF-8 text"),
        (["generate", *PAIR, "xyz"], "knows the letters a to d only"),
        (["generate", *PAIR, "a" * 64], "64 tokens and the context 64: shorten"),
        (["generate", *PAIR, "a", "--context-length", "1"], "1 tokens and the context 1"),
        (["generate", "--target", "table:no", "a"], "no table is called 'no'"),
        (["generate", *PAIR, "a", "--prompt-file", "/no/such"], "No such file or directory"),
        (["generate", *PAIR, "--prompt-file", "/"], "directory"),
        (["generate", *PAIR, "a", "--prompt-file", os.devnull], "two prompts"),
        (["generate", *PAIR, "--prompt-file", os.devnull], "the prompt is empty"),
        (["generate", "--target", "", "a"], "the model is empty"),
        (["generate", "--target", "table:markov", "--draft", "", "a"], "the drafter is empty"),
        (["chat", *PAIR, "hello"], "unexpected extra argument (hello) (see draftproof chat"),
    ],
)
def test_a_mistake_is_one_line(
    capsys: pytest.CaptureFixture[str], args: list[str], says: str
) -> None:
    assert says in refusal(capsys, *args)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--draft", "none", "--draft-length", "2"], "--draft-length needs a drafter"),
        (["--draft", "none", "--rule", "token"], "--rule needs a drafter"),
        (["--draft", "none", "--cross-vocabulary"], "--cross-vocabulary needs a drafter"),
        (
            ["--draft", "lookup", "--cross-vocabulary=text"],
            "--cross-vocabulary needs a draft model",
        ),
        (["--draft", "quantize:Q8_0", "--cross-vocabulary"], "needs a draft model"),
        (["--draft", "lookup,quantize:Q8_0", "--cross-vocabulary"], "--cross-vocabulary needs a d"),
        (["--cross-vocabulary", "both"], "'both' is not one of 'auto', 'tokens', 'text'"),
        (["--draft", "lookup", "--temperature", "1", "--rule", "block"], "not used by lookup"),
        (["--temperature", "1", "--rule", "block", "--seed", "1"], "leave the rule out"),
        (["--top-p", "0.9"], "--top-p changes nothing at temperature 0: give a --temperature"),
        (["--seed", "1"], "--seed changes nothing at temperature 0"),
        (["--temperature", "0", "--top-k", "2", "--seed", "3"], "--top-k changes nothing"),
        (["--temperature", "0", "--rule", "match"], "--rule changes nothing"),
        (["--draft-length", "0", "--temperature", "1", "--rule", "token"], "--rule needs drafts"),
        (["--draft-length", "0", "--show-rejected"], "--show-rejected needs drafts"),
        (["--raw", "--system", "Hi"], "--system needs the chat template"),
        (["--system", "Hi"], "no chat template to put --system into"),
        (["--threads", "2"], "--threads does nothing for a table"),
        (["--gpu-layers", "-1"], "--gpu-layers does nothing for a table"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    capsys: pytest.CaptureFixture[str], args: list[str], says: str
) -> None:
    assert says in refusal(capsys, "generate", *PAIR, "a", *args)


def test_options_that_go_together_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    for args in (
        ["--temperature", "0.5", "--seed", "1", "--top-k", "2"],
        ["--draft", "lookup,table:markov-draft", "--cross-vocabulary"],
        ["--draft", "lookup", "--draft-length", "2"],
        ["--draft", "lookup", "--temperature", "1", "--rule", "match"],
        ["--temperature", "1", "--rule", "match", "--seed", "1"],
        ["--raw"],
    ):
        assert main(["generate", *PAIR, "a", *args]) == 0
    assert capsys.readouterr().err == ""


def test_a_draft_model_anywhere_in_a_chain_may_be_of_another_vocabulary(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chain = ("--draft", "quantize:Q8_0,table:markov-draft", "--cross-vocabulary")
    line = refusal(capsys, "generate", "--target", "table:markov", "a", *chain)
    assert "quantize needs a target in a GGUF file" in line


def test_a_prompt_that_is_not_utf8_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "latin"
    file.write_bytes(b"ab\xff")
    assert "latin is not UTF-8 text (byte 2)" in refusal(
        capsys, "generate", *PAIR, "--prompt-file", str(file)
    )


class Capitals(LetterTokenizer):
    """Another vocabulary of the same size."""

    def vocabulary(self) -> list[str]:
        return [letter.upper() for letter in super().vocabulary()]


def test_a_draft_of_another_vocabulary_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = TableModel(TABLES["markov"], "capitals")
    model.tokenizer = Capitals(4)
    monkeypatch.setitem(LOADERS, "toy", lambda *_: model)
    line = refusal(capsys, "generate", "--target", "table:markov", "--draft", "toy:x", "a")
    assert "capitals has another tokenizer than table:markov" in line
    assert "add --cross-vocabulary" in line


def test_names_cannot_break_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, "generate", "--target", "table:\x1b[31m\nx", "a")
    assert "\x1b" not in line


@pytest.mark.model
def test_files_that_are_no_model_are_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny: dict[str, Path]
) -> None:
    assert "no.gguf" in refusal(capsys, "generate", "--target", str(tmp_path / "no.gguf"), "a")
    other = tmp_path / "other.gguf"
    other.write_text("this is not a model")
    assert "other.gguf" in refusal(capsys, "generate", "--target", str(other), "a")
    whole = next(iter(tiny.values())).read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: len(whole) // 2])
    assert "cut.gguf" in refusal(capsys, "generate", "--target", str(cut), "a")
