"""On paper: what tracking a sharded model takes, in memory and in traffic between ranks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A transformer whose heads are tracked; `parameters` counts all its weights."""

    name: str
    layers: int
    width: int
    heads: int
    groups: int
    head_size: int
    parameters: int

    @property
    def layer_weights(self) -> int:
        """Entries of one layer's W_Q, W_K, W_V and W_O."""
        return 2 * (self.heads + self.groups) * self.head_size * self.width


LLAMA_7B = Shape(
    "Llama 7B", layers=32, width=4096, heads=32, groups=32, head_size=128, parameters=6_738_415_616
)


@dataclass(frozen=True)
class Sharded:
    """Bytes of tracking `shape` under FSDP2 on `ranks` ranks, which keep the weights in `weight_bytes` each.

    A measurement gathers one attention layer at a time on every rank, `layer_bytes`, and drops it again. Rank
    0 copies it first to where the initial weights are (`keep`: its device or the host), so that it holds the
    tracked weights twice, then and now. A ring brings every rank the parts that it has not. FSDP2 itself
    gathers all weights for the forward pass and again for the backward pass, and scatters the gradients once,
    in two bytes each with bfloat16.
    """

    shape: Shape
    ranks: int
    weight_bytes: int
    every: int

    @property
    def layer_bytes(self) -> int:
        return self.shape.layer_weights * self.weight_bytes

    @property
    def tracked_bytes(self) -> int:
        """Of all tracked weights once, as in `initial.safetensors`."""
        return self.shape.layers * self.layer_bytes

    @property
    def kept_bytes(self) -> int:
        """On rank 0, on its device or its host: the initial weights, and those of one measurement."""
        return 2 * self.tracked_bytes

    @property
    def traffic_bytes(self) -> int:
        """Received by each rank in one measurement."""
        return self.tracked_bytes * (self.ranks - 1) // self.ranks

    @property
    def training_bytes(self) -> int:
        """Received by each rank in one training step."""
        return 3 * 2 * self.shape.parameters * (self.ranks - 1) // self.ranks

    @property
    def traffic_percent(self) -> float:
        """Of the training's own traffic, if every `every`-th step is measured."""
        return 100 * self.traffic_bytes / (self.every * self.training_bytes)

    def to_dict(self) -> dict[str, object]:
        names = ("layer_bytes", "tracked_bytes", "kept_bytes", "traffic_bytes", "training_bytes")
        return {
            "model": self.shape.name,
            "ranks": self.ranks,
            "weight_bytes": self.weight_bytes,
            **{name: getattr(self, name) for name in names},
            "traffic_percent": self.traffic_percent,
        }

    def __str__(self) -> str:
        rows = {
            "device memory of every rank, while a layer is gathered": self.layer_bytes,
            "kept on rank 0 (device or host, by `keep`)": self.kept_bytes,
            "initial.safetensors": self.tracked_bytes,
            "received by each rank for one measurement": self.traffic_bytes,
            "received by each rank for one training step": self.training_bytes,
        }
        lines = [f"{self.shape.name} on {self.ranks} ranks, {self.weight_bytes} bytes a weight"]
        lines += [f"  {name:56}{size / 1e9:8.3f} GB" for name, size in rows.items()]
        share = f"  {f'traffic added by measuring every {self.every} steps':56}{self.traffic_percent:8.2f} %"
        return "\n".join([*lines, share])
