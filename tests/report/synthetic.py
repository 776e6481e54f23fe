"""Run folders with known numbers."""

import csv
import json
import zlib
from pathlib import Path

import numpy as np
import yaml

BYTES = 40_000.0
"""Bytes that one client sends or receives: 10 000 parameters."""


def png(size=(240, 120)):
    """A real picture without matplotlib: one row of pixels per line, 8-bit RGB."""
    width, height = size

    def chunk(kind, data):
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    pixels = np.zeros((height, 1 + 3 * width), dtype=np.uint8)
    pixels[:, 1:] = np.repeat(
        np.random.default_rng(0).integers(0, 255, (height, 20), dtype=np.uint8), 3 * width // 20, 1
    )
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels.tobytes())) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def write_run(
    folder,
    model="FedAvg",
    seed=0,
    accuracy=(0.5, 0.7, 0.8),
    data="Digits",
    partition="Dirichlet(alpha=0.5)",
    partition_hash=None,
    clients=10,
    seconds=2.0,
    extra=0.0,
    arguments=None,
    columns=None,
    picture=True,
    finished=True,
    **summary,
):
    """Write a run folder as the engine does; ``columns`` adds or replaces columns of the log."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    n = len(accuracy)
    table = {
        "round": range(1, n + 1),
        "val/accuracy": accuracy,
        "val/loss": ["" if a == "" else 2.0 - a for a in accuracy],
        "round/clients": [clients] * n,
        "round/bytes_up": [clients * (BYTES + extra)] * n,
        "round/bytes_down": [clients * BYTES] * n,
        "round/extra_bytes_up": [clients * extra] * n,
        "round/seconds": [seconds] * n,
        "round/cohort": [" ".join(map(str, range(clients)))] * n,
        **(columns or {}),
    }
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
    config = {
        "seed_everything": seed,
        "model": {"class_path": f"flightning.{model}", "init_args": {"lr": 0.1, **(arguments or {})}},
        "data": {"class_path": f"flightning.{data}", "init_args": {"num_clients": clients, "batch_size": 32}},
        "trainer": {"max_epochs": n, "default_root_dir": str(folder), "logger": False},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    known = [a for a in accuracy if a != ""]
    content = {
        "model": model,
        "data": data,
        "partition": partition,
        "partition_hash": f"hash{seed}" if partition_hash is None else partition_hash,
        "seed": seed,
        "rounds": n,
        "best_accuracy": max(known),
        "final_accuracy": known[-1],
        "finished": finished,
        **summary,
    }
    (folder / "summary.json").write_text(json.dumps(content))
    if picture:
        (folder / "partition.png").write_bytes(png())
    return folder


def learning_curve(rounds, top, speed, noise, seed):
    """Saturating accuracies with some noise."""
    rng = np.random.default_rng(seed)
    t = np.arange(1, rounds + 1)
    return [
        round(float(a), 6) for a in np.clip(top * (1 - 0.9 * np.exp(-speed * t)) + rng.normal(0, noise, rounds), 0, 1)
    ]


def write_grid(root, methods=("FedAvg", "FedProx", "SCAFFOLD", "FedRL", "SOLO"), seeds=3, rounds=20, **kwargs):
    """Runs of several methods and seeds with plausible curves."""
    for i, model in enumerate(methods):
        for seed in range(seeds):
            accuracy = learning_curve(rounds, 0.9 + 0.02 * i * (-1) ** i, 0.2 * (1 + 0.15 * i), 0.01, 100 * i + seed)
            fair = {
                "clients/accuracy_mean": accuracy,
                "clients/accuracy_std": [0.05 + 0.01 * i] * rounds,
                "clients/accuracy_worst10": [a - 0.15 for a in accuracy],
                "clients/accuracy_best10": [min(1.0, a + 0.04) for a in accuracy],
                "clients/jain": [0.99 - 0.001 * i] * rounds,
            }
            write_run(
                Path(root) / f"{model}-{seed}",
                model,
                seed,
                accuracy,
                seconds=2.0 + 0.3 * i + 0.05 * seed,
                extra=BYTES if model == "SCAFFOLD" else 0.0,
                arguments={"mu": 0.1} if model == "FedProx" else None,
                columns=fair,
                **kwargs,
            )
    return Path(root)
