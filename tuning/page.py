"""study.html: one self-contained page of a study, in the style of a run's report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from howdah.config.metric_table import METRICS
from howdah.pages import page as pages
from howdah.pages.figures import number
from howdah.tuning import plots
from howdah.tuning.summary import Study, Trial

PAGE = "study.html"
_GREY = "#b8c1cc"
_BEST, _OTHERS = plots.COLOURS[1], plots.COLOURS[0]


def render(study: Study, config: str) -> str:
    """The page as HTML.

    Args:
        config: the study's configuration as YAML.
    """
    from markupsafe import Markup

    best = study.best
    tiles = [(f"best {study.metric}", number(best and best.value))]
    tiles += [("best trial", "–" if best is None else str(best.number))]
    tiles += [(f"trials {state}", str(study.count(state)))
              for state in ("finished", "pruned", "failed", "running", "waiting")]  # fmt: skip
    drawn = [one for one in study.trials if one.last is not None]
    figures: list[str] = []
    if drawn:
        figures += [_history(study, drawn), _evaluations(study, drawn)]
        figures += [_parameter(study, drawn, key) for key in study.keys]
        if len(study.keys) > 1:
            figures.append(_parallel(study, drawn))
    return pages.render(
        __package__,
        "study.html.j2",
        study=study,
        best=best,
        better=METRICS[study.metric].better,
        tiles=tiles,
        config=config,
        figures=[Markup(svg) for svg in figures],
    )


def _colour(study: Study, trial: Trial) -> str:
    best = study.best
    if best is not None and trial.number == best.number:
        return _BEST
    return _OTHERS if trial.state == "finished" else _GREY


def _history(study: Study, trials: list[Trial]) -> str:
    """Plot of the values by trial, with the best value so far."""
    score = METRICS[study.metric].score

    def draw(figure: Any, axes: Any) -> None:
        _dots(axes, study, trials, [one.number for one in trials])
        finished = [one for one in trials if one.value is not None]
        best, so_far = None, []
        for one in finished:
            best = one.value if best is None or score(one.value) > score(best) else best
            so_far.append(best)
        if finished:
            axes.step([one.number for one in finished], so_far, where="post", color=_BEST,
                      linewidth=1.2, label="best so far")  # fmt: skip
            axes.legend(frameon=False)
        axes.xaxis.get_major_locator().set_params(integer=True)
        _label(axes, "Trials", "trial", study.metric)

    return plots.svg("study-history", 4.6, 2.9, draw)


def _evaluations(study: Study, trials: list[Trial]) -> str:
    """Plot of each trial's evaluations, which the pruner compares."""

    def draw(figure: Any, axes: Any) -> None:
        for one in sorted(trials, key=lambda trial: trial.state == "finished"):
            points = sorted(one.evaluations.items())
            axes.plot([at for at, _ in points], [value for _, value in points], linewidth=1.2,
                      marker="o", markersize=3, color=_colour(study, one))  # fmt: skip
        axes.xaxis.get_major_locator().set_params(integer=True)
        _label(axes, "Evaluations (grey: pruned, failed or running)", "evaluation", study.metric)

    return plots.svg("study-evaluations", 4.6, 2.9, draw)


def _parameter(study: Study, trials: list[Trial], key: str) -> str:
    """Plot of the values by one tuned key."""
    having = [one for one in trials if key in one.params]

    def draw(figure: Any, axes: Any) -> None:
        values = [one.params[key] for one in having]
        if _all_numbers(values):
            at = values
            if key in study.log_scaled:
                _logarithmic(axes)
        else:
            names = sorted({str(value) for value in values})
            at = [names.index(str(value)) for value in values]
            axes.set_xticks(range(len(names)), [_cut(name) for name in names])
        _dots(axes, study, having, at)
        _label(axes, key, key, study.metric)

    return plots.svg(f"study-parameter-{key}", 4.6, 2.9, draw)


def _parallel(study: Study, trials: list[Trial]) -> str:
    """Parallel coordinates: an axis for each tuned key and the metric, a line for each trial."""
    import math

    axes_of: list[tuple[str, Callable[[Trial], Any]]] = [
        (key, lambda trial, key=key: trial.params.get(key)) for key in study.keys
    ]
    axes_of.append((study.metric, lambda trial: trial.last))
    whole = [one for one in trials if all(key in one.params for key in study.keys)]

    def draw(figure: Any, axes: Any) -> None:
        columns = []
        for place, (name, of) in enumerate(axes_of):
            values = [of(one) for one in whole]
            if _all_numbers(values):
                log = name in study.log_scaled
                scaled = [math.log(value) if log else float(value) for value in values]
                ends = [f"{min(values):.4g}", f"{max(values):.4g}"] if values else ["", ""]
            else:
                names = sorted({str(value) for value in values})
                scaled = [float(names.index(str(value))) for value in values]
                ends = [_cut(names[0]), _cut(names[-1])] if names else ["", ""]
            low, high = min(scaled, default=0.0), max(scaled, default=1.0)
            columns.append([(v - low) / (high - low) if high > low else 0.5 for v in scaled])
            axes.axvline(place, color=_GREY, linewidth=1)
            for end, (text, align) in enumerate(zip(ends, ("top", "bottom"), strict=True)):
                axes.text(place, end * 1.04 - 0.02, text, ha="center", va=align, fontsize=8)
        order = sorted(range(len(whole)), key=lambda n: _colour(study, whole[n]) != _GREY)
        for n in order:
            axes.plot(range(len(columns)), [column[n] for column in columns], alpha=0.8,
                      color=_colour(study, whole[n]), linewidth=1.4)  # fmt: skip
        axes.set_xticks(range(len(axes_of)), [name.rpartition(".")[2] for name, _ in axes_of])
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_ylim(-0.12, 1.12)
        axes.set_title("Parallel coordinates", loc="left")

    return plots.svg("study-parallel", max(4.6, 1.6 * len(axes_of)), 3.2, draw)


def _dots(axes: Any, study: Study, trials: list[Trial], x: list[Any]) -> None:
    for at, one in zip(x, trials, strict=True):
        axes.plot([at], [one.last], "o", markersize=5, color=_colour(study, one))


def _logarithmic(axes: Any) -> None:
    """Give a plot a logarithmic x axis with plain numbers; matplotlib's labels are formulas."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=7))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _label(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.25)


def _all_numbers(values: list[Any]) -> bool:
    return all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)


def _cut(text: str) -> str:
    return text if len(text) <= 24 else "…" + text[-23:]
