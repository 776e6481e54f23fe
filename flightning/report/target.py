"""The accuracy that "rounds to reach the target" speaks of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from flightning.report.arrange import Comparison
from flightning.report.runs import ReportError, Run
from flightning.report.statistics import best, estimate, final, reached

__all__ = ["BASELINE_FINAL", "Target", "parse_target", "set_target"]

BASELINE_FINAL = "fedavg-final"


@dataclass(frozen=True)
class Target:
    """Target accuracy of every setting and seed.

    Args:
        text: What it is, for captions.
        default: Target of each setting where the seed has none of its own.
        own: Target of each ``(setting, seed)``.
        baseline_rounds: Rounds that the baseline needs in each setting; NaN if it does not get there.
        notes: Sentences for the tables.
    """

    text: str
    default: Mapping[str, float]
    own: Mapping[tuple[str, int | None], float] = field(default_factory=dict)
    baseline_rounds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def position(self, setting: str, run: Run) -> int | None:
        """Position in ``run.rounds`` of the first round that reaches the target; None if there is none."""
        return reached(run, self.own.get((setting, run.seed), self.default.get(setting, math.nan)))

    def rounds(self, setting: str, run: Run) -> float:
        """First round that reaches the target; NaN if there is none."""
        position = self.position(setting, run)
        return math.nan if position is None else float(run.rounds[position])


def parse_target(target: str | float) -> float | None:
    """Accuracy as a fraction, or None for the final accuracy of the baseline.

    Example:
        >>> parse_target("0.9"), parse_target("fedavg-final")
        (0.9, None)

    Raises:
        ReportError: If it is neither.
    """
    if isinstance(target, str) and target.strip().lower() == BASELINE_FINAL:
        return None
    try:
        value = float(target)
    except ValueError:
        raise ReportError(
            f"`target` is `{target}`, but it must be an accuracy such as 0.9 or `{BASELINE_FINAL}`; "
            "for the final accuracy of another method name it with `--baseline`."
        ) from None
    if not 0 < value <= 1:
        raise ReportError(f"`target` is {target}, but accuracies are fractions in (0, 1]; write 0.9 for 90 %.")
    return value


def set_target(target: str | float, compared: Comparison, last: int = 1) -> Target | None:
    """Target of every setting and seed.

    The final accuracy of the baseline is taken from its run with the same seed, which has the same partition; a seed
    that the baseline lacks gets the mean over its seeds. As in the papers, the baseline counts with all its rounds.

    Args:
        target: An accuracy, or ``"fedavg-final"`` for the final accuracy of the baseline.
        compared: The runs.
        last: Number of evaluated rounds that the final accuracy is the mean of.

    Returns:
        The target, or None if it is the baseline's and there is no baseline.

    Raises:
        ReportError: If ``target`` cannot be understood.
    """
    value, baseline = parse_target(target), compared.baseline
    groups = {s: compared.of(s, baseline) for s in compared.settings} if baseline is not None else {}
    if value is None:
        if baseline is None:
            return None
        own = {(s, r.seed): float(np.mean(final(r, last))) for s, runs in groups.items() for r in runs}
        default = {s: estimate([own[s, r.seed] for r in runs]).mean for s, runs in groups.items()}
        needs = {s: estimate([float(r.rounds[-1]) for r in runs]).mean for s, runs in groups.items()}
        shown = "; ".join(
            f"{100 * v:.2f} %" + (f" on {s}" if len(default) > 1 else "")
            for s, v in default.items()
            if math.isfinite(v)
        )
        text = f"final accuracy of {baseline} with the same seed (mean {shown})"
        notes = [
            f"Speed-up is the number of all rounds of {baseline} divided by the rounds to the target, as in the papers."
        ]
        return Target(text, default, own, needs, (*notes, *_unreached(compared, Target(text, default, own))))
    fixed = Target(f"accuracy {100 * value:g} %", dict.fromkeys(compared.settings, value))
    needs = {}
    for setting, runs in groups.items():
        rounds = [fixed.rounds(setting, r) for r in runs]
        needs[setting] = estimate(rounds).mean if all(map(math.isfinite, rounds)) else math.nan
    notes = (
        [f"Speed-up is the rounds that {baseline} needs divided by the rounds that the method needs."] if groups else []
    )
    return Target(fixed.text, fixed.default, {}, needs, (*notes, *_unreached(compared, fixed)))


def _unreached(compared: Comparison, target: Target) -> list[str]:
    """A sentence for each setting in which no run reaches the target."""
    notes = []
    for setting in compared.settings:
        runs = [r for m in compared.methods for r in compared.of(setting, m)]
        goal = target.default.get(setting, math.nan)
        if math.isfinite(goal) and all(target.position(setting, r) is None for r in runs):
            top = max(runs, key=best)
            notes.append(
                f"No run on {setting} reaches the target {100 * goal:.2f} %: the best is {100 * best(top):.2f} % "
                f"(`{top.model}`, seed {top.seed}); give a lower `--target`."
            )
    return notes
