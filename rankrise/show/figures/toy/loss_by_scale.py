"""Figure 6: the loss against rescaled time for each initialisation scale."""

from rankrise.show.figures.saving import Drawn, table
from rankrise.show.figures.style import INK, STYLES, mark_stages, new_figure, shades
from rankrise.show.figures.toy.seed import ToySeed


def draw_loss(source: ToySeed) -> Drawn:
    """The loss on a linear and on a logarithmic axis, with Algorithm 1's staircase over it; and its data."""
    alphas = source.run.settings.alphas
    curves = {alpha: source.flow(alpha) for alpha in alphas}
    times, _, losses = source.staircase()
    figure = new_figure(3.0)
    panels = figure.subplots(1, 2)
    for panel, scale in zip(panels, ("linear", "log"), strict=True):
        for number, (alpha, colour) in enumerate(zip(alphas, shades(len(alphas)), strict=True)):
            style = STYLES[-1 - (len(alphas) - 1 - number) % len(STYLES)]
            panel.plot(
                curves[alpha][0],
                curves[alpha][2],
                color=colour,
                linestyle=style,
                label=rf"$\alpha$ = {alpha}",
            )
        panel.plot(times, losses, color=INK, linewidth=0.6, label="Algorithm 1")
        panel.set_yscale(scale)
        panel.set_xlim(0, source.until)
        panel.set_xlabel(r"rescaled time $t\,/\,\log(1/\alpha)$")
        mark_stages(panel, source.times, source.until)
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("loss")
    panels[1].set_ylabel("loss (log)")
    panels[0].legend(loc="upper right")
    figure.suptitle(r"Loss of a diagonal attention head, exact flow, as $\alpha \to 0$ (numbers: stage)")
    rows = [
        (alpha, *row)
        for alpha, (t, _, loss) in curves.items()
        for row in zip(t.tolist(), loss.tolist(), strict=True)
    ]
    rows += [("Algorithm 1", *row) for row in zip(times.tolist(), losses.tolist(), strict=True)]
    return figure, table(("alpha", "rescaled_time", "loss"), rows)
