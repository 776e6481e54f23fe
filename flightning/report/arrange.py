"""Sort runs into settings (data and partition), methods and seeds, and refuse what cannot be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from flightning.errors import nearest
from flightning.report.runs import ReportError, Run

__all__ = ["PLACES", "Comparison", "arrange", "changes_learning", "matching", "pick_baseline", "plain"]

TRAINER_KEYS = frozenset(["max_epochs", "gradient_clip_val", "gradient_clip_algorithm", "precision"])
"""The arguments of the trainer that change what is learned; the others say where and how it is logged."""

PLACES = frozenset(
    [
        "cache_dir",
        "data_dir",
        "default_root_dir",
        "dirpath",
        "download",
        "enable_progress_bar",
        "num_workers",
        "pin_memory",
        "root",
        "save_dir",
    ]
)
"""Last parts of keys that say where things are or how they are shown, and change no number of a run but its seconds."""

BESIDE_LEARNING = frozenset(["name", "version", "id", "eval_batch_size", "local_loop", "serialisation_overhead"])
"""Last parts of keys that say what runs are called or how they are measured, never what is learned."""

MOST_IN_LABEL = 3
"""More differing arguments than this would make a label that no table can hold."""


@dataclass(frozen=True)
class Comparison:
    """Runs by setting and method.

    Args:
        settings: Names of the settings, in the order found.
        methods: Names of the methods, the baseline first if there is one.
        runs: Runs of a ``(setting, method)``, by seed.
        common: What all settings share, for the title.
        baseline: Name of the baseline, or None.
        unpaired: ``(setting, seed)`` whose runs do not share one partition.
        notes: Sentences about seeds that are missing and runs that stopped early.
    """

    settings: Sequence[str]
    methods: Sequence[str]
    runs: Mapping[tuple[str, str], Sequence[Run]]
    common: str = ""
    baseline: str | None = None
    unpaired: frozenset[tuple[str, int | None]] = frozenset()
    notes: list[str] = field(default_factory=list)

    def of(self, setting: str, method: str) -> Sequence[Run]:
        """Runs of a method in a setting, possibly none."""
        return self.runs.get((setting, method), ())

    def pictured(self, setting: str) -> Run | None:
        """First run of a setting that has a picture of the partition."""
        runs = (r for m in self.methods for r in self.of(setting, m) if r.picture is not None)
        return next(runs, None)


def arrange(runs: Sequence[Run], mixed: bool = False, baseline: str = "FedAvg") -> Comparison:
    """Sort runs into settings, methods and seeds.

    Args:
        runs: Runs with an accuracy.
        mixed: Whether runs of different data or partitions may stand side by side, one column each.
        baseline: Method that the others are compared with.

    Returns:
        The sorted runs, with notes about what a reader must know.

    Raises:
        ReportError: If data or partitions differ without ``mixed``, a method was run twice with one seed and one
            configuration, or ``baseline`` names no method.
    """
    named, common = _settings(runs)
    settings = list(dict.fromkeys(named))
    if len(settings) > 1 and not mixed:
        shown = ", ".join(f"`{s}`" for s in settings[:10]) + (", ..." if len(settings) > 10 else "")
        shared = f", all with `{common}`" if common else ""
        raise ReportError(
            f"the runs are of {len(settings)} different settings ({shown}{shared}), and one table compares runs of the "
            "same data and partition; report them one by one, or pass `--mixed` for one column per setting."
        )
    labels, notes = _labels(runs, named)
    cells: dict[tuple[str, str], list[Run]] = {}
    for run, setting, label in zip(runs, named, labels, strict=True):
        others = cells.setdefault((setting, label), [])
        for other in others:
            if other.seed == run.seed:
                raise ReportError(
                    f"`{label}` with seed {run.seed} on `{setting}` was found twice, in `{other.folder}` and "
                    f"`{run.folder}`, with the same configuration, and a method has one run per seed; leave one of the "
                    "folders out."
                )
        others.append(run)
    for group in cells.values():
        group.sort(key=lambda r: -1 if r.seed is None else r.seed)
    chosen = pick_baseline(baseline, runs, labels, notes)
    methods = sorted(dict.fromkeys(labels), key=lambda m: m != chosen)
    unpaired = _unpaired(settings, methods, cells, mixed, notes)
    _note_gaps(settings, methods, cells, notes)
    return Comparison(settings, methods, cells, common, chosen, unpaired, notes)


def pick_baseline(baseline: str, runs: Sequence[Run], labels: Sequence[str], notes: list[str]) -> str | None:
    """Label of the baseline; None, with a note, if the default one was not run.

    Args:
        baseline: Label, or name of the model, in any case.
        runs: The runs.
        labels: Their labels.
        notes: Receives a sentence if there is no baseline or a choice of several.

    Raises:
        ReportError: If another than the default baseline is asked for and not there.
    """
    wanted = plain(baseline)
    matches = matching(baseline, [(r.model, r.label, label) for r, label in zip(runs, labels, strict=True)])
    if not matches and wanted != "fedavg":
        raise ReportError(f"`baseline` is `{baseline}`, but no run has this method; {nearest(baseline, set(labels))}")
    if not matches:
        notes.append("No run of `FedAvg`: there is no baseline; name another method with `--baseline`.")
        return None
    if len(matches) > 1 and plain(matches[0]) != wanted:
        others = ", ".join(f"`{m}`" for m in matches[1:])
        notes.append(f"The baseline is `{matches[0]}`; to take {others} instead, give the full name to `--baseline`.")
    return matches[0]


def matching(name: str, methods: Sequence[tuple[str, ...]]) -> list[str]:
    """Labels that a name in any case and with any spaces may mean, the label that is the name itself first.

    Args:
        name: Label or name of a model.
        methods: Names of every method: the model first, then labels, the last of which is returned.

    Example:
        >>> matching("fedavg", [("FedAvg", "FedAvg (lr=1)"), ("FedProx", "FedProx"), ("FedAvg", "FedAvg")])
        ['FedAvg', 'FedAvg (lr=1)']
        >>> matching("FedAvg(lr=1)", [("FedAvg", "FedAvg (lr=1)"), ("FedAvg", "FedAvg")])
        ['FedAvg (lr=1)']
    """
    wanted = plain(name)
    found: dict[str, int] = {}
    for names in methods:
        distance = [plain(n) for n in reversed(names)].index(wanted) if wanted in map(plain, names) else len(names)
        if distance < len(names):
            found[names[-1]] = min(distance, found.get(names[-1], distance))
    return sorted(found, key=lambda label: found[label])


def plain(label: str) -> str:
    """A label as it is compared: in small letters, without spaces.

    Example:
        >>> plain("FedProx (mu=0.1)")
        'fedprox(mu=0.1)'
    """
    return label.lower().replace(" ", "")


def _settings(runs: Sequence[Run]) -> tuple[list[str], str]:
    """Setting of each run, by what differs between them, and what all of them share.

    Data and partition make a setting, and the number of clients where runs of the same data and partition differ in it.
    """
    named: list[tuple[str, ...]] = [(r.data, r.partition) for r in runs]
    clients = [r.clients for r in runs]
    counts: dict[tuple[str, ...], set[str]] = {}
    for parts, count in zip(named, clients, strict=True):
        counts.setdefault(parts, set()).update({count} - {""})
    named = [(*p, f"{c} clients" if c and len(counts[p]) > 1 else "") for p, c in zip(named, clients, strict=True)]
    varies = [len(set(values)) > 1 for values in zip(*named, strict=True)]
    common = ", ".join(p for p, v in zip(named[0], varies, strict=True) if p and not v)
    if not any(varies):
        return [common] * len(named), common
    labels = [", ".join(p for p, v in zip(parts, varies, strict=True) if p and v) for parts in named]
    return [label or "unnamed" for label in labels], common


def changes_learning(key: str) -> bool:
    """Whether a key of the configuration can change what is learned.

    Example:
        >>> changes_learning("model.mu"), changes_learning("trainer.logger.save_dir")
        (True, False)
    """
    parts = key.split(".")
    if parts[0] == "trainer":
        return len(parts) == 2 and parts[1] in TRAINER_KEYS
    return (
        parts[0] not in ("ckpt_path", "weights_only", "config", "_wandb")
        and "seed" not in key
        and parts[-1] not in PLACES | BESIDE_LEARNING
    )


def _labels(runs: Sequence[Run], settings: Sequence[str]) -> tuple[list[str], list[str]]:
    """Method of each run: the model, and the arguments in which runs of this model differ in one setting."""
    values: dict[tuple[str, str, str], set[str]] = {}
    for run, setting in zip(runs, settings, strict=True):
        for key, value in run.config.items():
            if changes_learning(key):
                values.setdefault((run.model, setting, key), set()).add(value)
    differing: dict[str, dict[str, None]] = {}
    for (model, _, key), found in values.items():
        if len(found) > 1:
            differing.setdefault(model, {})[key] = None
    labels, notes, variants = [], [], dict[str, dict[tuple[str, ...], int]]()
    for run in runs:
        keys = list(differing.get(run.model, {}))
        short = [k.rpartition(".")[2] for k in keys]
        names = [s if short.count(s) == 1 else k for s, k in zip(short, keys, strict=True)]
        parts = tuple(f"{n}={run.config[k]}" for n, k in zip(names, keys, strict=True) if k in run.config)
        if len(keys) <= MOST_IN_LABEL:
            labels.append(f"{run.model} ({', '.join(parts)})" if parts else run.model)
            continue
        known = variants.setdefault(run.model, {})
        labels.append(f"{run.model} (variant {known.setdefault(parts, len(known) + 1)})")
    labels = _named(runs, settings, _told_apart(runs, settings, labels))
    for model, found_variants in variants.items():
        if not any(label.startswith(f"{model} (variant ") for label in labels):  # a grid has given them names
            continue
        notes.append(
            f"`{model}` was run with {len(found_variants)} configurations that differ in {len(differing[model])} "
            "arguments: they are shown as variants, and the configurations list what differs."
        )
    return labels, notes


def _told_apart(runs: Sequence[Run], settings: Sequence[str], labels: Sequence[str]) -> list[str]:
    """The labels, with those of the comparison where methods differ beside their arguments, such as in callbacks."""
    given: dict[tuple[str, str], set[str]] = {}
    for run, setting, label in zip(runs, settings, labels, strict=True):
        given.setdefault((setting, label), set()).update({run.label} - {""})
    shared = {label for (_, label), names in given.items() if len(names) > 1}
    return [run.label or label if label in shared else label for run, label in zip(runs, labels, strict=True)]


def _named(runs: Sequence[Run], settings: Sequence[str], labels: Sequence[str]) -> list[str]:
    """The labels, with the names that a grid gives to methods, where such a name means one method in each setting."""
    meant: dict[tuple[str, str], set[str]] = {}
    for run, setting, label in zip(runs, settings, labels, strict=True):
        meant.setdefault((setting, run.name), set()).add(label)
    doubtful = {name for (_, name), found in meant.items() if len(found) > 1}
    return [
        run.name if run.name and run.name not in doubtful else label for run, label in zip(runs, labels, strict=True)
    ]


def _unpaired(
    settings: Sequence[str],
    methods: Sequence[str],
    cells: Mapping[tuple[str, str], Sequence[Run]],
    mixed: bool,
    notes: list[str],
) -> frozenset[tuple[str, int | None]]:
    """Seeds whose runs differ in the partition although its name is the same."""
    unpaired = set()
    for setting in settings:
        seen: dict[int | None, tuple[str, str]] = {}
        for method in methods:
            for run in cells.get((setting, method), ()):
                other, known = seen.setdefault(run.seed, (method, run.partition_hash))
                if not run.partition_hash or not known or run.partition_hash == known:
                    continue
                if not mixed:
                    raise ReportError(
                        f"`{other}` and `{method}` with seed {run.seed} on `{setting}` have different partitions "
                        f"(`partition_hash` {known[:12]} and {run.partition_hash[:12]}), and one table compares runs "
                        "of the same data and partition; run both on the same split, or pass `--mixed` to see them "
                        "without paired tests."
                    )
                unpaired.add((setting, run.seed))
    for setting, seed in sorted(unpaired, key=str):
        notes.append(f"The runs with seed {seed} on {setting} do not share one partition: paired tests leave them out.")
    return frozenset(unpaired)


def _note_gaps(
    settings: Sequence[str], methods: Sequence[str], cells: Mapping[tuple[str, str], Sequence[Run]], notes: list[str]
) -> None:
    """Say which seeds are missing and which runs stopped early."""
    for setting in settings:
        there = [m for m in methods if (setting, m) in cells]
        seeds = {run.seed for m in there for run in cells[setting, m]}
        place = f" on {setting}" if len(settings) > 1 else ""
        for method in there:
            group = cells[setting, method]
            missing = sorted(seeds - {r.seed for r in group}, key=str)
            if missing:
                plural = "seeds" if len(missing) > 1 else "seed"
                notes.append(
                    f"`{method}`{place} lacks {plural} {', '.join(map(str, missing))}: its mean is over {len(group)} "
                    f"of {len(seeds)} seeds, and paired tests use the seeds that both methods have."
                )
            longest = max(int(r.rounds[-1]) for r in group)
            for run in group:
                if not run.finished or int(run.rounds[-1]) < longest:
                    notes.append(f"`{method}`{place}, seed {run.seed}, stopped after {int(run.rounds[-1])} rounds.")
            evaluated = {(int(r.rounds[np.isfinite(r.logged("val/accuracy"))][-1]), int(r.rounds[-1])) for r in group}
            for round_, rounds in sorted(e for e in evaluated if e[0] < e[1]):
                notes.append(
                    f"`{method}`{place} was last evaluated in round {round_} of {rounds}: its final accuracy is of "
                    "that round."
                )
