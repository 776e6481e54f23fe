"""The accuracy that "rounds to reach the target" speaks of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flightning.report.arrange import Comparison, matching
from flightning.report.runs import ReportError, Run
from flightning.report.statistics import best, estimate, final, reached

__all__ = ["BASELINE_FINAL", "FEDAVG_FINAL", "Target", "parse_target", "set_target"]

FEDAVG_FINAL, BASELINE_FINAL = "fedavg-final", "baseline-final"
"""Targets that are the final accuracy of a method: of FedAvg as in the papers, or of the baseline."""


@dataclass(frozen=True)
class Target:
    """Target accuracy of every setting and seed.

    Args:
        text: What it is, for captions.
        default: Target of each setting where the seed has none of its own.
        own: Target of each ``(setting, seed)``.
        source: Runs whose final accuracy is the target; as in the papers, they count with all their rounds.
        notes: Sentences for the tables.
    """

    text: str
    default: Mapping[str, float]
    own: Mapping[tuple[str, int | None], float] = field(default_factory=dict)
    source: Sequence[Run] = ()
    notes: tuple[str, ...] = ()

    def position(self, setting: str, run: Run) -> int | None:
        """Position in ``run.rounds`` of the first round that reaches the target; None if there is none."""
        if any(run is r for r in self.source):
            return len(run.rounds) - 1
        return reached(run, self.own.get((setting, run.seed), self.default.get(setting, math.nan)))

    def rounds(self, setting: str, run: Run) -> float:
        """First round that reaches the target; NaN if there is none."""
        position = self.position(setting, run)
        return math.nan if position is None else float(run.rounds[position])


def parse_target(target: str | float) -> float | str:
    """Accuracy as a fraction, or the name of a method's final accuracy.

    Example:
        >>> parse_target("0.9"), parse_target("FedAvg-final")
        (0.9, 'fedavg-final')

    Raises:
        ReportError: If it is neither.
    """
    if isinstance(target, str) and target.strip().lower() in (FEDAVG_FINAL, BASELINE_FINAL):
        return target.strip().lower()
    try:
        value = float(target)
    except (TypeError, ValueError):
        raise ReportError(
            f"`target` is `{target}`, but it must be an accuracy such as 0.9, `{FEDAVG_FINAL}` or `{BASELINE_FINAL}`; "
            "for the final accuracy of another method name it with `--baseline`."
        ) from None
    if not 0 < value <= 1:
        raise ReportError(f"`target` is {target}, but accuracies are fractions in (0, 1]; write 0.9 for 90 %.")
    return value


def set_target(target: str | float, compared: Comparison, last: int = 1) -> Target | None:
    """Target of every setting and seed.

    The final accuracy of a method is taken from its run with the same seed, which has the same partition; a seed that
    the method lacks gets the mean over its seeds.

    Args:
        target: An accuracy, ``"fedavg-final"``, or ``"baseline-final"``.
        compared: The runs; a method that is needed and missing is noted there.
        last: Number of evaluated rounds that the final accuracy is the mean of.

    Returns:
        The target, or None if it is that of a method which was not run.

    Raises:
        ReportError: If ``target`` cannot be understood.
    """
    value = parse_target(target)
    if not isinstance(value, str):
        fixed = Target(f"accuracy {100 * value:g} %", dict.fromkeys(compared.settings, value))
        return replace(fixed, notes=(*_relative_to(compared), *_unreached(compared, fixed)))
    source = compared.baseline if value == BASELINE_FINAL else _fedavg(compared)
    if source is None:
        return None
    groups = {s: compared.of(s, source) for s in compared.settings}
    own = {(s, r.seed): float(np.mean(final(r, last))) for s, runs in groups.items() for r in runs}
    default = {s: estimate([own[s, r.seed] for r in runs]).mean for s, runs in groups.items()}
    shown = "; ".join(
        f"{100 * v:.2f} %" + (f" on {s}" if len(default) > 1 else "") for s, v in default.items() if math.isfinite(v)
    )
    text = f"final accuracy of {source} with the same seed (mean {shown})"
    notes = (f"{source} itself counts with all its rounds, as in the papers.", *_relative_to(compared))
    return Target(text, default, own, [r for runs in groups.values() for r in runs], notes)


def _fedavg(compared: Comparison) -> str | None:
    """FedAvg itself: the baseline if it is FedAvg, or else its first variant; None, with a note, if it was not run."""
    found = matching("FedAvg", [(runs[0].model, method) for (_, method), runs in compared.runs.items()])
    if not found:
        if compared.baseline is not None:  # without a baseline this is noted already
            compared.notes.append(
                f"No run of `FedAvg`: there is no target; give an accuracy or `{BASELINE_FINAL}` to `--target`."
            )
        return None
    return compared.baseline if compared.baseline in found else found[0]


def _relative_to(compared: Comparison) -> list[str]:
    """What the multiples of the tables mean."""
    if compared.baseline is None:
        return []
    return [
        f"In brackets: the speed-up, the rounds of {compared.baseline} divided by those of the method, and the "
        f"bytes as a multiple of those of {compared.baseline}."
    ]


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
