"""Bars against a deadline, and tables that fit narrow terminals."""

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

MAX_BAR_WIDTH, MIN_BAR_WIDTH = 26, 6
UNLIMITED_WIDTH = 1000
LEFT_ALIGNED = ("task", "share of frame")


@dataclass(frozen=True)
class DeadlineBar:
    """A bar filled to `seconds`, with a mark at the deadline, if any, and red beyond it.

    Its full width is `scale_s`.
    """

    seconds: float
    scale_s: float
    deadline_s: float | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line, end = ("=", "|") if options.ascii_only else ("━", "│")
        columns_per_s = min(MAX_BAR_WIDTH, options.max_width - 1) / self.scale_s
        filled = round(self.seconds * columns_per_s)
        if self.deadline_s is None:
            yield Text(line * filled, style="cyan")
            return
        mark = round(self.deadline_s * columns_per_s)
        bar = Text(line * min(filled, mark), style="green")
        bar.append(" " * (mark - filled))
        bar.append(end)
        yield bar.append(line * (filled - mark), style="red")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(MIN_BAR_WIDTH, MAX_BAR_WIDTH + 1)


@dataclass(frozen=True)
class FigureTable:
    """A table if the terminal is wide enough, otherwise one line of text per row."""

    titles: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = make_table(*self.titles)
        for row in self.rows:
            table.add_row(*row)
        if (
            Measurement.get(console, options.update_width(UNLIMITED_WIDTH), table).maximum
            <= options.max_width
        ):
            yield table
            return
        for name, *figures in self.rows:
            cells = zip(self.titles[1:], figures, strict=True)
            yield Text(f"{name}: {', '.join(f'{title} {figure}' for title, figure in cells)}")


def make_table(first: str, *others: str) -> Table:
    """Return a table with these titles and no lines; figures are right-aligned."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first, no_wrap=True)
    for title in others:
        left = title in LEFT_ALIGNED or title.startswith("deadline")
        table.add_column(title, justify="left" if left else "right")
    return table


def format_count(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
