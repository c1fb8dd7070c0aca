"""Any order of submitting, running, following, cancelling and failing: plain decoding's text."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from draftproof import Engine, ModelError, SamplingParams, Speculation, Step
from toy_drafters import DRAFTERS
from toys import SIZE, NoRollback, Toy, oracle

TOKENS = st.integers(0, SIZE - 1)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 0.7, 1.0]),
    top_k=st.integers(0, 4),
    top_p=st.sampled_from([0.7, 1.0]),
    seed=st.integers(-5, 5),
    max_tokens=st.one_of(st.none(), st.integers(1, 12)),
    stop=st.lists(st.text("abcd", min_size=1, max_size=3), max_size=2),
    ignore_eos=st.booleans(),
)


class Engines(RuleBasedStateMachine):
    """The engine beside the oracle."""

    @initialize(
        seed=st.integers(0, 5),
        name=st.sampled_from([None, *DRAFTERS]),
        sequences=st.integers(1, 3),
        chunk=st.integers(1, 12),
        rollback=st.booleans(),
    )
    def make(self, seed: int, name: str | None, sequences: int, chunk: int, rollback: bool) -> None:
        kind = Toy if rollback or name else NoRollback
        self.target = kind(seed, context=32, sequences=sequences)
        self.drafter = name and DRAFTERS[name](self.target)
        self.engine = Engine(self.target, self.drafter, prefill_chunk=chunk)
        self.requests: dict[int, tuple[list[int], SamplingParams]] = {}
        self.steps: dict[int, list[Step]] = {}
        self.open: set[int] = set()
        self.cancelled: set[int] = set()
        self.texts: list[list[int]] = []

    def take(self, steps: list[Step]) -> None:
        for step in steps:
            assert step.request in self.open
            assert len(step.drafted) >= step.evaluated >= step.accepted
            self.steps[step.request].append(step)
            if step.finish_reason:
                self.finish(step.request)

    def finish(self, request: int) -> None:
        self.open.remove(request)
        done = self.engine.completion(request)
        tokens, reason, text = oracle(self.target, *self.requests[request])
        got = tuple(t for step in self.steps[request] for t in step.tokens)
        assert done.token_ids == got
        stats = done.stats
        assert stats.completion_tokens == len(got)
        assert stats.drafted == stats.accepted + stats.rejected + stats.discarded
        if request in self.cancelled:
            assert got == tokens[: len(got)]
            assert done.finish_reason == "cancelled"
        else:
            assert (got, done.finish_reason, done.text) == (tokens, reason, text)
            assert "".join(step.text for step in self.steps[request]) == text
        self.texts.append([*self.requests[request][0], *got])

    def start(self, prompt: list[int], params: SamplingParams, length: int) -> int:
        request = self.engine.submit(prompt, params, Speculation(draft_length=length))
        self.requests[request] = (prompt, params)
        self.steps[request] = []
        self.open.add(request)
        return request

    @rule(prompt=st.lists(TOKENS, min_size=1, max_size=31), params=PARAMS, length=st.integers(0, 8))
    def submit(self, prompt: list[int], params: SamplingParams, length: int) -> None:
        self.start(prompt, params, length)

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), params=PARAMS, length=st.integers(0, 8))
    def next_turn(self, data: st.DataObject, params: SamplingParams, length: int) -> None:
        before = data.draw(st.sampled_from(self.texts))
        prompt = [*before[: data.draw(st.integers(0, len(before)))], *data.draw(st.lists(TOKENS))]
        self.start(prompt[:31] or [0], params, length)

    @rule(rounds=st.integers(1, 4))
    def step(self, rounds: int) -> None:
        for _ in range(rounds):
            self.take(self.engine.step())

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.open)))
        self.cancelled.add(request)
        self.engine.cancel(request)
        self.finish(request)

    @rule(when=st.sampled_from(["before", "half", "after"]), of_drafter=st.booleans())
    def fail(self, when: str, of_drafter: bool) -> None:
        """The next pass of a model fails; the round is lost and nothing else."""
        model = getattr(self.drafter, "model", None) if of_drafter else self.target
        if model is None:
            return
        model.failures[len(model.calls) + 1] = (ModelError("broken"), when)
        try:
            self.take(self.engine.step())
        except ModelError:
            return
        model.failures.clear()

    @invariant()
    def caches_are_right(self) -> None:
        if not hasattr(self, "engine"):
            return
        for sequence in self.engine._rounds.running:
            cached = self.target._cache[sequence.slot]
            assert cached == sequence.tokens[: sequence.cached]

    def teardown(self) -> None:
        while getattr(self, "open", None):
            self.take(self.engine.step())


TestEngines = Engines.TestCase
TestEngines.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
