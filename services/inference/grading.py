"""One version's held-out score: answers by the run's engine, graded by its first scorer
that is no gate.

No stream and no window: the prompts are known, and nothing is trained. Which versions are graded,
and in which processes, is `evaluation`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from pipeline import plugins
from pipeline.errors import ConfigError, SluiceError, Unusable
from pipeline.families import DATASETS, ENGINES, SCORERS
from pipeline.grades import KeptVersion, Outcomes, Point, summary
from pipeline.messages import Completion, Manifest, Prompt, Sampling, Work
from pipeline.model.tokens import Tokenizer
from pipeline.protocols import Dataset, Engine
from pipeline.run import Model, Run
from pipeline.verdicts import AT, answer_of, outcome_term, terms
from pipeline.weights.origin import Origin
from services.inference.referee import Referee

log = logging.getLogger(__name__)


class Grader:
    """The held-out prompts, the scorer, and an engine for each version in turn."""

    def __init__(self, run: Run, *, members: int | None = None) -> None:
        """`members` samples of each prompt, by default those of [evaluation].

        Raises ConfigError without an [evaluation] section, and for parts that cannot be had.
        """
        if run.evaluation is None:
            remedy = "add an [evaluation] section with data"
            raise ConfigError("evaluation", None, rule="is not set", remedy=remedy)
        self.run, self.members = run, members or run.evaluation.members
        dataset: Dataset = plugins.make(DATASETS, run.evaluation.data, at="evaluation.data")
        self.digest = dataset.digest()
        self.dataset = dataset
        first = outcome_term(terms(run.scoring.scorers))
        scorer = plugins.build(SCORERS, first.spec, at=AT, policy=run.model.path)
        seconds = first.timeout_seconds or run.scoring.timeout_seconds
        self.referee = Referee(
            scorer,
            seconds=seconds,
            concurrency=first.concurrency,
            retries=run.scoring.retries,
        )
        self.tokenizer = Tokenizer(run.model.path, template=run.model.template)

    def point(self, kept: KeptVersion) -> Point:
        """Grades one version. Raises SluiceError where no answer got a verdict."""
        engine = self._engine(kept)
        sampling = msgspec.convert(self.run.sampling, Sampling, from_attributes=True)
        sampled = self._outcomes(engine, "sampled", self.members, sampling)
        greedy = self._outcomes(engine, "greedy", 1, replace(sampling, temperature=0.0))
        engine.close()
        return summary(kept, sampled, greedy, members=self.members, data=self.digest)

    def _engine(self, kept: KeptVersion) -> Engine:
        model = Model(path=kept.path, dtype=self.run.model.dtype)
        spec, swap = self.run.inference.engine, self.run.inference.swap
        origin = Origin(self.run.weights, f"{self.run.name}-evaluation")
        engine: Engine = plugins.make(
            ENGINES,
            spec,
            model,
            at="inference.engine",
            boot="evaluation",
            swap=swap,
            origin=origin,
        )
        live = Manifest(
            version=kept.version,
            step=kept.step,
            epoch=0,
            location="",
            fingerprint=engine.fingerprint(),
        )
        engine.stage(live, origin.transport())
        assert engine.flip() is not None, "the engine's own weights are adopted at once"
        return engine

    def _outcomes(self, engine: Engine, name: str, members: int, sampling: Sampling) -> Outcomes:
        prompts = {prompt.group: prompt for prompt in self._prompts(name, members, sampling)}
        work = [Work(prompt=p, todo=tuple(range(members))) for p in prompts.values()]
        done = sorted(generate(engine, work), key=lambda c: (prompts[c.group].seq, c.member))
        answers = [answer_of(prompts[c.group], c, self.tokenizer.decode) for c in done]
        out: list[list[float | None]] = [[None] * members for _ in prompts]
        for completion, outcome in zip(done, self.referee.outcomes(answers), strict=True):
            out[prompts[completion.group].seq][completion.member] = outcome
        return out

    def _prompts(self, name: str, members: int, sampling: Sampling) -> Iterator[Prompt]:
        for seq in range(len(self.dataset)):
            prompt = Prompt(
                group=f"{name}-{seq}",
                seq=seq,
                ids=b"",
                members=members,
                sampling=sampling,
                seed=self.run.seed,
                lane="eval",
            )
            yield self._with_example(prompt)

    def _with_example(self, prompt: Prompt) -> Prompt:
        """The prompt of its number's example; with an error where that cannot be used, as in the
        stream."""
        try:
            example = self.dataset[prompt.seq]
            ids = self.tokenizer.encode(example.prompt, at=f"evaluation.data, example {prompt.seq}")
        except Unusable as fault:
            return replace(prompt, error=f"{fault.reason}: {fault}")
        reference = msgspec.json.encode(example.reference)
        return replace(prompt, ids=ids, task=example.task, reference=reference)


def generate(engine: Engine, work: Sequence[Work]) -> Iterator[Completion]:
    """Every member of the work, as it finishes; without those of prompts that the engine refuses,
    which is logged."""
    todo = list(reversed(work))
    while todo or engine.busy:
        for _ in range(min(engine.room(), len(todo))):
            _begin(engine, todo.pop())
        if engine.busy:
            yield from engine.step()


def _begin(engine: Engine, work: Work) -> None:
    try:
        engine.add(work)
    except SluiceError as exc:
        log.warning("group=%s refused: %s", work.prompt.group, exc)
