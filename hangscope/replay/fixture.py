"""A fixture: a folder with what a job left behind (``dumps/``) and the expected verdict.

``expected.toml``::

    story = "rank 2's data loader waits for a file that never comes"
    verdict = "missing_rank"         # required
    culprits = [2]                   # required
    confidence = "certain"           # optional, like all below
    playbook = "D22"                 # a hang class that the first finding must have
    must_mention = ["load_batch"]    # texts of the report; whitespace is ignored
    must_not_mention = ["rank 3"]

    [recorded]                       # how it was made; not checked
    world_size = 4

``dumps/`` holds anything that ``hangscope analyze`` reads. If the job was alive when it was
recorded, ``observed.journal`` in there holds what was observed of its processes.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.files.regular_files import read_regular
from hangscope.trace.loading.search import walk

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXPECTED = "expected.toml"
MAX_BYTES = 1 << 20
"""Limit for `EXPECTED`."""
DUMPS = "dumps"
_KEYS = frozenset(
    {
        "story", "verdict", "culprits", "confidence", "playbook", "must_mention",
        "must_not_mention", "recorded",
    }
)  # fmt: skip


_ALIASES = {"mention": "must_mention", "mentions": "must_mention"}


class FixtureError(ValueError):
    """The folder is not a usable fixture; the message names it and says what to do."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected diagnosis of a fixture."""

    verdict: str
    culprits: tuple[int, ...]
    story: str = ""
    confidence: str | None = None
    playbook: str | None = None
    must_mention: tuple[str, ...] = ()
    must_not_mention: tuple[str, ...] = ()
    recorded: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fixture:
    """A fixture's folder and its expectation."""

    path: Path
    expected: Expected

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def dumps(self) -> Path:
        """The folder with the recordings."""
        return self.path / DUMPS


def find_fixtures(paths: Iterable[str | Path]) -> list[Path]:
    """Folders with an ``expected.toml`` at or below the given paths, sorted.

    Raises
    ------
    FixtureError
        If a path does not exist, is a file, or may not be read.
    """
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if path.name == EXPECTED and path.is_file():
            found[path.parent] = None
        elif path.is_dir():
            if not os.access(path, os.R_OK | os.X_OK):
                raise FixtureError(f"{path}: permission denied")
            inside = (folder for folder, _, files in walk(str(path)) if EXPECTED in files)
            found.update(dict.fromkeys(sorted(map(Path, inside))))
        else:
            raise FixtureError(
                f"{path}: {'a file, not a directory' if path.exists() else 'no such directory'}"
            )
    return list(found)


def load_fixture(path: str | Path) -> Fixture:
    """Read a fixture's expectation.

    Raises
    ------
    FixtureError
        If ``expected.toml`` is missing, malformed or has unknown keys, or if ``dumps/`` is empty.
    """
    folder = Path(path)
    file = folder / EXPECTED
    try:
        document = tomllib.loads(read_regular(file, MAX_BYTES).decode("utf-8"))
    except OSError as error:
        raise FixtureError(f"{file}: {(error.strerror or 'unreadable').lower()}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FixtureError(f"{file}: {error}") from error
    except RecursionError:
        raise FixtureError(f"{file}: nested too deeply") from None
    dumps = folder / DUMPS
    if not dumps.is_dir() or not any(dumps.iterdir()):
        raise FixtureError(f"{dumps}: put the dumps, rings or logs of the job there")
    return Fixture(folder, _expected(document, file))


def _expected(document: Mapping[str, Any], file: Path) -> Expected:
    document = {_ALIASES.get(key, key): value for key, value in document.items()}
    for key in sorted(set(document) - _KEYS):
        meant = difflib.get_close_matches(key, _KEYS, n=1, cutoff=0.7)
        if meant:  # a check that silently never runs is worse than an error
            raise FixtureError(f"{file}: unknown key {key!r}; did you mean {meant[0]!r}?")
    verdict = document.get("verdict")
    verdicts = [v.value for v in Verdict]
    if verdict not in verdicts:
        raise FixtureError(f"{file}: verdict must be one of {', '.join(verdicts)}")
    culprits = document.get("culprits")
    if not isinstance(culprits, list) or not all(type(c) is int and c >= 0 for c in culprits):
        raise FixtureError(f"{file}: culprits must be a list of ranks, [] for nobody")
    confidence = document.get("confidence")
    if confidence is not None and confidence not in [c.value for c in Confidence]:
        raise FixtureError(f"{file}: confidence must be certain, likely or ambiguous")
    recorded = document.get("recorded", {})
    if not isinstance(recorded, dict):
        raise FixtureError(f"{file}: [recorded] must be a table")
    return Expected(
        verdict=str(verdict),
        culprits=tuple(sorted(culprits)),
        story=_text(document, "story", file) or "",
        confidence=confidence,
        playbook=_text(document, "playbook", file),
        must_mention=_texts(document, "must_mention", file),
        must_not_mention=_texts(document, "must_not_mention", file),
        recorded=recorded,
    )


def _text(document: Mapping[str, Any], key: str, file: Path) -> str | None:
    value = document.get(key)
    if value is not None and not isinstance(value, str):
        raise FixtureError(f"{file}: {key} must be a text")
    return value


def _texts(document: Mapping[str, Any], key: str, file: Path) -> tuple[str, ...]:
    value = document.get(key, [])
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise FixtureError(f"{file}: {key} must be a list of texts")
    return tuple(value)


def to_toml(expected: Expected) -> str:
    """``expected.toml`` as text."""
    lines = []
    if expected.story:
        lines.append(f"story = {_quoted(expected.story)}")
    lines.append(f"verdict = {_quoted(expected.verdict)}")
    lines.append(f"culprits = {list(expected.culprits)}")
    if expected.confidence is not None:
        lines.append(f"confidence = {_quoted(expected.confidence)}")
    if expected.playbook:
        lines.append(f"playbook = {_quoted(expected.playbook)}")
    if expected.must_mention:
        lines.append(f"must_mention = {_list(expected.must_mention)}")
    if expected.must_not_mention:
        lines.append(f"must_not_mention = {_list(expected.must_not_mention)}")
    if expected.recorded:
        lines += ["", "[recorded]"]
        lines += [f"{key} = {_scalar(value)}" for key, value in expected.recorded.items()]
    return "\n".join(lines) + "\n"


def updated_toml(text: str, changes: Mapping[str, str | Sequence[int]]) -> str:
    """``expected.toml`` with some top-level keys changed and everything else kept, even comments.

    Values are texts or lists of ranks; a missing key is added at the top.
    """
    head, separator, tables = _split_tables(text)
    for key, value in changes.items():
        line = f"{key} = {_quoted(value) if isinstance(value, str) else list(value)}"
        # A list of ranks may span several lines.
        pattern = re.compile(rf"^{key}\s*=\s*(?:\[[^\]]*\]|[^\n#]*?)(?=\s*(?:#[^\n]*)?$)", re.M)
        new = line.replace("\\", "\\\\")
        head, count = pattern.subn(new, head, count=1)
        if not count:
            head = f"{line}\n{head}"
    return head + separator + tables


def _split_tables(text: str) -> tuple[str, str, str]:
    found = re.search(r"^\[", text, re.M)
    return (text[: found.start()], "", text[found.start() :]) if found else (text, "", "")


def _quoted(text: str) -> str:
    # A JSON string is a TOML basic string, except that TOML wants DEL escaped too.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _list(texts: Sequence[str]) -> str:
    return "[" + ", ".join(_quoted(text) for text in texts) + "]"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return _list([str(item) for item in value])
    return _quoted(str(value))
