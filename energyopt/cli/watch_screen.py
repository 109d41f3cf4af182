"""The watch screen: a table of devices, their sums, and the power of the last minutes as a line."""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.events import Resize
from textual.geometry import Size
from textual.widgets import DataTable, Footer, Sparkline, Static

from energyopt.compose.watch import Pages
from energyopt.core.errors import SensorError
from energyopt.core.units import format_duration, format_si
from telemetry.page import Page
from telemetry.watch import View, baseline, view

from .watch_table import columns, rows, summary

HISTORY = 600
"""Looks that the line of power remembers."""


class WatchApp(App[None]):
    """Looks at ``pages`` every ``every`` seconds, on a thread: a page that does not come freezes nothing."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "Quit"),
        ("p", "pause", "Pause"),
        ("r", "restart", "Count from now"),
        ("ctrl+c", "quit", ""),
    ]
    CSS = """
    #title { background: $primary; color: $text; padding: 0 1; }
    #sums { padding: 1 1 0 1; height: auto; }
    #power { height: 3; margin: 1 1 0 1; }
    #range { padding: 0 1 1 1; color: $text-muted; }
    #power > .sparkline--min-color { color: $success; }
    #power > .sparkline--max-color { color: $warning; }
    #devices { height: 1fr; margin: 0 1; }
    #notes { padding: 0 1; height: auto; max-height: 5; color: $text-muted; }
    """

    def __init__(self, pages: Pages, every: float) -> None:
        super().__init__()
        self._pages = pages
        self._every = every
        self._paused = False
        self._first: Page | None = None
        self._before: Page | None = None
        self._shown: View | None = None
        self._power: deque[float] = deque(maxlen=HISTORY)

    def compose(self) -> ComposeResult:
        yield Static(f"energyopt watch   {self._pages.name}", id="title", markup=False)
        yield Static("looking for sensors ...", id="sums")
        yield Sparkline([], id="power")
        yield Static("", id="range")
        table: DataTable[Text] = DataTable(id="devices", cursor_type="none", zebra_stripes=True)
        yield table
        yield Static("", id="notes", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self._look()
        self.set_interval(self._every, self._look)

    def on_resize(self, event: Resize) -> None:
        """Show the columns that fit now."""
        self._draw(event.size)

    def action_pause(self) -> None:
        """Stop looking, or go on."""
        self._paused = not self._paused
        self._note("paused: p goes on" if self._paused else "")

    def action_restart(self) -> None:
        """Count energy from the newest look on."""
        self._first = self._before

    @work(thread=True, exclusive=True, group="look")
    def _look(self) -> None:
        """On a thread; only what it found comes back to the screen's."""
        if self._paused:
            return
        try:
            page = self._pages.read()
        except SensorError as error:
            self.call_from_thread(self._note, str(error))
            return
        self.call_from_thread(self._take, page)

    def _take(self, page: Page) -> None:
        before = self._before or page
        self._first = baseline(self._first or page, before, page)
        self._shown = view(self._first, before, page)
        self._before = page
        if self._shown.power is not None:
            self._power.append(self._shown.power)
        notes = () if self._shown.devices else ("No sensor is read here.", *self._pages.notes)
        self._note("\n".join(notes or self._pages.notes))
        self._draw()

    def _draw(self, size: Size | None = None) -> None:
        """``size`` is the new one where the screen does not know it yet."""
        if self._shown is None:
            return
        self.query_one("#sums", Static).update(summary(self._shown))
        line = self.query_one("#power", Sparkline)
        caption = self.query_one("#range", Static)
        line.data = list(self._power)
        width, height = size or self.size
        line.display = caption.display = len(self._power) > 1 and height >= 16
        if self._power:
            least, most = format_si(min(self._power), "W"), format_si(max(self._power), "W")
            caption.update(f"power, {least} to {most} over {format_duration(len(self._power) * self._every)}")
        fitting = columns(width)
        table = self.query_one("#devices", DataTable)
        table.clear(columns=True)
        for column in fitting:
            table.add_column(Text(column.title, justify="right" if column.right else "left"))
        for row in rows(self._shown, fitting):
            for column, cell in zip(fitting, row, strict=True):
                cell.justify = "right" if column.right else "left"
            table.add_row(*row)

    def _note(self, text: str) -> None:
        self.query_one("#notes", Static).update(text)
