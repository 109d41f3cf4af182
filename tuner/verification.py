"""The last act of a study: measure candidates against the baseline on fresh prompts until one holds.

Resumes by replay: what a former process measured is found by its pair and not measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from energyopt.core.study import Origin, Recommendation, StudySpec, TrialRecord, TrialState

from .certainty import Doubt, doubts, say
from .objective import Objective
from .space import Params
from .trials import TrialRunner
from .verify import (
    CONFIDENCE,
    Candidate,
    Interval,
    Pair,
    drift_between,
    gain,
    kept,
    order,
    rank,
    saving,
    unreal,
)

GATE_RUNS = 2
"""What the accuracy gate takes, in runs: it starts the baseline and the candidate once each."""
FALLBACKS = 2
"""How many further candidates are tried after the first one failed."""


class Verification:
    """Finds the recommendation of a study whose search is over.

    ``fits`` says whether there is time for some runs; ``refuses`` is the accuracy gate, None without one.
    """

    def __init__(
        self,
        spec: StudySpec,
        baseline: Params,
        objective: Objective,
        trials: TrialRunner,
        fits: Callable[[int], bool] = lambda runs: True,
        refuses: Callable[[Params], str | None] | None = None,
    ) -> None:
        self._spec, self._baseline, self._objective, self._trials = spec, baseline, objective, trials
        self._fits, self._refuses = fits, refuses
        self._unchecked = False
        self._could_be_surer = False
        self._second: Recommendation | None = None

    def recommend(self) -> Recommendation | None:
        """The first candidate that holds; None if none does, which must not be glossed over."""
        candidates = self._candidates()
        baseline_is_one = any(self._is_baseline(candidate) for candidate in candidates)
        for place, candidate in enumerate(candidates):
            if place > 0 and baseline_is_one and not self._is_baseline(candidate) and not self._affords_pairs():
                continue  # out of time: what one has is an answer, another challenger is a luxury
            found = self._try(candidate, place)
            if found is not None and not self._could_be_surer:
                return found
            self._second = self._second or found
        return self._second

    def _candidates(self) -> list[Candidate]:
        """The best few, and the baseline if it is feasible: to keep what one has is always an answer.

        Those that keep every SLO for sure come first.
        """
        trials = self._trials.all()
        drift = drift_between(trials, self._baseline, self._objective)
        ranked = sorted(rank(trials, self._objective, drift), key=lambda candidate: bool(candidate.doubts))
        best = ranked[: 1 + FALLBACKS]
        return best + [candidate for candidate in ranked[len(best) :] if self._is_baseline(candidate)]

    def _affords_pairs(self) -> bool:
        return self._fits(2 * self._spec.budget.verify_pairs)

    def _is_baseline(self, candidate: Candidate) -> bool:
        return dict(candidate.params) == dict(self._baseline)

    def _try(self, candidate: Candidate, place: int) -> Recommendation | None:
        self._could_be_surer = False
        if self._spec.budget.verify_pairs == 0:
            return Recommendation(
                trial=candidate.trial, verified=False, pairs=0, note="Not verified: no pairs were asked for."
            )
        return self._keep(candidate, place) if self._is_baseline(candidate) else self._challenge(candidate, place)

    def _keep(self, candidate: Candidate, place: int) -> Recommendation | None:
        """The baseline needs no comparison, only to keep its SLOs on the fresh prompts."""
        checks = self._baseline_checks()
        if not checks:
            pair = place * self._spec.budget.verify_pairs
            checks = [self._measured(candidate.params, Origin.VERIFY_BASELINE, pair)]
        if not all(kept(check) for check in checks):
            return None
        note = "The baseline is the best configuration that was found; it kept every SLO on fresh prompts."
        return Recommendation(trial=candidate.trial, verified=False, pairs=0, note=note)

    def _challenge(self, candidate: Candidate, place: int) -> Recommendation | None:
        """The pairs of one candidate. It is dropped at its first miss, or if the baseline turns out as good.

        One whose answers are worse than the baseline's is dropped before that: nothing it saves would count.
        """
        if self._refused(candidate):
            return None
        pairs: list[Pair] = []
        first = place * self._spec.budget.verify_pairs
        for pair in range(first, first + self._spec.budget.verify_pairs):
            runs = {}
            for origin in order(pair - first):
                params = candidate.params if origin is Origin.VERIFY_WINNER else self._baseline
                runs[origin] = self._measured(params, origin, pair)
                if origin is Origin.VERIFY_WINNER and not kept(runs[origin]):
                    return None
            winner, baseline = runs[Origin.VERIFY_WINNER].result, runs[Origin.VERIFY_BASELINE].result
            if winner is not None and baseline is not None:
                pairs.append((winner, baseline))
        return self._judge(candidate, pairs)

    def _refused(self, candidate: Candidate) -> bool:
        """What the accuracy gate says, where there is one and time for it."""
        self._unchecked = self._refuses is not None and not self._fits(GATE_RUNS)
        if self._refuses is None or self._unchecked:
            return False
        return self._refuses(candidate.params) is not None

    def _judge(self, candidate: Candidate, pairs: Sequence[Pair]) -> Recommendation | None:
        gained, saved = gain(pairs, self._objective), saving(pairs)
        baseline_holds = self._baseline_holds()
        unsure = doubts([winner for winner, _ in pairs])
        self._could_be_surer = bool(unsure) and not any(doubt.too_few for doubt in unsure)
        if gained is not None and gained.mean <= 0 and baseline_holds:
            return None
        made = unreal(pairs)
        bounded = saved if made is None else None
        return Recommendation(
            trial=candidate.trial,
            verified=gained is not None and gained.positive and not unsure and made is None,
            pairs=_compared(pairs, saved, gained),
            saving=saved.mean if saved else None,
            saving_low=bounded.low if bounded else None,
            saving_high=bounded.high if bounded else None,
            confidence=CONFIDENCE,
            note=" ".join([*self._notes(gained, saved, made, baseline_holds), *_words(unsure)]),
        )

    def _notes(
        self, gained: Interval | None, saved: Interval | None, made: str | None, baseline_holds: bool
    ) -> list[str]:
        notes = [] if made is None else [f"{made}, not verified: these pairs ran on no hardware."]
        if made == "Replayed":
            notes = ["Replayed, not verified: these pairs were measured before and given again."]
        if gained is None:
            notes.append("Kept every SLO on fresh prompts; the baseline gave nothing to compare with.")
        elif not gained.positive and made is None:
            notes.append("Kept every SLO on fresh prompts, but its gain is within the noise of the pairs.")
        if saved is None:
            notes.append("No joules were measured, so no saving is stated.")
        if gained is not None and self._spec.maximize == "output_rate":
            notes.append(f"Time per output token falls by {gained.mean:.1%} on average.")
        if self._unchecked:
            notes.append("Its answers were not compared with the baseline's: no time was left.")
        if not baseline_holds:
            notes.append("The baseline itself misses an SLO or does not run.")
        return notes

    def _baseline_checks(self) -> list[TrialRecord]:
        return [t for t in self._trials.all() if t.origin is Origin.VERIFY_BASELINE and t.state is TrialState.DONE]

    def _baseline_holds(self) -> bool:
        searched = [t for t in self._trials.all() if t.origin is Origin.BASELINE]
        return all(kept(trial) for trial in [*searched, *self._baseline_checks()])

    def _measured(self, params: Params, origin: Origin, pair: int) -> TrialRecord:
        """The run of this place in the comparison, measured now unless it was already."""
        for trial in self._trials.all():
            if trial.origin is origin and trial.pair == pair and dict(trial.params) == dict(params):
                return trial if trial.state is TrialState.DONE else self._trials.run(trial)
        return self._trials.run(self._trials.add(params, origin, pair))


def _compared(pairs: Sequence[Pair], saved: Interval | None, gained: Interval | None) -> int:
    """The pairs behind the interval: those of which both sides gave the figure."""
    found = saved or gained
    return len(pairs) if found is None else found.samples


def _words(unsure: Sequence[Doubt]) -> list[str]:
    if not unsure:
        return []
    return [f"Not sure at {CONFIDENCE:.0%}: {say(unsure)}; longer windows or more pairs give more samples."]
