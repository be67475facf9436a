"""What a low rank cannot hold of a change: biases, norms, embeddings, a new head; kept whole or left out."""

from dataclasses import dataclass, field

from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.use._weights import Matrix, Pair, own_tensors


@dataclass(frozen=True, eq=False)
class Rest:
    """The other tensors that have changed."""

    changed: tuple[str, ...] = ()
    """Their names, in the model's order."""
    kept: bool = True
    """Whether they are part of the adapter."""
    biases: dict[str, Tensor] = field(default_factory=dict)
    """Of linear layers, by the layer's name."""
    modules: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """Modules that are kept as a whole, by name: all their tensors by the name within the module."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What is kept, by the name in the model."""
        biases = {f"{name}.bias": bias for name, bias in self.biases.items()}
        inside = {f"{name}.{leaf}": t for name, module in self.modules.items() for leaf, t in module.items()}
        return biases | inside

    @property
    def parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors.values())


def rest_of(pair: Pair, keep: bool) -> Rest:
    """What else has changed; with `keep`, with its values in the tuned model, as PEFT can hold them."""
    changed = []
    for name, after in pair.changed():
        if keep and after.is_floating_point() and not after.isfinite().all():
            raise RankriseError(f"{name} holds infinite or undefined numbers: check the tuned model.")
        changed.append(name)
    if not keep:
        return Rest(tuple(changed), kept=False)
    linear = {matrix.name for matrix in pair.matrices}
    biases: dict[str, Tensor] = {}
    wanted: set[str] = set()
    owners = _owners(pair.tuned.model)
    for name in changed:
        module, _, leaf = name.rpartition(".")
        if module in linear and leaf == "bias":
            biases[module] = pair.after(name).clone()
        else:
            wanted |= owners[name]
    outermost = [name for name in sorted(wanted) if not any(name.startswith(f"{other}.") for other in wanted)]
    for name in outermost:
        own = [each for each in changed if name in owners[each]]
        _refuse_unholdable(name, own, pair.matrices, pair.tuned.model)
    first = _first_names(pair.tuned.model)
    modules = {
        module: {
            leaf: pair.after(first[f"{module}.{leaf}"]).clone()
            for leaf in pair.tuned.model.get_submodule(module).state_dict()
        }
        for module in outermost
    }
    return Rest(tuple(changed), True, biases, modules)


def _owners(model: nn.Module) -> dict[str, set[str]]:
    """The modules that use each tensor: several where it is tied."""
    first = _first_names(model)
    found: dict[str, set[str]] = {name: set() for name in own_tensors(model)}
    for name in model.state_dict():
        found[first[name]].add(name.rpartition(".")[0])
    return found


def _first_names(model: nn.Module) -> dict[str, str]:
    """Of each tensor's name, the first name of the same tensor."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    names = {name: first[id(parameter)] for name, parameter in model.named_parameters(remove_duplicate=False)}
    return {name: names.get(name, name) for name in model.state_dict()}


def _refuse_unholdable(name: str, own: list[str], matrices: tuple[Matrix, ...], model: nn.Module) -> None:
    """PEFT keeps whole modules: none that holds a matrix that is cut, such as the model itself, whose own
    parameters timm's `cls_token` and `pos_embed` are; and none that it would take another for."""
    inside = [matrix.name for matrix in matrices if matrix.name.startswith(f"{name}.") or not name]
    if inside:
        raise RankriseError(
            f"{', '.join(own)} changed and cannot be part of an adapter: PEFT keeps whole modules, and "
            f"{name or 'the model itself'}, to which this belongs, also holds {inside[0]}, which is cut; "
            'pass rest="leave" (--leave_rest), and save it beside the adapter yourself.'
        )
    shadowed = [other for other, _ in model.named_modules() if other != name and other.endswith(name)]
    if shadowed:
        raise RankriseError(
            f"{name} changed and is to be kept whole, but PEFT would take {shadowed[0]} for it: "
            'pass rest="leave".'
        )
