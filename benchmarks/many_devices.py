"""On paper: what tracking a sharded model takes, in memory and in traffic between ranks.

    python benchmarks/many_devices.py

A measurement gathers one attention layer at a time on every rank, and drops it again. Rank 0 copies it first
to where the initial weights are, so that it holds the tracked weights twice, then and now. A ring brings
every rank the parts that it has not. FSDP2 itself gathers all weights for the forward pass and again for the
backward pass, and scatters the gradients once, in two bytes each with bfloat16.
"""

from argparse import ArgumentParser

# Llama 7B: layers, width, heads times their size, and all parameters.
LAYERS, WIDTH, HEADS_WIDTH, PARAMETERS = 32, 4096, 4096, 6_738_415_616
RANKS, WEIGHT_BYTES, EVERY = 8, 4, 20


def sums() -> dict[str, float]:
    """Bytes, and the share of the training's own traffic."""
    layer = 4 * HEADS_WIDTH * WIDTH * WEIGHT_BYTES  # W_Q, W_K, W_V and W_O
    received = LAYERS * layer * (RANKS - 1) // RANKS
    of_training = 3 * 2 * PARAMETERS * (RANKS - 1) // RANKS
    return {
        "device memory of each rank, while a layer is gathered": layer,
        "kept on rank 0, on its device or its host (`keep`)": 2 * LAYERS * layer,
        "received by each rank for one measurement": received,
        "received by each rank for one training step": of_training,
        f"traffic added by measuring every {EVERY} steps": received / (EVERY * of_training),
    }


def main() -> None:
    ArgumentParser(description=__doc__).parse_args()
    print(f"Llama 7B on {RANKS} ranks, {WEIGHT_BYTES} bytes a weight")
    for name, number in sums().items():
        shown = f"{100 * number:.2f} %" if number < 1 else f"{number / 1e9:.3f} GB"
        print(f"{name:56}{shown:>12}")


if __name__ == "__main__":
    main()
