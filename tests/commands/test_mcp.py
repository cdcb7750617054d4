"""A real client of the Model Context Protocol asks about a run, and about nothing else."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands.test_collect import node

pytest.importorskip("mcp")


async def _asked(directory: Path, calls: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    server = StdioServerParameters(
        command=sys.executable, args=["-m", "hangscope", "mcp", str(directory)]
    )
    async with stdio_client(server) as (reading, writing), ClientSession(reading, writing) as one:
        await one.initialize()
        offered = {tool.name for tool in (await one.list_tools()).tools}
        assert offered == {"analyze", "ranks", "stacks", "timeline", "compare"}
        return [await one.call_tool(name, arguments) for name, arguments in calls]


def test_agent_gets_the_same_answers(tmp_path: Path) -> None:
    run = node(tmp_path / "runs" / "job", range(4))
    (tmp_path / "runs" / "out").symlink_to(tmp_path)
    asked = [
        ("analyze", {"path": "job"}),
        ("ranks", {"path": str(run), "first": 2, "count": 1}),
        ("timeline", {"path": "job", "rank": 2, "newest": 3}),
        ("compare", {"path": "job", "one": 0, "other": 2}),
        ("analyze", {"path": "out"}),
        ("analyze", {"path": "/etc"}),
        ("stacks", {"path": "job", "rank": 77}),
    ]
    answers = asyncio.run(_asked(tmp_path / "runs", asked))
    texts = ["".join(part.text for part in answer.content) for answer in answers]
    found = json.loads(texts[0])
    assert (found["verdict"], found["culprits"]) == ("missing_rank", [2])
    assert found["action"]["do"] in ("fix", "restart", "wait")
    assert "ranks" not in found
    assert json.loads(texts[1])["rank"] == 2
    assert '"seq": 20' in texts[2].replace('"seq":20', '"seq": 20')
    assert "21" in texts[3]
    for answer, text in zip(answers[4:], texts[4:], strict=True):
        assert answer.is_error
        assert "not below" in text or "nothing is known" in text
