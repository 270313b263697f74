"""Pictures: where text lies, how much a panel holds, and what a bar and a dot stand for."""

import functools
import itertools

import pytest

pytest.importorskip("matplotlib")

from bench_cases import measured
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from jaxkernels.bench import dots, plot


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draws a picture and returns matplotlib's figure, laid out."""
    found = []
    monkeypatch.setattr(
        Figure, "savefig", lambda self, path, dpi: (self.canvas.draw(), found.append(self))
    )

    def draw(figure):
        plot.draw(figure, "a device", tmp_path / "b.png")
        return found.pop()

    return draw


TIERS = ("warp", "block", "block_smem", "cluster", "block_uncached", "spread")
LABELS = ("title", "across", "up")


@pytest.mark.parametrize(
    "names",
    [TIERS, TIERS[::-1], TIERS[3:] + TIERS[:3], TIERS[5:] + TIERS[:5]],
    ids=lambda names: names[-1],
)
@pytest.mark.parametrize("last", [2**20, 2**13])
def test_names_of_spans_stay_in_their_panel_and_meet_no_other(drawn, last, names):
    """Narrow spans, beside one another and at both edges."""
    starts = [32, 48, 2**11, 2**12, last // 3, last // 2]
    points = [(x, 1.0) for x in (32, 256, last)]

    def panel(axes):
        spans = list(zip(starts, names, strict=True))
        curves = [plot.Curve("ours", points, plot.OURS, 2.0)]
        plot.lines(axes, labels=LABELS, curves=curves, ticks=[32, 1024], top=1.1, spans=spans)

    (axes,) = drawn(plot.Figure("made up", [[panel]])).axes
    panel_box, boxes = axes.bbox, {t.get_text(): t.get_window_extent() for t in axes.texts}
    assert list(boxes) == list(names)
    (title,) = axes.findobj(lambda artist: getattr(artist, "get_text", str)() == LABELS[0])
    boxes["title"] = title.get_window_extent()
    for name, box in boxes.items():
        assert panel_box.x0 <= box.x0 < box.x1 <= panel_box.x1, name
        assert box.y0 >= panel_box.y1, name
    for (name, a), (other, b) in itertools.combinations(boxes.items(), 2):
        assert not a.overlaps(b), (name, other)


def test_a_bar_for_each_value_and_none_without():
    axes = Figure().add_subplot()
    plot.bars(
        axes,
        labels=LABELS,
        groups=["8", "16"],
        series={"ours": [0.5, 2.0], "peer": [None, 0.25]},
        colours={"ours": plot.OURS, "peer": plot.PEER},
        ceiling=(1.0, "copy"),
    )
    assert [bar.get_height() for bar in axes.patches] == [0.5, 2.0, 0.25]
    middles = [bar.get_x() + bar.get_width() / 2 for bar in axes.patches]
    assert [round(middle) for middle in middles] == [0, 1, 1]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["8", "16"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("across", "up")
    assert [list(line.get_ydata()) for line in axes.lines] == [[1.0, 1.0]]
    assert axes.get_ylim()[1] > 2.0


def test_a_panel_without_a_series_keeps_places_and_colours(drawn):
    """Whether the panel comes first or last; a series that no panel has is not in the legend."""
    names = {"ours": plot.OURS, "peer": plot.PEER, "third": plot.GREEN}

    def panel(peer):
        series = {"ours": [0.5, 0.25], "peer": peer, "third": [None, None]}
        labels = {"labels": LABELS, "groups": ["8", "16"], "ceiling": (1.0, "copy")}
        return functools.partial(plot.bars, series=series, colours=names, **labels)

    with_peer, without = panel([0.75, 1.0]), panel([None, None])
    for panels in itertools.permutations([with_peer, without]):
        figure = drawn(plot.Figure("made up", [panels]))
        left, right = figure.axes
        assert left.get_xlim() == right.get_xlim()
        places = [[bar.get_x() for bar in axes.patches[:2]] for axes in (left, right)]
        assert places[0] == places[1]
        (legend,) = figure.legends
        found = dict(
            zip(
                (text.get_text() for text in legend.get_texts()), legend.legend_handles, strict=True
            )
        )
        assert set(found) == {"copy", "ours", "peer"}
        for name in ("ours", "peer"):
            assert to_hex(found[name].get_facecolor()) == names[name]


def _dots(count, title="products", names=("ours", "peer")):
    members = [measured({"n": n}, {"ours": 1.0, "xla": 1.0 + n}) for n in range(count)]
    series = {name: lambda m: m.ratio("xla", "ours") for name in names}
    return dots.Dots(title, "times", members, lambda m: f"n = {m['n']}", series)


def test_a_panel_of_dots_has_at_most_a_dozen_lines(drawn):
    figure = drawn(dots.of_dots("made up", [[_dots(3, "few")], [_dots(50)], [_dots(0)]]))
    panels = figure.axes
    shown = [[text.get_text() for text in axes.get_yticklabels()] for axes in panels]
    assert [len(lines) for lines in shown] == [3, 10, 10, 10, 10, 10]
    assert list(itertools.chain(*shown[1:])) == [f"n = {n}" for n in range(50)]
    assert panels[1].get_title("left") == "products, 1 of 5"
    assert {axes.get_xlabel() for axes in panels} == {"times"}
    assert list(panels[-1].lines[0].get_xdata()) == [1.0 + n for n in range(40, 50)]
    heights = {round(axes.get_position().height, 2) for axes in panels}
    assert len(heights) == 1


def test_lines_of_a_row_are_named_once_and_a_metric_has_one_mark(drawn):
    other = _dots(3, "others", ("peer",))
    figure = drawn(dots.of_dots("made up", [[_dots(3), other, _dots(4)]]))
    names = [[text.get_text() for text in axes.get_yticklabels()] for axes in figure.axes]
    assert names == [["n = 0", "n = 1", "n = 2"], [""] * 3, [f"n = {n}" for n in range(4)]]
    marks = {}
    for axes in figure.axes:
        for line in axes.lines[:-1]:  # the last one is where 1 is
            marks.setdefault(line.get_label(), set()).add((line.get_marker(), line.get_color()))
    assert {name: len(found) for name, found in marks.items()} == {"ours": 1, "peer": 1}
    assert marks["ours"] == {("o", plot.OURS)}
    assert marks["ours"] != marks["peer"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ours", "peer"]


def test_more_metrics_than_colours_have_marks_of_their_own(drawn):
    names = [f"metric {n}" for n in range(8)] + ["ours"]
    (axes,) = drawn(dots.of_dots("made up", [[_dots(3, names=names)]])).axes
    marks = [(line.get_marker(), line.get_color()) for line in axes.lines[:-1]]
    assert len(set(marks)) == len(marks) == 9
    assert marks[-1] == ("o", plot.OURS)
