"""Plain gradient descent beside the exact flow: how close they are, and that the step separates them."""

from statistics import median

import numpy as np

from rankrise.runs.toy.curves import ACTIVE
from rankrise.show.figures.saving import Drawn, table
from rankrise.show.figures.style import BLUE, GREEN, INK, SKY, STYLES, VERMILION, mark_stages, new_figure
from rankrise.show.figures.toy.seed import ToySeed

MARKERS = ("o", "s", "^", "D")


def draw_descent(source: ToySeed) -> Drawn:
    """The loss by flow and by descent, and how late each coordinate comes by descent; and the data."""
    run, seed = source.run, source.seed
    alpha = source.descent_alpha
    descents = [run.descent(seed, alpha, step) for step in (None, *run.settings.other_steps)]
    descents.sort(key=lambda descent: descent.step, reverse=True)
    flow_times, _, flow_losses = source.flow(alpha)
    activation = run.flow(seed, alpha).activation_times(ACTIVE).numpy()
    figure = new_figure(3.0)
    left, right = figure.subplots(1, 2)
    left.plot(flow_times, flow_losses, color=INK, linewidth=1.2, label="exact flow")
    rows: list[tuple[object, ...]] = [
        ("loss", "flow", float(t), float(x)) for t, x in zip(flow_times, flow_losses, strict=True)
    ]
    for number, descent in enumerate(descents):
        colour, name = (VERMILION, BLUE, SKY, GREEN)[number % 4], f"step {descent.step:g}"
        left.plot(
            descent.times, descent.losses, color=colour, linestyle=STYLES[number], label=f"descent, {name}"
        )
        reached = descent.activation_times.numpy()
        both = np.isfinite(reached) & np.isfinite(activation) & (activation > 0)
        late = 100 * (reached[both] / activation[both] - 1)
        label = f"{name}: median {median(late.tolist()):.1f} %" if late.size else f"{name}: none active"
        marker = MARKERS[number % len(MARKERS)]
        right.plot(
            activation[both], late, marker, markersize=3, color=colour, markerfacecolor="none", label=label
        )
        rows += [
            ("loss", name, float(t), float(x)) for t, x in zip(descent.times, descent.losses, strict=True)
        ]
        rows += [
            ("percent late", name, float(t), float(x)) for t, x in zip(activation[both], late, strict=True)
        ]
    left.set_yscale("log")
    left.set_ylabel("loss (log)")
    left.legend(loc="lower left")
    right.axhline(0, color=INK, linewidth=0.6)
    right.set_ylabel("% later than in the flow")
    low, high = right.get_ylim()
    right.set_ylim(min(0.0, low), high + 0.3 * (high - low))
    right.legend(loc="upper left", handlelength=1.0)
    left.set_title(rf"loss, $\alpha$ = {alpha}", pad=11)
    right.set_title("when each coordinate becomes active", pad=11)
    for panel in (left, right):
        panel.set_xlim(0, source.until)
        panel.set_xlabel(r"rescaled time $t\,/\,\log(1/\alpha)$")
        mark_stages(panel, source.times, source.until)
    figure.suptitle("Gradient descent beside the exact flow")
    return figure, table(("quantity", "curve", "rescaled_time", "value"), rows)
