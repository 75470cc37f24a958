"""Tables of `melisma plan`: bars against a deadline, and rows that fit narrow terminals."""

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

BAR, SHORT_BAR = 26, 6
PAGE = 1000
LEFT = ("task", "of the frame")


@dataclass(frozen=True)
class Bar:
    """Filled to `seconds`, with a mark at the deadline, if any; what is beyond it is red.

    As wide as there is room for, `scale_s` from end to end.
    """

    seconds: float
    scale_s: float
    deadline_s: float | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line, end = ("=", "|") if options.ascii_only else ("━", "│")
        a_second = min(BAR, options.max_width - 1) / self.scale_s
        filled = round(self.seconds * a_second)
        if self.deadline_s is None:
            yield Text(line * filled, style="cyan")
            return
        mark = round(self.deadline_s * a_second)
        bar = Text(line * min(filled, mark), style="green")
        bar.append(" " * (mark - filled))
        bar.append(end)
        yield bar.append(line * (filled - mark), style="red")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(SHORT_BAR, BAR + 1)


@dataclass(frozen=True)
class Rows:
    """A table where there is room for it, and else a line or two a row."""

    titles: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = table(*self.titles)
        for row in self.rows:
            whole.add_row(*row)
        if Measurement.get(console, options.update_width(PAGE), whole).maximum <= options.max_width:
            yield whole
            return
        for name, *figures in self.rows:
            named = zip(self.titles[1:], figures, strict=True)
            yield Text(f"{name}: {', '.join(f'{title} {figure}' for title, figure in named)}")


def table(first: str, *others: str) -> Table:
    """Columns with these titles and no lines; figures to the right."""
    found = Table(box=None, pad_edge=False, header_style="dim")
    found.add_column(first, no_wrap=True)
    for title in others:
        left = title in LEFT or title.startswith("deadline")
        found.add_column(title, justify="left" if left else "right")
    return found
