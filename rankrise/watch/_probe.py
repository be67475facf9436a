"""Is a layout right? The module itself tells, by what it does when weights change their signs.

Attention has symmetries that name its heads. If the value of head h changes its sign, the h-th part of what
goes into the output projection does, and no other part changes. If its query changes its sign, only that part
changes; if its key does too, nothing changes. The query of one token acts on that token alone, its key on
others; one dimension of it acts on all dimensions of the head's values. A layout for which all of this holds
is the one that the module uses. No mask, position (rotary or added), softmax, gate or kernel has to be
rebuilt for it, and signs are exact in any floating type.

Beside that, each layer that was read has to give what its weight gives, and what was not read must not stand
between the tokens and what was. What signs do not see is told as a limit of the proof: further weights in the
path, and whether a query meets its key, and a value its output, in their plain product.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.watch._families import Read
from rankrise.watch._linear import has_one_matrix, linear
from rankrise.watch._path import before_and_beside
from rankrise.watch._trial import HALF_TOLERANCE, LONGER, Refuted, Trial
from rankrise.watch._twin import Unprovable, is_tied

EXCHANGED = "the query of one token changes what other tokens get, as a key does"


@dataclass(frozen=True)
class Limits:
    """What a proof by signs does not cover."""

    unread: tuple[str, ...]
    """Weights that change what the module gives, and are not read."""
    turned: bool
    """Queries and keys do not meet in their plain product: rotary positions, norms, a difference of maps."""
    bent: bool
    """Values do not go to the output projection as they are: gates, norms."""


class Partly(Refuted):
    """What is read is right, and only a part of the way from the tokens."""


def probe(module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], read: Read) -> Limits:
    """Try whether `read(module)` is the layout by which `module(*args, **kwargs)` works, on a copy of it, and
    give the limits of the proof. Raises `Refuted` or `Unprovable`.

    A weight that has several names is tried with one of its own for each, and as it is only if that fails,
    as where the module calls it by one of them."""
    if is_tied(module):
        with suppress(Refuted, Unprovable):
            return _probed(*_begun(module, args, kwargs, read))
    return _probed(*_begun(module, args, kwargs, read, untied=False))


def _probed(trial: Trial, base: Tensor) -> Limits:
    _probe_layers(trial)
    _probe_uses(trial)
    if trial.repeated:
        _probe_repeated(trial, base)
    if trial.blocks is None:
        _probe_whole(trial, base)
    else:
        _probe_blocks(trial, base)
    if not trial.tied:
        _probe_tokens(trial, base)
    _probe_wholeness(trial)
    before, beside = before_and_beside(trial)
    if before:
        stand = "stands" if len(before) == 1 else "stand"
        raise Partly(
            f"{', '.join(before)} {stand} between the tokens and what is read, so that the products are a "
            "part of those that it works with"
        )
    return Limits(tuple(beside), not _meet_plainly(trial, base), not _leave_plainly(trial))


def work_alike(
    one: nn.Module, other: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], read: Read
) -> bool:
    """Whether two modules are read alike and, with the same weights and tokens, give the same."""
    if type(one) is not type(other) or _shapes(one) != _shapes(other):
        return False
    try:
        (first, _), (second, _) = (_begun(module, args, kwargs, read) for module in (one, other))
    except Unprovable:
        return False
    if first.group != second.group or any(
        not torch.equal(numbers, second.numbers[role]) for role, numbers in first.numbers.items()
    ):
        return False
    first.set(second.weights)
    return first.alike(first.call(), second.call())


def _shapes(module: nn.Module) -> list[tuple[str, torch.Size]]:
    return [(name, parameter.shape) for name, parameter in module.named_parameters()]


def _begun(
    module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], read: Read, untied: bool = True
) -> tuple[Trial, Tensor]:
    """A trial and what it gives at first; in the module's own type where its kernels take no float64."""
    for dtype in (torch.float64, None):
        try:
            trial = Trial(module, args, kwargs, read, dtype, untied)
            return trial, trial.run()
        except (Refuted, Unprovable):
            raise
        except Exception as error:
            failed = error
    raise Unprovable(f"a copy of it does not run by itself ({_sentence(failed)})") from failed


def _probe_layers(trial: Trial) -> None:
    """Each layer that was read, or whose weight was, gives `x @ weight + bias`, whatever class it is of."""
    read_whole = [one for several in trial.layers.values() for one in several if isinstance(one, nn.Module)]
    reads = {layer: partial(linear, layer) for layer in read_whole}
    for role in trial.layers:
        for owner in trial.owners(role):
            if owner not in reads and has_one_matrix(owner):
                weight = owner.weight.T if trial.is_turned(role) else owner.weight
                reads[owner] = partial(linear, weight, owner.bias)
    wrong: dict[str, None] = {}
    another: dict[str, None] = {}

    def see(layer: nn.Module, args: tuple[Tensor, ...], result: Tensor) -> None:
        given, found = (
            tensor.movedim(1, -1) if isinstance(layer, (nn.Conv1d, nn.Conv2d)) else tensor
            for tensor in (args[0], result)
        )
        read = reads[layer]()
        if given.shape[-1] != read.weight.shape[1]:
            wrong[type(layer).__name__] = None
            return
        expected = given @ read.weight[0] + (0.0 if read.bias is None else read.bias[0])
        comparable = expected.shape == found.shape  # not a convolution with strides
        if comparable and (expected - found).abs().max() > trial.tolerance * expected.abs().max():
            wrong[type(layer).__name__] = None
        elif has_one_matrix(layer):
            another.update({role: None for role in trial.layers if not trial.reads_bias_of(role, layer)})

    with ExitStack() as hooks:
        for layer in reads:
            hooks.enter_context(layer.register_forward_hook(see))
        trial.call()
    if wrong:
        raise Refuted(f"its {' and its '.join(wrong)} does not give what its weight and bias give")
    if another:
        raise Refuted(f"its {' and its '.join(another)} is read without the bias that its layer adds")


def _probe_uses(trial: Trial) -> None:
    """Each role acts on what the module gives, and its bias does; of single tokens, neither queries nor keys
    do, and of several, a softmax does not see the bias of keys."""
    before = trial.call()

    def is_silent(numbers: Tensor) -> bool:
        trial.set(trial.moved(numbers[numbers > 0].unique()))
        alike = torch.equal(trial.call(), before)
        trial.set(trial.weights)
        return alike

    silent = [role for role, numbers in trial.numbers.items() if is_silent(numbers)]
    if silent and silent != ["query", "key"]:
        raise Refuted(f"what is read as its {' and its '.join(silent)} changes nothing that it gives")
    for role in (one for one in ("query", "value") if one not in silent):
        bias = trial.numbers[role][:, -1]
        if (bias > 0).any() and is_silent(bias):
            raise Refuted(f"what is read as the bias of its {role} changes nothing that it gives")


def _probe_repeated(trial: Trial, base: Tensor) -> None:
    """Where one weight is read more than once, all weights that are read are turned together: what heads give
    turns too, and what the module gives stays. No more than that can be seen."""
    read = torch.cat([numbers.flatten() for numbers in trial.numbers.values()])
    result = trial.result
    turned = trial.run_with(_times(trial.weights, read, -1.0))
    as_read = trial.blocks is None or trial.alike(turned, -base)
    if not as_read or (trial.result - result).abs().max() > trial.tolerance * result.abs().max():
        raise Refuted(f"{trial.repeated}, and it does not use them in that way")
    raise Unprovable(
        f"{trial.repeated}, which changes of sign cannot tell apart: read each once, or check a copy of the "
        "model in which each has its own"
    )


def _probe_blocks(trial: Trial, base: Tensor) -> None:
    """Head by head, at the input of the output projection: [..., heads, d_head]; and by what it gives."""
    result = trial.result
    for signs, own, paired in _pairs(trial):
        turned = base * own.to(base)[:, None]
        trial.same(trial.run(value=signs), turned, "the values of heads go to other heads' outputs")
        trial.same(trial.run(**paired), base, "queries and keys are not paired in that way")
        _same_result(trial, result, "queries or keys")
        trial.run(value=signs, output=own)
        _same_result(trial, result, "values or outputs")
        if trial.places["key"][0].numel() and not trial.tied:
            trial.only(trial.run(key=signs), base, own, "keys belong to other heads, or are not keys")
    for signs in _patterns(trial.heads):
        factors = torch.where(signs < 0, 2.0, 1.0) if trial.tied else signs
        trial.only(trial.run(query=factors), base, signs, "queries belong to other heads, or are not queries")
    values = trial.numbers["value"]
    for signs in _patterns(values.shape[-1]):
        there = signs < 0
        change = (trial.run_with(_times(trial.weights, values[..., there], -1.0)) - base).abs()
        if (change.flatten(0, -3).amax(0)[:, there] <= trial.tolerance * base.abs().max()).any():
            raise Refuted("the dimensions of its values go to others of its outputs")


def _same_result(trial: Trial, before: Tensor, acting: str) -> None:
    """The module gives what it gave before: its heads, unchanged, are all that these make."""
    if (trial.result - before).abs().max() > trial.tolerance * before.abs().max():
        raise Refuted(f"its {acting} act on what it gives in another way too")


def _probe_whole(trial: Trial, base: Tensor) -> None:
    """By the module's output alone, where its output projection is not a module that is called."""
    for signs, own, paired in _pairs(trial):
        trial.same(trial.run(value=signs, output=own), base, "values and outputs are not paired in that way")
        trial.same(trial.run(**paired), base, "queries and keys are not paired in that way")
        factors = torch.where(own < 0, 2.0, 1.0) if trial.tied else own
        for found in (trial.run(value=signs), trial.run(query=factors)):
            if not trial.differs(found, base):
                raise Unprovable(LONGER)


def _pairs(trial: Trial) -> Iterator[tuple[Tensor, Tensor, dict[str, Tensor]]]:
    """Signs of keys, the same by head, and what has to be turned with them so that no product changes. A part
    that the keys of all heads share is turned in all of them alone."""
    for signs in _patterns(trial.groups):
        own = torch.tensor([signs[group] for group in trial.group])
        yield signs, own, {"query": own} if trial.tied else {"query_own": own, "key": signs}
    if trial.shared.any():
        every, own = -torch.ones(trial.groups), -torch.ones(trial.heads)
        yield every, own, {"query": own, "key": every, "key_shared": -torch.ones(1)}


def _probe_tokens(trial: Trial, base: Tensor) -> None:
    """The query of a token acts on one row of the output, its key on several: else the two are exchanged."""
    queries, keys = trial.rows("query"), trial.rows("key")
    if queries is None or keys is None or trial.blocks is None:
        _probe_features(trial)
        return
    if queries != keys:  # a class token's query, or one sequence that looks at another
        if queries != base[..., 0, 0].numel():
            raise Refuted("there are as many outputs as keys, not as queries")
        return
    rows = {0, keys // 2, keys - 1}
    touched = {
        role: max(trial.touched(trial.run_with(trial.weights, (role, row)), base) for row in rows)
        for role in ("query", "key")
    }
    if touched["query"] > 1:
        raise Refuted(EXCHANGED)
    if touched["key"] < 2:
        raise Unprovable(LONGER)


def _probe_features(trial: Trial) -> None:
    """The same where no layer is seen to be called for them, by a feature of a token that only one of the two
    takes in."""
    reached = {}
    for role, other in (("query", "key"), ("key", "query")):
        without = torch.cat([trial.numbers[one][:, 0].flatten() for one in (other, "value")])
        reached[role] = trial.reached(_times(trial.weights, without, 0.0))
    if reached["query"] > 1 and reached["key"] == 1:
        raise Refuted(EXCHANGED)


def _probe_wholeness(trial: Trial) -> None:
    """The first dimension of a query acts on every dimension of its head's values: of several heads that are
    read as one, on those of the first alone. Each is seen by itself, behind an output projection without the
    others."""
    query, output = trial.numbers["query"], trial.numbers["output"]
    size, factor = output.shape[1], 2.0 if trial.tied else -1.0
    if trial.tolerance == HALF_TOLERANCE:  # what one dimension does is as small
        return
    for dimension in {1, size // 2, size - 1} - {0, size}:
        others = output[:, torch.arange(size) != dimension]
        without_others = _times(trial.weights, others, 0.0)
        given = []
        for turned in (query[..., :0], query[..., :1], query):
            trial.set(_times(without_others, turned, factor))
            given.append(trial.call())
        trial.set(trial.weights)
        least = trial.tolerance * given[0].abs().max()
        by_first, by_all = ((one - given[0]).abs().max() for one in given[1:])
        if by_first <= least < by_all:
            raise Refuted("a part of a query acts on a part of its values, so several heads are read as one")


def _times(weights: Tensor, numbers: Tensor, factor: float) -> Tensor:
    """All weights, those of these numbers times a factor."""
    result = weights.clone()
    result[numbers[numbers > 0].unique().to(weights.device) - 1] *= factor
    return result


def _patterns(count: int) -> Iterator[Tensor]:
    """Signs [count] that tell any two apart: one by the bits of its number, and all changed together."""
    numbers = torch.arange(count)
    yield -torch.ones(count)
    for bit in range((count - 1).bit_length()):
        yield 1.0 - 2.0 * ((numbers >> bit) & 1)


def _meet_plainly(trial: Trial, base: Tensor) -> bool:
    """Where the dimensions of a query are mixed, and those of its key by the inverse, their product stays as
    it is; a part that all keys share is mixed by itself."""
    turn, shared = _turns(stretched=not trial.tied), trial.shared
    common, turns = turn(int(shared.sum())), []
    for _ in range(trial.groups):
        one = torch.zeros(len(shared), len(shared), dtype=torch.float64)
        one[~shared[:, None] & ~shared] = turn(int((~shared).sum())).flatten()
        one[shared[:, None] & shared] = common.flatten()
        turns.append(one)
    weights = _turned(trial, trial.weights, "query", [turns[group] for group in trial.group])
    if not trial.tied:
        weights = _turned(trial, weights, "key", [torch.linalg.inv(one).mT for one in turns])
    return trial.alike(trial.run_with(weights), base)


def _leave_plainly(trial: Trial) -> bool:
    """The same for values and the output projection."""
    turn, before = _turns(stretched=True), trial.call()
    turns = [turn(trial.numbers["value"].shape[-1]) for _ in range(trial.groups)]
    weights = _turned(trial, trial.weights, "value", turns)
    back = [torch.linalg.inv(one) for one in turns]
    trial.set(_turned(trial, weights, "output", [back[group] for group in trial.group]))
    after = trial.call()
    trial.set(trial.weights)
    return bool((after - before).abs().max() <= trial.tolerance * before.abs().max())


def _turns(stretched: bool) -> Callable[[int], Tensor]:
    """Gives random orthogonal matrices of a size; `stretched` changes lengths too, which a norm undoes."""
    generator = torch.Generator().manual_seed(2)

    def turn(size: int) -> Tensor:
        turned = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64)).Q
        return turned * torch.linspace(0.7, 1.4, size, dtype=torch.float64) if stretched else turned

    return turn


def _turned(trial: Trial, weights: Tensor, role: str, turns: list[Tensor]) -> Tensor:
    """All weights, with the columns of each block (of the output, its rows) mixed by a matrix."""
    result = weights.clone()
    for numbers, turn in zip(trial.numbers[role], turns, strict=True):
        there = (numbers > 0).to(weights.device)
        block = torch.where(there, weights[numbers.clamp(min=1).to(weights.device) - 1], 0.0)
        mixed = turn.to(block) @ block if role == "output" else block @ turn.to(block)
        result[numbers.to(weights.device)[there] - 1] = mixed[there]
    return result


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
