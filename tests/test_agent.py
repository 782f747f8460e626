"""``tuiprof mcp``, asked by the SDK's own client over a pipe."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from installed import needs

from tests.hostile import CORPUS
from tuiprof.cli.agent import MAX_BYTES
from tuiprof.resources import shipped

if TYPE_CHECKING:
    from mcp import Client

needs("mcp")

TRACE = str(shipped("traces") / "metrics-naive.pt.trace.json.gz")
FASTER = str(shipped("traces") / "metrics-no-nan-check.pt.trace.json.gz")


@asynccontextmanager
async def agent(*options: str, sessions: Path) -> AsyncIterator[Client]:
    """Yield a client of a server in a process of its own."""
    from mcp import Client, StdioServerParameters

    command = ["-m", "tuiprof", "--sessions", str(sessions), "mcp", *options]
    server = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))
    async with Client(server) as client:
        yield client


async def ask(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Return what a tool answers, which is never too long and comes within 90 s."""
    async with asyncio.timeout(90):
        result = await client.call_tool(tool, arguments)
    (part,) = result.content
    text = part.text  # type: ignore[union-attr]
    assert not result.is_error, text
    assert len(text) <= MAX_BYTES
    answer: dict[str, Any] = json.loads(text)
    return answer


async def test_an_agent_finds_what_to_change_and_what_that_wins(tmp_path: Path) -> None:
    async with agent(sessions=tmp_path) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        assert {
            "why",
            "syncs",
            "launches",
            "kernels",
            "timeline",
            "whatif",
            "compare",
            "check",
            "ladders",
        } <= tools
        assert "record" not in tools
        why = await ask(client, "why", target=TRACE)
        assert why["trust"]["complete"]
        saved = {finding["rule"]: finding for finding in why["findings"]}
        assert "aggregation.py:93" in saved["nan-check"]["where"]
        without = await ask(client, "whatif", target=TRACE, without=["nan-check"])
        assert without["rows"][0]["wins_ns"] == pytest.approx(saved["nan-check"]["saves_ns"], rel=0.01)
        compared = await ask(client, "compare", before=TRACE, after=FASTER)
        assert "faster" in compared["verdict"]
        syncs = await ask(client, "syncs", target=TRACE)
        assert syncs["figures"]["syncs_per_step"] == 2
        held = await ask(client, "check", target=TRACE, most={"syncs_per_step": 0})
        assert held["rows"][0]["outcome"] == "failed"
        shown = await ask(client, "timeline", target=TRACE, start_ms=20, end_ms=40)
        assert shown["events"] > len(shown["rows"]) > 5
        assert shown["rows_left_out"] > 0
        assert (await ask(client, "ladders", name="metrics"))["rows"]


async def test_what_cannot_be_told_is_an_answer(tmp_path: Path) -> None:
    async with agent(sessions=tmp_path) as client:
        assert "no sessions" in (await ask(client, "why", target="nothing-here"))["error"]
        ranks = await ask(client, "ranks", target=TRACE)
        assert ranks["available"] is False
        assert ranks["reason"]


async def test_only_allowed_commands_are_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import tuiprof\nfor i in range(30):\n    sum(range(10000))\n    tuiprof.step()\n")
    allowed = f"{sys.executable} {script}"
    async with agent("--allow-record", allowed, sessions=tmp_path / "sessions") as client:
        refused = await ask(client, "record", command=["sh", "-c", "touch /tmp/never"])
        assert "not allowed" in refused["error"]
        recorded = await ask(client, "record", command=[sys.executable, str(script)])
        assert "30 steps" in recorded["run"]
        listed = await ask(client, "sessions")
        assert listed["rows"][0]["steps"] == 30


async def test_names_in_a_trace_stay_data(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 10 * i, "dur": 9}
        for i, name in enumerate(CORPUS)
    ]
    trace = tmp_path / "hostile.pt.trace.json"
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    async with agent(sessions=tmp_path) as client:
        answer = await ask(client, "timeline", target=str(trace), start_ms=0, end_ms=10)
        assert "rows.name" in answer["untrusted"]
        assert all(row["name"].isprintable() for row in answer["rows"])
