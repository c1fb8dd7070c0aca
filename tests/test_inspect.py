"""What is said of a model before it is loaded is what loading it gives."""

from __future__ import annotations

import json
import logging
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

import tiny_gguf
from draftproof import ModelLoadError, ModelOptions, PairError, ParameterError, load_model
from draftproof import inspect as module
from draftproof.cli import main
from draftproof.inspect import compare, inspect
from draftproof.models.describe import Description, describe
from draftproof.models.describe_gguf import describe_quantized

MARKOV, DRAFT = "table:markov", "table:markov-draft"


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with one key-value head for two heads, and keys wider than its embedding says."""
    path = tmp_path_factory.mktemp("grouped") / "grouped.gguf"
    writer = tiny_gguf.Writer(path, "llama", 7, kv_heads=1)
    size, width, head = writer.bpe(), tiny_gguf.WIDTH, 64
    writer.out.add_key_length(head)
    writer.out.add_value_length(head)
    writer.tensor("token_embd.weight", size, width)
    writer.tensor("output_norm.weight", width)
    for layer in range(tiny_gguf.LAYERS):
        at = f"blk.{layer}."
        writer.tensor(at + "attn_norm.weight", width)
        writer.tensor(at + "attn_q.weight", 2 * head, width)
        writer.tensor(at + "attn_k.weight", head, width)
        writer.tensor(at + "attn_v.weight", head, width)
        writer.tensor(at + "attn_output.weight", width, 2 * head)
        tiny_gguf._feed_forward(writer, at)
    writer.close()
    return path


# GGUF files


def test_the_demo_model(demo_path: str) -> None:
    found = describe("demo")
    assert found.path == demo_path
    assert (found.architecture, found.layers, found.embedding) == ("llama", 30, 576)
    assert (found.heads, found.kv_heads) == (9, (3,) * 30)
    assert (found.vocabulary, found.tokenizer) == (49152, "byte-level BPE")
    assert found.context_length == 8192
    assert list(found.types) == ["Q4_1", "Q8_0", "F32"]
    assert 0 < Path(demo_path).stat().st_size - found.weight_bytes < 3_000_000  # the header


@pytest.mark.model
@pytest.mark.parametrize("name", ["demo", "llama", "grouped", "gemma2", "lfm2", "mamba", "padded"])
def test_a_file_is_what_llama_cpp_makes_of_it(
    name: str,
    tiny: dict[str, Path],
    grouped: Path,
    demo_path: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from draftproof.models.gguf import load
    from draftproof.models.gguf_load import load_weights
    from draftproof.models.llama import lib

    path = Path({**tiny, "grouped": grouped, "demo": demo_path}[name])
    found = describe(str(path))
    weights = load_weights(path, ModelOptions(), None)
    vocabulary = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(weights))
    assert found.parameters == lib.llama_model_n_params(weights)
    assert found.weight_bytes == lib.llama_model_size(weights)
    assert found.layers == lib.llama_model_n_layer(weights)
    assert found.embedding == lib.llama_model_n_embd(weights)
    assert found.context_length == lib.llama_model_n_ctx_train(weights)
    assert (found.window or 0) == lib.llama_model_n_swa(weights)
    assert found.vocabulary == len(found.tokens) == vocabulary
    state = lib.llama_model_is_recurrent(weights) or lib.llama_model_is_hybrid(weights)
    assert found.recurrent == bool(state)
    lib.llama_model_free(weights)
    with caplog.at_level(logging.DEBUG, "draftproof.llama"):
        model = load(str(path), ModelOptions(context_length=512, max_sequences=2, threads=1))
    assert list(found.tokens) == model.tokenizer.vocabulary()
    model.close()
    sizes = re.findall(r"llama_kv_cache: size = +([\d.]+) MiB", caplog.text)
    assert sum(map(float, sizes)) == pytest.approx(1024 * found.cache_bytes / 2**20, abs=0.02)


@pytest.mark.model
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "F16"])
def test_the_estimate_of_a_copy(kind: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue({"Q4_0": "q40_path", "Q8_0": "q8_path", "F16": "f16_path"}[kind])
    guess, real = describe_quantized("copy", describe("demo"), kind.lower()), describe(path)
    assert guess.estimated
    assert guess.weight_bytes == pytest.approx(real.weight_bytes, rel=0.01)
    assert guess.cache_bytes == real.cache_bytes


def test_every_type_of_the_quantiser_has_an_estimate() -> None:
    demo = describe("demo")
    sizes = {}
    for kind in gguf.LlamaFileType:
        name = kind.name.removeprefix("ALL_").removeprefix("MOSTLY_")
        if name != "GUESSED":
            sizes[name] = describe_quantized("copy", demo, name).weight_bytes
    assert sizes["Q2_K"] < sizes["Q4_0"] < sizes["Q5_0"] < sizes["Q8_0"] < sizes["F16"]
    with pytest.raises(ParameterError, match="no type 'Q9' to quantise to"):
        describe_quantized("copy", demo, "Q9")


def test_a_split_file_is_its_parts(tiny: dict[str, Path], tmp_path: Path) -> None:
    """Metadata in the first, tensors in all."""
    names = [tmp_path / f"m-{i:05}-of-00002.gguf" for i in (1, 2)]
    for number, path in enumerate(names):
        writer = tiny_gguf.Writer(path, "llama", 1)
        writer.bpe()
        writer.out.add_uint16("split.count", 2)
        writer.out.add_uint16("split.no", number)
        writer.tensor(f"blk.{number}.attn_q.weight", 64, 64)
        writer.close()
    assert describe(str(names[0])).parameters == 2 * 64 * 64
    with pytest.raises(ModelLoadError, match=r"is one of 2 parts: give the first, NAME-00001-of"):
        describe(str(names[1]))
    names[1].unlink()
    with pytest.raises(ModelLoadError, match=r"m-00002-of-00002.gguf: no such file"):
        describe(str(names[0]))


def test_a_file_cut_anywhere_is_one_line(tiny: dict[str, Path], tmp_path: Path) -> None:
    data, file = tiny["llama"].read_bytes(), tmp_path / "cut.gguf"
    for length in [0, 3, 4, 7, 23, 24, 40, *np.linspace(50, len(data) - 1, 40, dtype=int)]:
        file.write_bytes(data[:length])
        with pytest.raises(ModelLoadError, match=r"cut\.gguf") as caught:
            describe(str(file))
        assert "\n" not in str(caught.value)
    file.write_bytes(data)
    describe(str(file))


def test_a_broken_header_is_refused_or_read(tiny: dict[str, Path], tmp_path: Path) -> None:
    data, file = tiny["llama"].read_bytes(), tmp_path / "broken.gguf"
    coin, refused = np.random.default_rng(0), 0
    for _ in range(300):
        broken = bytearray(data)
        for at in coin.integers(4, 1500, 3):
            broken[at] = coin.integers(256)
        file.write_bytes(broken)
        try:
            describe(str(file))
        except ModelLoadError:
            refused += 1
    assert refused > 100


def test_what_cannot_generate_says_so(tmp_path: Path) -> None:
    for path, why in (
        (tiny_gguf.t5_encoder(tmp_path / "t5.gguf"), "an encoder"),
        (tiny_gguf.llama(tmp_path / "pool.gguf", pooling=True), "embedding or reranking"),
        (tiny_gguf.llama(tmp_path / "mute.gguf", tokenizer="no_tokenizer"), "no tokenizer"),
    ):
        found = inspect(str(path))
        assert not found.works
        assert why in found.problems[0]


def test_only_the_header_is_read(tiny: dict[str, Path], tmp_path: Path) -> None:
    """A file of 8 GB, nearly all of it a hole, and nothing that runs models is imported."""
    path = tmp_path / "huge.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    for add in (writer.add_block_count, writer.add_context_length, writer.add_embedding_length):
        add(1)
    writer.add_tensor_info("blk.0.huge", (2**31,), np.dtype(np.float32), 2**33)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + 64 + 2**33)
    code = f"""
import sys, draftproof.models.describe as d
assert d.describe({str(path)!r}).weight_bytes == 2**33
print(*(name for name in ("torch", "transformers", "llama_cpp") if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr) == ("\n", "")


# Hugging Face checkpoints


def save(folder: Path, kind: str, **changes: object) -> tuple[object, Path]:
    """A tiny random checkpoint with a byte-level tokenizer."""
    import transformers
    from tokenizers import Tokenizer, models

    common = {
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }
    gpt2 = {"vocab_size": 300, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128}
    given = gpt2 if kind == "GPT2" else common
    config = getattr(transformers, f"{kind}Config")(**given | changes)
    name = kind.removesuffix("Text")
    model = transformers.AutoModelForCausalLM.from_config(config)
    path = folder / name
    model.save_pretrained(path, max_shard_size="60KB" if kind == "Llama" else "1GB")
    letters = tiny_gguf.vocabulary()[0]
    Tokenizer(models.BPE({text: i for i, text in enumerate(letters)}, [])).save(
        str(path / "tokenizer.json")
    )
    return model, path


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Llama", {"tie_word_embeddings": True}),
        ("Qwen2", {"use_sliding_window": False}),
        ("Qwen3", {"head_dim": 32}),
        ("Mistral", {"sliding_window": 16}),
        ("Gemma3Text", {"head_dim": 32, "sliding_window": 16}),
        ("GPT2", {}),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_is_what_transformers_makes_of_it(
    kind: str, changes: dict[str, object], dtype: str, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    model, path = save(tmp_path, kind, dtype=getattr(torch, dtype), **changes)
    found = describe(f"hf:{path}")
    config = model.config
    assert found.parameters == model.num_parameters()
    assert found.weight_bytes == sum(p.nbytes for p in model.parameters())
    assert (found.layers, found.embedding, found.heads) == (3, 64, 4)
    assert (found.vocabulary, found.context_length) == (300, 128)
    assert found.window == (16 if "sliding_window" in changes else None)
    cache = model(torch.zeros(1, 10, dtype=torch.int64), use_cache=True).past_key_values
    sizes = [part.nbytes for layer in cache.layers for part in (layer.keys, layer.values)]
    assert 10 * found.cache_bytes == sum(sizes)
    assert found.tokens == tuple(tiny_gguf.vocabulary()[0])
    assert not found.recurrent
    assert config.num_hidden_layers == len(found.kv_heads)
    wide = describe(f"hf:{path}", ModelOptions(dtype="float32"))
    assert (wide.weight_bytes, wide.parameters) == (4 * found.parameters, found.parameters)
    assert wide.cache_bytes == found.cache_bytes * (2 if dtype == "bfloat16" else 1)


def test_half_precision_on_a_cpu_and_recurrent_checkpoints(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    _, path = save(tmp_path, "Llama", dtype=torch.float16)
    spec = f"hf:{path}"
    assert "takes twice these bytes on a CPU" in inspect(spec).notes[0]
    on_cpu = inspect(spec, options=ModelOptions(device="cpu"))
    assert not on_cpu.notes
    assert on_cpu.weight_bytes == 2 * inspect(spec).weight_bytes
    config = path / "config.json"
    layers = ["linear_attention", "full_attention", "linear_attention"]
    config.write_text(json.dumps(json.loads(config.read_text()) | {"layer_types": layers}))
    found = inspect(spec)
    assert found.target.kv_heads == (0, 2, 0)
    assert "recurrent state" in found.problems[0]


def test_mistakes_in_a_checkpoint_are_one_line(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    _, path = save(tmp_path, "Llama")
    (part, *_) = sorted(path.glob("*.safetensors"))
    data = part.read_bytes()
    for content, why in ((data[:-1], "is cut off"), (data[:20], "cannot be read"), (b"", "read")):
        part.write_bytes(content)
        with pytest.raises(ModelLoadError, match=f"{part.name}.* {why}"):
            describe(f"hf:{path}")
    part.unlink()
    with pytest.raises(ModelLoadError, match=f"{part.name}: no such file"):
        describe(f"hf:{path}")
    config = path / "config.json"
    config.write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelLoadError, match=r"no such file|has no num_hidden_layers"):
        describe(f"hf:{path}")
    config.write_text("{")
    with pytest.raises(ModelLoadError, match=r"config\.json cannot be read"):
        describe(f"hf:{path}")
    config.unlink()
    with pytest.raises(ModelLoadError, match=r"config\.json: no such file"):
        describe(f"hf:{path}")
    with pytest.raises(ModelLoadError, match="org/name is no folder here: download it first"):
        describe("hf:org/name")
    with pytest.raises(ModelLoadError, match=f"or hf:{path} for a checkpoint"):
        describe(str(path))


# Pairs


def test_a_pair_that_can_work() -> None:
    found = inspect(MARKOV, DRAFT, ModelOptions(context_length=32, max_sequences=3))
    assert found.works
    assert [c.result for c in found.comparisons] == ["same"]
    assert (found.context_length, found.sequences) == (32, 3)


def test_bytes_add_up(tiny: dict[str, Path]) -> None:
    target, draft = (describe(str(tiny[name])) for name in ("llama", "padded"))
    found = inspect(target.spec, draft.spec, ModelOptions(context_length=256, max_sequences=4))
    assert found.weight_bytes == target.weight_bytes + draft.weight_bytes
    assert found.cache_bytes == 4 * 256 * (target.cache_bytes + draft.cache_bytes) > 0
    chained = inspect(target.spec, f"lookup,{draft.spec}", ModelOptions(context_length=256))
    index = module.LOOKUP_ENTRY * 256
    assert chained.cache_bytes == 256 * (target.cache_bytes + draft.cache_bytes) + index
    assert inspect(target.spec).cache_bytes == 512 * target.cache_bytes


def test_vocabularies(tiny: dict[str, Path]) -> None:
    def result(one: str, two: str) -> tuple[str, int | None]:
        found = compare(describe(str(tiny[one])), describe(str(tiny[two])))
        return found.result, found.token

    assert result("llama", "other") == ("same", None)
    assert result("llama", "padded") == ("padded", None)
    assert result("llama", "spm") == ("different", 0)
    nothing = replace(describe(MARKOV), tokens=None)
    assert compare(describe(MARKOV), nothing).result == "unknown"


@pytest.mark.parametrize(
    ("target", "drafter", "says"),
    [
        ("llama", "spm", "has another tokenizer than"),
        ("llama", "spm", "add --cross-vocabulary"),
        ("mamba", "llama", "cannot be speculated on: it has a recurrent state"),
        ("mamba", "lookup", "cannot be speculated on"),
        ("llama", "lfm2", "cannot draft: it has a recurrent state"),
    ],
)
def test_why_a_pair_cannot_work(
    tiny: dict[str, Path], target: str, drafter: str, says: str
) -> None:
    found = inspect(str(tiny[target]), str(tiny.get(drafter, drafter)))
    assert not found.works
    assert any(says in problem for problem in found.problems)


@pytest.mark.model
def test_what_is_said_to_fail_fails(tiny: dict[str, Path]) -> None:
    """The same reasons as when it is loaded."""
    from draftproof import Engine

    one_thread = ModelOptions(threads=1)
    for target, drafter in (("llama", "spm"), ("mamba", "lookup"), ("llama", "lfm2")):
        pair = str(tiny[target]), str(tiny.get(drafter, drafter))
        assert not inspect(*pair).works
        with pytest.raises(PairError):
            Engine(*pair, options=one_thread)
    for target, drafter in (("llama", "padded"), ("gemma2", "llama"), ("mamba", "none")):
        pair = str(tiny[target]), str(tiny.get(drafter, drafter))
        assert inspect(*pair).works
        Engine(*pair, options=one_thread).close()


def test_notes(tiny: dict[str, Path], tmp_path: Path) -> None:
    brief = tiny_gguf.llama(tmp_path / "brief.gguf")
    data = brief.read_bytes()
    at = data.index(b"llama.context_length") + len("llama.context_length") + 4
    brief.write_bytes(data[:at] + struct.pack("<I", 100) + data[at + 4 :])
    found = inspect(str(tiny["llama"]), str(brief))
    assert found.works
    assert "drafts in the first 100 tokens of a text" in found.notes[0]
    assert "state of" in inspect(str(tiny["mamba"])).notes[0]


def test_an_early_exit_takes_nothing(tiny_checkpoint: Path) -> None:
    target = f"hf:{tiny_checkpoint}"
    plain, found = inspect(target), inspect(target, "early-exit:2")
    assert found.works
    assert (found.drafts, found.comparisons) == ((), ())
    assert (found.weight_bytes, found.cache_bytes) == (plain.weight_bytes, plain.cache_bytes)
    (note,) = found.notes
    assert note == (
        f"early-exit:2 drafts with the first 2 of the 3 layers of {target}: "
        "it takes no weights and no cache of its own"
    )
    (note,) = inspect(target, "early-exit").notes
    assert "drafts with as many as measuring finds best of the 3 layers" in note
    index = inspect(target, "lookup,early-exit:1").cache_bytes - plain.cache_bytes
    assert index == module.LOOKUP_ENTRY * plain.context_length


@pytest.mark.parametrize("drafter", ["early-exit:0", "early-exit:3", "lookup,early-exit:9"])
def test_an_early_exit_that_cannot_be(tiny_checkpoint: Path, drafter: str) -> None:
    with pytest.raises(PairError, match="has 3 layers: give early-exit:1 to early-exit:2"):
        inspect(f"hf:{tiny_checkpoint}", drafter)
    with pytest.raises(PairError, match="needs a target loaded as hf:FOLDER; table:markov is not"):
        inspect(MARKOV, drafter)
    with pytest.raises(PairError, match="early-exit is not bit-exact: leave one of the two out"):
        inspect(f"hf:{tiny_checkpoint}", drafter, ModelOptions(bit_exact=True))


def test_what_does_not_fit(tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    target = describe(str(tiny["llama"]))
    free = target.weight_bytes + 100 * target.cache_bytes
    monkeypatch.setattr(module, "_free_memory", lambda: free)
    found = inspect(target.spec)
    assert not found.works
    assert found.problems[0].endswith("give a context length of 100 or less")
    assert inspect(target.spec, options=ModelOptions(context_length=100)).works
    monkeypatch.setattr(module, "_free_memory", lambda: 10)
    assert inspect(target.spec).problems[0].endswith("take smaller models")
    monkeypatch.setattr(module, "_free_memory", lambda: None)
    assert inspect(target.spec).works


# The command


def test_the_table_and_the_exit_codes(
    capsys: pytest.CaptureFixture[str], tiny: dict[str, Path]
) -> None:
    assert main(["inspect", MARKOV, f"lookup,{DRAFT}", "--parallel", "2"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "same tokens" in out
    assert "2 sequences of 64 tokens" in out
    assert out.endswith("can work\n")
    assert main(["inspect", str(tiny["llama"]), str(tiny["spm"])]) == 1
    assert "\ncannot work: " in capsys.readouterr().out


def test_the_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", MARKOV, DRAFT, "--context-length", "10", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == [
        *("works", "problems", "notes", "context_length", "sequences", "weight_bytes"),
        *("cache_bytes", "free_bytes", "target", "drafts"),
    ]
    assert (document["works"], document["context_length"]) == (True, 10)
    names = [name for name in Description.__slots__ if name != "tokens"]
    assert list(document["target"]) == names
    assert document["drafts"][0]["tokenizer_comparison"]["result"] == "same"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([""], "the model is empty"),
        (["table:no"], "no table is called 'no'"),
        (["/no/such.gguf"], "no such file"),
        ([MARKOV, "quantize:Q4_0"], "quantize needs a target in a GGUF file"),
        ([MARKOV, "lookup,lookup"], "a chain names drafters"),
        ([MARKOV, "--context-length", "65"], "has a context of 64 tokens: ask for no more"),
        ([MARKOV, "--parallel", "0"], "--parallel"),
    ],
)
def test_mistakes_are_one_line(
    capsys: pytest.CaptureFixture[str], args: list[str], says: str
) -> None:
    assert main(["inspect", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert says in err


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelLoadError, match="is a pipe or a device"):
        describe(str(tmp_path / "pipe.gguf"))


@pytest.mark.parametrize("use", [describe, load_model])
def test_specs_mean_the_same_everywhere(use: Callable[[str], object]) -> None:
    with pytest.raises(ParameterError, match="demo takes no argument"):
        use("demo:large")
    with pytest.raises(ModelLoadError, match="markov"):
        use("table:")
