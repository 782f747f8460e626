"""The panes of the live screen: chart, phases, devices and ranks of the shown moment, and the script's output."""

from __future__ import annotations

import math
import time
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Input

from tuiprof.model.units import format_ns, format_share
from tuiprof.report.sanitize import sanitize
from tuiprof.session.live.hosts import compare_ranks
from tuiprof.session.live.listing import Summary
from tuiprof.session.live.replay import Replay
from tuiprof.session.live.step_source import activity, again, counted, likely
from tuiprof.session.store.output import OutputReader
from tuiprof.tui.live import view as live_view
from tuiprof.tui.live.captures import Verdict
from tuiprof.tui.live.charts import StripChart, chart_data
from tuiprof.tui.live.devices import DevicePanel, device_notes, device_views
from tuiprof.tui.live.moment import Figures, Moment
from tuiprof.tui.live.view import View
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.widgets.lines import Heading, Lines, Painted, Row, row_width

_output = partial(key, group="Output")

#: Lines kept in memory; the files have all of them.
_KEEP_LINES: Final = 2000


class OutputPane(Lines, can_focus=True):
    """Standard output and standard error together, in the order in which they were read."""

    BINDINGS: ClassVar[list[BindingType]] = [
        _output("up,k", "scroll(-1)", "up", "One line up", id="output.up", show=False),
        _output("down,j", "scroll(1)", "down", "One line down", id="output.down", show=False),
        _output("pageup", "page(-1)", "page up", "One page up", id="output.page_up", show=False),
        _output("pagedown", "page(1)", "page down", "One page down", id="output.page_down", show=False),
        _output("home,g", "top", "start", "Go to the first line", id="output.home", show=False),
        _output("end,G", "follow", "follow", "Follow the newest line", id="output.end", show=False),
        _output("n", "match(1)", "next match", "Go to the next match", id="output.next"),
        _output("N", "match(-1)", "previous match", "Go to the previous match", id="output.before", show=False),
        _output("escape", "search_end", "end search", "End the search", id="output.unsearch"),
    ]  # fmt: skip

    class Moved(Message):
        """The visible part changed: it was scrolled, or new lines arrived."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - the name Textual uses
        super().__init__(id=id)
        self.following = True  # the newest line is at the bottom and stays there
        self._lines: list[tuple[str, str]] = []
        self._unfinished: list[tuple[str, str]] = []
        self._readers: list[tuple[OutputReader, str]] = []
        self._bottom = 0  # index after the last visible line when not following
        self._paths: tuple[Path, Path] | None = None
        self._until: tuple[int, int] | None = None
        self._sought = ""
        self._match = -1  # index of the current match

    def open(self, stdout: Path, stderr: Path) -> None:
        """Show these two files."""
        self.close()
        self._paths = stdout, stderr
        self._readers = [(OutputReader(stdout), "text"), (OutputReader(stderr), "warn")]
        self._lines, self._unfinished, self.following = [], [], True

    def show_until(self, sizes: tuple[int, int] | None) -> None:
        """Show only the first ``sizes`` bytes of the two files; None = everything."""
        if sizes == self._until:
            return
        back = sizes is not None and any(
            reader.position > size for (reader, _), size in zip(self._readers, sizes, strict=True)
        )
        jumped = sizes is None and self._until is not None
        self._until = sizes
        if (back or jumped) and self._paths is not None:
            self.open(*self._paths)

    def close(self) -> None:
        for reader, _ in self._readers:
            reader.close()
        self._readers = []

    def on_unmount(self) -> None:
        self.close()

    def poll(self) -> bool:
        """Read new output; return whether there was any."""
        before = (len(self._lines), self._unfinished)
        unfinished = []
        for (reader, role), until in zip(self._readers, self._until or (None, None), strict=True):
            self._lines.extend((line, role) for line in reader.poll(until=until))
            if rest := reader.unfinished:
                unfinished.append((rest, role))
        self._unfinished = unfinished
        changed = (len(self._lines), unfinished) != before
        if changed:
            if len(self._lines) > _KEEP_LINES * 1.1:
                cut = len(self._lines) - _KEEP_LINES
                self._lines = self._lines[cut:]
                self._bottom = max(0, self._bottom - cut)
                self._match -= cut
            self._moved()
        return changed

    @property
    def position(self) -> str:
        """The visible part of the output, for the heading."""
        if self._sought:
            found = self._matches()
            position = f"{found.index(self._match) + 1} of " if self._match in found else ""
            return f"{position}{len(found)} with {sanitize(self._sought)!r} · esc ends"
        if self.following or not self._total:
            return ""
        return f"line {self._bottom} of {self._total} · end follows"

    @property
    def _total(self) -> int:
        return len(self._lines) + len(self._unfinished)

    @property
    def last_error(self) -> str:
        """The last line of standard error; empty = there is none."""
        lines = (*reversed(self._unfinished), *reversed(self._lines))
        return next((text for text, role in lines if role == "warn" and text.strip()), "")

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw the visible lines; those of standard error are marked."""
        if self.following:
            lines = [*self._lines[-height:], *self._unfinished][-height:]
        else:
            lines = [*self._lines, *self._unfinished][
                max(0, self._bottom - height) : max(height, self._bottom)
            ]
        if not lines:
            return [[(" no output", "dim")]]
        return [self._line(_unindented(text, width - 1), role) for text, role in lines]

    def _line(self, text: str, role: str) -> Row:
        """Return a line with its mark and search matches."""
        mark = ("▏" if role == "warn" else " ", "warn")
        at = text.casefold().find(self._sought.casefold()) if self._sought else -1
        if at < 0 or len(text.casefold()) != len(text):  # casefold() can change the length and so the indices
            return [mark, (text, role)]
        end = at + len(self._sought)
        return [mark, (text[:at], role), (text[at:end], f"{role}+cursor"), (text[end:], role)]

    # -- searching ---------------------------------------------------------------------------------------

    def search(self, text: str) -> int:
        """Mark all matches, go to the last one, and return the number of matching lines in memory."""
        self._sought, self._match = text, len(self._lines)
        found = self._matches()
        if found:
            self.action_match(-1)
        else:
            self._moved()
        self.refresh_bindings()
        return len(found)

    def _matches(self) -> list[int]:
        sought = self._sought.casefold()
        return [index for index, (text, _) in enumerate(self._lines) if sought and sought in text.casefold()]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Pass keys to the screen if they have no effect here."""
        if action in ("match", "search_end"):
            return bool(self._sought)
        if action == "follow":
            return not self.following
        return True

    def action_match(self, by: int) -> None:
        """Go to the next or the previous match, wrapping around at the ends."""
        found = self._matches()
        if not found:
            return
        after = [index for index in found if (index > self._match if by > 0 else index < self._match)]
        self._match = (after[0] if by > 0 else after[-1]) if after else (found[0] if by > 0 else found[-1])
        self._show_line(self._match + max(1, self.size.height) // 2)
        self.following = False
        self._moved()

    def action_search_end(self) -> None:
        self.search("")

    def action_scroll(self, by: int) -> None:
        self._show_line((self._total if self.following else self._bottom) + by)
        self.following = self._bottom >= self._total and by > 0
        self._moved()

    def _show_line(self, bottom: int) -> None:
        self._bottom = min(max(bottom, self.size.height, 1), self._total)

    def action_page(self, pages: int) -> None:
        self.action_scroll(pages * max(1, self.size.height - 1))

    def action_top(self) -> None:
        self.action_scroll(-len(self._lines) - 1)

    def action_follow(self) -> None:
        self.following = True
        self._moved()
        self.refresh_bindings()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_scroll(-3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_scroll(3)

    def _moved(self) -> None:
        self.redraw()
        self.post_message(self.Moved())


def _unindented(text: str, width: int) -> str:
    """Return a line that is too long with a smaller indent: of text at the right edge of a progress bar's line."""
    over = row_width([(text, "")]) - width
    indent = len(text) - len(text.lstrip(" "))
    return text[min(over, indent) :] if over > 0 else text


class OutputBox(Vertical):
    """The output below a heading with the position in it, and a field to search it."""

    def __init__(self, stdout: Path, stderr: Path, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._paths = stdout, stderr
        self._untimed = False  # a replay of a session that recorded no times for its output
        self._polled_s = -math.inf

    @property
    def pane(self) -> OutputPane:
        return self.query_one(OutputPane)

    def compose(self) -> ComposeResult:
        yield Heading("output", id="output-head")
        yield OutputPane(id="output")

    def on_mount(self) -> None:
        self.pane.open(*self._paths)

    def follow(self, stdout: Path, stderr: Path) -> None:
        self._paths = stdout, stderr
        self.pane.open(stdout, stderr)

    def poll(self, replay: Replay | None, *, at_once: bool) -> None:
        """Show new output: at once after a pause, else at most once a second; ``at_once`` forces it."""
        self._untimed = replay is not None and not replay.times_output
        if replay is None or self._untimed or replay.over:
            self.pane.show_until(None)
        else:
            self.pane.show_until(replay.fold.printed or (0, 0))
        now_s = time.monotonic()
        if (at_once or now_s - self._polled_s >= 1.0) and self.pane.poll():
            self._polled_s = now_s

    def on_output_pane_moved(self) -> None:
        self.show_position()

    def show_position(self) -> None:
        """Show the visible part of the output in the heading."""
        remark = self.pane.position
        if not remark and self._untimed:
            remark = "the whole output: this session recorded no times for it"
        self.query_one("#output-head", Heading).show("output", [(remark, "dim")] if remark else [])

    async def ask_for_text(self) -> None:
        """Open the search field."""
        if not self.query("#search"):
            field = Input(placeholder="search the output", id="search", compact=True)
            await self.mount(field, before=self.pane)
        self.screen.set_focus(self.query_one("#search"))

    def close_field(self) -> bool:
        """Close the field; return whether it was open."""
        fields = self.query("#search")
        if fields:
            fields.remove()
            self.pane.focus()
        return bool(fields)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.close_field()
        self.pane.search(event.value)


class PhaseBar(Lines):
    """Phases of the mean step, in one line together or in one line each."""

    def __init__(self, *, id: str | None = None, tall: bool = False) -> None:  # noqa: A002
        super().__init__(id=id)
        self.tall = tall
        self._phases: list[live_view.Phase] = []
        self._step_ns = 0.0
        self._why_empty = ""

    def show(self, means: dict[str, float], why_empty: str) -> None:
        before = len(self._phases)
        self._step_ns = sum(means.values())
        self._phases = live_view.phases_of(means)
        self._why_empty = why_empty
        if len(self._phases) != before:
            self.request_layout()
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        if not self._phases:
            title = "" if self.tall else f" {live_view.PHASES_TITLE}  "
            return [[(f"{title} {self._why_empty}", "dim")]]
        return self._draw_list(width) if self.tall else [live_view.phase_line(self._phases, width)]

    def _draw_list(self, width: int) -> list[Row]:
        """One line a phase: name, time, share, bar."""
        names = max(len(phase.name) for phase in self._phases)
        names = min(max(names, 9), max(9, width // 3))
        bar_width = width - names - 23
        rows: list[Row] = []
        for phase in self._phases:
            share = phase.dur_ns / self._step_ns if self._step_ns else 0.0
            row: Row = [
                (" " + phase.name[:names].ljust(names), "text"),
                (format_ns(phase.dur_ns).rjust(10), "strong"),
                (format_share(min(share, 1.0)).rjust(9), "dim"),
            ]
            if bar_width >= 4:
                row.append(("  " + glyphs.bar(share, bar_width), phase.role))
            rows.append(row)
        return rows


#: Minimum interval between look-ups of a script's activity before its first step; each scans all processes.
_ASK_AGAIN_NS: Final = 1_000_000_000


class RunPanes(Vertical):
    """The state of the run at the top, its figures below, the most important message at the bottom."""

    def __init__(self, moment: Moment, figures: Figures, verdict: Verdict) -> None:
        super().__init__()
        self._moment, self._figures, self._verdict = moment, figures, verdict
        #: Name of the variant to compare with and its median step time in ns; None = unknown.
        self.baseline: tuple[str, float] | None = None
        self._waiting, self._doing, self._asked_ns = "", "", -_ASK_AGAIN_NS

    def compose(self) -> ComposeResult:
        session = self._moment.session
        yield Painted(id="runs")
        yield Painted(id="head")
        yield Painted(id="rule")
        yield Painted(id="stats")
        yield StripChart(id="chart")
        yield PhaseBar(id="phases")
        yield Painted(id="ranks")
        with Horizontal(id="lower"):
            with Vertical(id="machine"):
                yield Heading("where a step goes", id="phase-head").add_class("list")
                yield PhaseBar(id="phase-list", tall=True).add_class("list")
                yield Heading("devices", id="device-head")
                yield DevicePanel(id="devices")
            yield OutputBox(session.stdout, session.stderr, id="printed")
        yield Painted(id="finding")

    def draw(self, now_ns: int, *, slow: bool) -> None:
        """Draw; the parts that are costly or would flicker only if ``slow`` is set."""
        moment = self._moment
        view = moment.view_at(now_ns)
        if slow:
            self._figures.update(view)
            self._waiting = self._activity(now_ns)
        self._draw_chart(view)
        self._draw_head(now_ns)
        if slow:
            self._draw_figures(view)
            self._draw_ranks(now_ns)
            self._draw_devices()
            self.query_one("#finding", Painted).paint(
                lambda width, _: self._verdict.rows(
                    width, tall=self.screen.has_class("-tall"), tiny=self.screen.has_class("-tiny")
                )
            )
            self.query_one(OutputBox).show_position()

    def show_runs(self, runs: list[Summary]) -> None:
        """Show the active runs if there are several."""
        box, shown = self.query_one("#runs", Painted), self._moment.session.id
        box.paint(lambda width, _: [live_view.runs_row(runs, shown, width)])
        box.display = len(runs) > 1

    def _activity(self, now_ns: int) -> str:
        """Return the activity of a run before its first step; empty = unknown, or there are steps."""
        rank = self._moment.rank
        if not self._moment.following or (rank is not None and len(rank.steps)):
            return ""
        if now_ns - self._asked_ns >= _ASK_AGAIN_NS:
            self._asked_ns, self._doing = now_ns, activity(self._moment.session)
        return self._doing

    def _draw_chart(self, view: View) -> None:
        moment, chart = self._moment, self.query_one(StripChart)
        rank, charted, replay = moment.rank, moment.charted, moment.replay
        if rank is None or charted is None or not len(rank.steps):
            replayed = replay is not None and not replay.over
            named = likely(moment.feed.fold, moment.session.meta.cwd)
            since = f"{live_view.clock(view.now_ns / 1e9)} since the start"
            waiting = f"{self._waiting} · {since}" if self._waiting else ""
            chart.explain(
                live_view.no_step_lines(
                    moment.status,
                    replayed=replayed,
                    waiting=waiting,
                    likely=named,
                    again=again(moment.session, named, "run"),
                    can_ask=rank is not None and moment.following,
                )
            )
            return
        if view.window_s is not None and not view.holds(charted.steps):
            chart.explain(live_view.none_in_view_lines(charted.steps, view, running=moment.running))
            return
        growing = moment.following or (replay is not None and not replay.over)
        fixed = growing or view.young
        edge_s = chart.edge(view.now_ns / 1e9, view.span_s, view.begin_ns / 1e9) if fixed else None
        chart.show(chart_data(charted.steps, self._figures.stats, view, moment.selected, edge_s))

    def _draw_head(self, now_ns: int) -> None:
        """Draw the first line, and below it the position of the shown moment in the run."""
        moment = self._moment
        rank, replay, session = moment.rank, moment.replay, moment.session
        ranks = len(moment.feed.fold.ranks)
        if replay is not None:
            state = live_view.replay_row(replay, rank, ranks, back=moment.past is not None)
        else:
            frozen = moment.frozen_ns is not None
            state = live_view.state_row(moment.status, now_ns, rank, ranks, frozen)
        machine = live_view.machine_row(session, rank, self._figures.others)
        parts = (live_view.name_row(session), state, machine)
        self.query_one("#head", Painted).paint(lambda width, _: [live_view.head_row("tuiprof", parts, width)])
        fold = moment.run.fold if moment.past is not None else moment.feed.fold
        until_ns = max(now_ns, replay.duration_ns, fold.now_ns) if replay is not None else 0
        self.query_one("#rule", Painted).paint(
            lambda width, _: [
                live_view.time_row(now_ns, until_ns, fold, width)
                if until_ns
                else [(glyphs.RULE * width, "rule")]
            ]
        )

    def _draw_figures(self, view: View) -> None:
        """Draw the line of statistics above the chart, and the phases."""
        moment, stats, rank = self._moment, self._figures.stats, self._moment.rank
        batch = live_view.batch_size(rank.steps) if rank is not None else None
        slowdown = live_view.slowdown_in_view(rank.steps, view) if rank is not None else None
        read, baseline = moment.read_share, self.baseline
        self.query_one("#stats", Painted).paint(
            lambda width, _: live_view.stats_row(
                stats,
                view,
                width,
                batch=batch,
                baseline=baseline,
                read=read,
                slowdown=slowdown,
                steps_are=sanitize(counted(rank)),
                label=live_view.stats_label(rank.steps, view) if rank is not None else "",
            )
        )
        why = "no phases recorded: mark them with tuiprof.phase(…)"
        for bar in self.query(PhaseBar):
            bar.show(self._figures.phases, why if stats.count else "no steps")
        heading = self.query_one("#phase-head", Heading)
        if heading.display:
            selected = moment.selected
            heading.show(f"where step {selected} went" if selected is not None else "where a step goes")

    def _draw_ranks(self, now_ns: int) -> None:
        """Draw the ranks side by side if there are several."""
        box, ranks, rank = self.query_one("#ranks", Painted), self._moment.feed.fold.ranks, self._moment.rank
        found = compare_ranks(ranks, now_ns) if len(ranks) > 1 else []
        most = live_view.MAX_LANES if self.screen.has_class("-tall") else 4
        shown = rank.name if rank is not None else ""
        hosts = self._moment.hosts
        box.paint(
            lambda width, _: [
                *([live_view.hosts_row(hosts, width)] if hosts else []),
                *live_view.rank_rows(found, shown, width, most),
            ]
        )
        box.display = bool(found or hosts)

    def _draw_devices(self) -> None:
        moment, meta = self._moment, self._moment.session.meta
        known = live_view.devices_of(moment.session, moment.rank)
        if moment.rank is not None and moment.rank.host:
            self.query_one("#device-head", Heading).show(f"devices of {moment.rank.host}")
        over = moment.status.over and (moment.replay is None or moment.replay.over)
        devices = device_views(moment.feed.fold, known, moment.rank, self._figures.others, over=over)
        panel = self.query_one(DevicePanel)
        panel.compact = self.screen.has_class("-narrow") or self.screen.has_class("-short")
        panel.show(devices, device_notes(meta, known=bool(devices), over=moment.status.over))
        # In the stacked layout each device keeps its line, even if little is left for the output.
        least = min(panel.height_for(0), 10) + 1 if panel.compact else 0
        self.query_one("#lower").styles.min_height = least
