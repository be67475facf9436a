"""The order of the data and the draws of its augmentation, from a counter-based generator.

An epoch's plan depends on the seed and the epoch alone: not on the number of processes, the device, or what
was done before, so that a run resumes anywhere.
"""

import numpy
import torch
from torch import Tensor

from rankrise.train._rand_augment import PER_IMAGE

INDEX, DOWN, RIGHT, MIRRORED = range(4)
"""The columns of a plan."""
OPERATIONS = slice(4, 4 + PER_IMAGE)
"""The columns of RandAugment's draws, where there are any."""


def epoch_plan(
    examples: int, seed: int, epoch: int, margin: int = 0, mirror: bool = False, operations: int = 0
) -> Tensor:
    """One row for each example, in the order of training: its index, how far its crop moves down and right
    (between -margin and margin), and whether it is mirrored. int64 [examples, 4]

    With `operations`, that many draws of RandAugment to choose from, two columns more: its draws.

    >>> epoch_plan(5, seed=0, epoch=3)[:, INDEX].sort().values.tolist()
    [0, 1, 2, 3, 4]
    """
    generator = numpy.random.Generator(numpy.random.Philox(key=[seed, epoch]))
    plan = numpy.zeros((examples, 4), dtype=numpy.int64)
    plan[:, INDEX] = generator.permutation(examples)
    if margin:
        plan[:, DOWN : RIGHT + 1] = generator.integers(-margin, margin, size=(examples, 2), endpoint=True)
    if mirror:
        plan[:, MIRRORED] = generator.integers(0, 2, size=examples)
    if operations:
        drawn = generator.integers(0, operations, size=(examples, PER_IMAGE))
        plan = numpy.concatenate([plan, drawn], axis=1)
    return torch.from_numpy(plan)


def plain_plan(examples: int) -> Tensor:
    """The examples in their own order, untouched, as validation takes them. int64 [examples, 4]"""
    plan = torch.zeros(examples, 4, dtype=torch.int64)
    plan[:, INDEX] = torch.arange(examples)
    return plan
