"""Figure 3: gradient descent on diagonal and on full weights: what is learned when, and the loss."""

from matplotlib.axes import Axes

from rankrise.runs import Descent, FullWeights
from rankrise.show.figures.saving import Drawn, table
from rankrise.show.figures.style import BLUE, DASHES, INK, mark_stages, new_figure
from rankrise.show.figures.toy.entries import NAMES, plot_entries, plot_staircase
from rankrise.show.figures.toy.seed import ToySeed


def draw_diagonal_and_full(source: ToySeed) -> Drawn:
    """Diagonal weights above, full weights below, each with its loss; and the data."""
    alpha = source.descent_alpha
    descent, full = source.run.descent(source.seed, alpha), source.run.full(source.seed)
    times, points, losses = source.staircase()
    figure = new_figure(4.4)
    panels = figure.subplots(2, 3)
    diagonal = descent.times.numpy()
    for panel, letter, kind in zip(panels[0], "ab", ("VO", "KQ"), strict=False):
        chosen = source.coordinates(kind)
        plot_entries(panel, diagonal, descent.values.numpy()[:, chosen])
        plot_staircase(panel, times, points[:, chosen])
        panel.set_title(f"({letter}) {NAMES[kind]}", pad=11)
    panels[0, 0].set_ylabel(f"diagonal weights, $\\alpha$ = {alpha}\nentry")
    panels[0, 2].plot(diagonal, descent.losses, color=BLUE, label="gradient descent")
    panels[0, 2].plot(times, losses, color=INK, linewidth=0.6, linestyle=DASHES, label="Algorithm 1")
    panels[0, 2].set_title("(c) loss", pad=11)
    panels[0, 2].legend(loc="upper right", handlelength=1.2)
    rescaled = full.rescaled_times.numpy()
    singular = {"VO": full.singular_values_vo.numpy(), "KQ": full.singular_values_kq.numpy()}
    predicted = {"VO": full.predicted_vo.tolist(), "KQ": full.predicted_kq.tolist()}
    for panel, letter, kind in zip(panels[1], "de", singular, strict=False):
        plot_entries(panel, rescaled, singular[kind])
        name = "W_V W_O^T" if kind == "VO" else "W_K W_Q^T"
        panel.set_title(f"({letter}) singular values of ${name}$")
        _mark_predicted(panel, predicted[kind])
    scale = source.run.settings.full_scale
    panels[1, 0].set_ylabel(f"full weights, std {scale}\nsingular value")
    panels[1, 2].plot(rescaled, full.losses, color=BLUE)
    panels[1, 2].set_title("(f) loss")
    _mark_predicted(panels[1, 2], predicted["VO"] + predicted["KQ"])
    if predicted["VO"] or predicted["KQ"]:
        panels[1, 2].legend(loc="upper right", handlelength=1.2)
    for panel in panels[0]:
        mark_stages(panel, source.times, source.until)
        panel.set_xlim(0, source.until)
        panel.set_xlabel(r"$t\,/\,\log(1/\alpha)$")
    for panel in panels[1]:
        panel.set_xlim(0, float(rescaled[-1]))
        panel.set_xlabel(r"$t\,/\,\log(1/\mathrm{std})$")
    figure.suptitle(f"Attention head trained by gradient descent, step {descent.step:g} (numbers: stage)")
    return figure, _data(source, descent, full)


def _mark_predicted(panel: Axes, times: list[float]) -> None:
    """The stages predicted for full weights, dashed."""
    for number, time in enumerate(times):
        label = None if number else "predicted stages"
        panel.axvline(time, color=INK, linewidth=0.5, linestyle=DASHES, zorder=0, label=label)


def _data(source: ToySeed, descent: Descent, full: FullWeights) -> str:
    """A line per moment: entries for diagonal weights, singular values for full ones."""
    singular = {"VO": full.singular_values_vo.tolist(), "KQ": full.singular_values_kq.tolist()}
    names = [
        f"singular value {number} of {kind}" for kind in singular for number in range(len(singular[kind][0]))
    ]
    rows: list[tuple[object, ...]] = [
        ("diagonal", time, loss, *values)
        for time, loss, values in zip(
            descent.times.tolist(), descent.losses.tolist(), descent.values.tolist(), strict=True
        )
    ]
    blank = [""] * len(source.labels)
    moments = zip(full.rescaled_times.tolist(), full.losses.tolist(), *singular.values(), strict=True)
    rows += [("full", time, loss, *blank, *first, *second) for time, loss, first, second in moments]
    for kind, times in {"VO": full.predicted_vo.tolist(), "KQ": full.predicted_kq.tolist()}.items():
        rows += [(f"full, predicted rank {rank} of {kind}", time) for rank, time in enumerate(times, start=1)]
    return table(("weights", "rescaled_time", "loss", *source.labels, *names), rows)
