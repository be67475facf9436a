"""Curves without stages, as training makes them: smooth decay and growth, recorded in different ways, under
noise of different sizes and kinds.
"""

from typing import Any

import numpy as np


def smooth_curve(seed: int) -> tuple[str, np.ndarray, np.ndarray, Any]:
    """Name, steps (n,), values (n,) and direction of a random curve."""
    source = np.random.default_rng(seed)
    length = int(source.choice([1000, 3000, 10000]))
    steps = [
        np.arange(1, length + 1),
        np.unique(np.geomspace(1, length, source.integers(60, 250)).astype(int)),
        np.arange(20, length + 1, 20),
    ][source.integers(3)].astype(float)
    time = steps / length
    unit, power, floor = 10 ** source.uniform(-3, 0), source.uniform(0.05, 1.5), 10 ** source.uniform(-4, 0)
    gain = 10 ** source.uniform(-1, 1.5)
    rates = 10 ** source.uniform(-1, 3, size=4)
    curves = {
        "constant": np.ones_like(time),
        "power law": (1 + time / unit) ** -power,
        "power law to a floor": floor + (1 + time / unit) ** -power,
        "exponential": np.exp(-time * 10 ** source.uniform(-1, 1)),
        "exponential to a floor": floor + np.exp(-time / unit),
        "stretched exponential": floor + np.exp(-((time / unit) ** source.uniform(0.2, 0.9))),
        "exponentials": floor + (source.uniform(0.1, 1, size=4) * np.exp(-time[:, None] * rates)).sum(1),
        "slow logistic": floor + 1 / (1 + (time / unit) ** (1 / source.uniform(0.5, 1))),
        "growth by a power": 1 + gain * time ** source.uniform(0.2, 2),
        "saturating growth": 1 + gain * (1 - np.exp(-time / unit)),
        "logarithmic growth": 1 + source.uniform(0.1, 3) * np.log1p(time / unit),
    }
    name = list(curves)[seed % len(curves)]
    noise = source.standard_normal(len(time))
    memory = source.choice([0, 0, 0.5, 0.9])
    for index in range(1, len(noise)):
        noise[index] = memory * noise[index - 1] + np.sqrt(1 - memory**2) * noise[index]
    if source.random() < 0.2:
        noise += (source.random(len(noise)) < 0.01) * source.exponential(8, len(noise))
    values = curves[name] * np.exp(source.choice([0, 0.01, 0.05, 0.2]) * noise)
    return name, steps, values, "up" if "growth" in name else "down"
