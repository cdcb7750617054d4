"""How the nodes of a job report through its store: in groups, and the groups to the first node.

The node of rank 0, the first, makes up a name for the meeting. The others count themselves in,
which gives each a number, and each leaves its newest report under that number. The lowest number of
every `GROUP` nodes, their speaker, combines their reports into one; the first node reads only
those. Of a group whose speaker is silent it reads the nodes' own reports. Nobody waits for a key.

Keys below the meeting's name, all messages sealed (`hangscope.toolkit.launching.letters`):

``count``       how many nodes have come
``n/K``         the report of node K
``c/G``         counts the reports in group G
``v/G``         counts the combined reports of group G
``s/G``, ``g/G``  who of a group was heard, and its combined report
``news``        counts announcements, of the first node and of whoever has found something
``say``         the newest of the first node
``found``       what a node has found by itself, which all others read without the first node
``hosts``       who runs where

Counters are no messages: whoever changes one only makes others look.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from hangscope.ring.run_secret import RunSecret
from hangscope.toolkit.launching.letters import MAX_TOTAL_BYTES, Letters, Store
from hangscope.toolkit.launching.messages import (
    GROUP,
    Announcement,
    Heard,
    Report,
    count_of,
    loaded,
    spoken,
)
from hangscope.trace.digests.codec import decode, encode
from hangscope.trace.digests.digest import combined
from hangscope.trace.digests.tables import Tables

MOST_NODES = 1 << 16
"""Plausible maximum; a larger count in the store is not ours."""
SPEAKER_SILENT_S = 4.0
"""After this long without a word from its speaker, the first node reads a group itself."""
COMBINE_AGAIN_S = 1.0
"""A speaker combines not more often than this."""
ANNOUNCE_AGAIN_S = 2.0
"""The first node tells not more often than this how many have come."""
MOST_TEXT = 4096
NO_SECRET = RunSecret()
_NAME = re.compile("[0-9a-f]{32}")
_MOST_TABLE = 1 << 16


@dataclass(slots=True)
class Inbox:
    """What has come; the owner takes it out."""

    digests: dict[str, bytes] = field(default_factory=dict)
    """The newest digest of each node or group that is read."""
    heard: dict[int, Heard] = field(default_factory=dict)
    told: Announcement | None = None
    found: str = ""
    """What another node has found by itself, in one line."""
    hosts: bytes = b""


class Member:
    """What all nodes do.

    Parameters
    ----------
    store, secret, note:
        As for `hangscope.toolkit.launching.letters.Letters`.
    most_nodes:
        There are at most as many nodes as ranks.
    """

    def __init__(
        self,
        store: Store,
        *,
        secret: RunSecret = NO_SECRET,
        note: Callable[[str], None] = lambda line: None,
        most_nodes: int = MOST_NODES,
    ) -> None:
        self.store = store
        self.letters = Letters(store, secret, note)
        self.most_nodes = min(most_nodes, MOST_NODES)
        self.inbox = Inbox()
        self.report = Report(0, b"")
        self.found = ""
        """What this node has found by itself, in one line, to be told to all others."""
        self.meeting = ""
        self._found_told = ""
        self._news = -1

    def round(self) -> None:
        """Send what is new, receive what is new."""
        raise NotImplementedError

    def _has_news(self) -> bool:
        """Whether anybody has announced anything since the last call, which `_news` then counts."""
        news = self.store.add(f"{self.meeting}/news", 0)
        is_new, self._news = news != self._news, news
        return is_new

    def _tell_found(self) -> None:
        """Tell all others what was found here, unless another node was first."""
        if self.found == self._found_told:
            return
        self._found_told, key = self.found, f"{self.meeting}/found"
        if self.letters.take(key) is None:
            self.letters.put(key, self.found.encode()[:MOST_TEXT])
            self.store.add(f"{self.meeting}/news", 1)

    def _hear_found(self) -> None:
        raw = self.letters.take(f"{self.meeting}/found")
        if raw is not None and not self.inbox.found and not self.found:
            self.inbox.found = raw[:MOST_TEXT].decode("utf-8", "replace")

    def _read_group(
        self, meeting: str, numbers: Iterable[int], known: dict[int, Report]
    ) -> list[int]:
        """Read the reports of these nodes into ``known``; returns the numbers with new ones."""
        numbers, new = list(numbers), []
        raws = self.letters.take_all([f"{meeting}/n/{number}" for number in numbers])
        for number, raw in zip(numbers, raws, strict=True):
            report, before = Report.unpacked(raw), known.get(number)
            if report is None or (before is not None and report.sent_ns <= before.sent_ns):
                continue
            total = sum(len(one.digest) for key, one in known.items() if key != number)
            if total + len(report.digest) > MAX_TOTAL_BYTES:
                self.letters.refuse(f"{meeting}/n/{number}", "all reports together are too large")
                continue
            known[number] = report
            ahead_ns = report.sent_ns - time.time_ns()
            self.inbox.heard[number] = Heard(number, report.sent_ns, ahead_ns)
            new.append(number)
        return new


class FirstNode(Member):
    """The node of rank 0: reads what the groups report, and tells all what is found."""

    def __init__(self, store: Store, **how: Any) -> None:
        super().__init__(store, **how)
        self.meeting = uuid.uuid4().hex
        self.announced = Announcement()
        self._wanted = Announcement()
        self._announced_s = 0.0
        self._changes: dict[int, int] = {}
        self._versions: dict[int, int] = {}
        self._covered: dict[int, tuple[int, float]] = {}
        """Of each group how many reports its speaker has combined, and since when that stands."""
        self._direct: dict[int, Report] = {}
        self._digest_of_group: dict[int, int] = {}
        self._counted = 0
        self.letters.put("first", self.meeting.encode())

    def say(self, *, verdict: str = "", hosts: bytes = b"", deep: bool | None = None) -> None:
        """Have something told to all others in the next round."""
        if verdict:
            self._wanted.verdict = verdict[:MOST_TEXT]
        if hosts:
            self._wanted.hosts += 1
            self.letters.put(f"{self.meeting}/hosts", hosts)
        if deep is not None:
            self._wanted.deep = deep

    def round(self) -> None:
        self._count()
        groups = range(-(-self._counted // GROUP))
        if len(groups) > 1:
            for group, version in self._counters("v", groups).items():
                if version != self._versions.get(group, 0):
                    self._versions[group] = version
                    self._read_combined(group)
        changes = self._counters("c", groups)
        for group, count in changes.items():
            if self._changes.get(group) != count and self._is_read_directly(group, count):
                self._changes[group] = count
                self._read_directly(group)
        if self._has_news():
            self._hear_found()
        self._announce()

    def _count(self) -> None:
        count = self.store.add(f"{self.meeting}/count", 0)
        count = min(count, self.most_nodes) if count <= MOST_NODES else self._counted
        for group in range(-(-self._counted // GROUP), -(-count // GROUP)):
            for counter in "cv":  # so that all can be read at once
                self.store.add(f"{self.meeting}/{counter}/{group}", 0)
        self._counted = self._wanted.count = max(count, self._counted)

    def _counters(self, kind: str, groups: range) -> dict[int, int]:
        keys = [f"{self.meeting}/{kind}/{group}" for group in groups]
        values = self.store.multi_get(keys) if keys else []
        return {g: count_of(raw) for g, raw in zip(groups, values, strict=True)}

    def _is_read_directly(self, group: int, count: int) -> bool:
        """Whether there is no speaker, or it has not combined the group's newest reports."""
        if self._counted <= GROUP:
            return True
        now_s = time.monotonic()
        covered, since_s = self._covered.setdefault(group, (0, now_s))
        return count > covered and now_s - since_s > SPEAKER_SILENT_S

    def _read_directly(self, group: int) -> None:
        numbers = range(group * GROUP + 1, min((group + 1) * GROUP, self._counted) + 1)
        for number in self._read_group(self.meeting, numbers, self._direct):
            if self._direct[number].digest:
                self.inbox.digests[f"node_{number}"] = self._direct[number].digest

    def _read_combined(self, group: int) -> None:
        """Read what a group's speaker has combined."""
        first = group * GROUP + 1
        said = spoken(self.letters.take(f"{self.meeting}/s/{group}"), first)
        if said is None:
            return
        covered, digest_number, rows = said
        self._covered[group] = covered, time.monotonic()
        speaker_ahead_ns = rows[0].sent_ns - time.time_ns()
        for row in rows:
            known = self.inbox.heard.get(row.number)
            if known is None or row.sent_ns > known.sent_ns:
                ahead_ns = row.ahead_ns + speaker_ahead_ns
                self.inbox.heard[row.number] = replace(row, ahead_ns=ahead_ns)
        if digest_number != self._digest_of_group.get(group, 0):
            content = self.letters.take(f"{self.meeting}/g/{group}")
            if content is not None:
                self._digest_of_group[group] = digest_number
                self.inbox.digests[f"group_{group}"] = content
                for number in range(first, first + GROUP):
                    self.inbox.digests.pop(f"node_{number}", None)

    def _announce(self) -> None:
        if self._wanted == self.announced:
            return
        now_s = time.monotonic()
        only_count = self._wanted.verdict == self.announced.verdict
        if only_count and now_s - self._announced_s < ANNOUNCE_AGAIN_S:
            return
        self._announced_s = now_s
        wanted = self._wanted
        self.announced = Announcement(wanted.count, wanted.verdict, wanted.hosts, wanted.deep)
        said = [wanted.count, wanted.verdict, wanted.hosts, wanted.deep]
        self.letters.put(f"{self.meeting}/say", orjson.dumps(said))
        self.store.add(f"{self.meeting}/news", 1)


class OtherNode(Member):
    """Any other node: reports, listens to the first one, and may speak for its group."""

    def __init__(self, store: Store, **how: Any) -> None:
        super().__init__(store, **how)
        self.number = 0
        self.is_heard = False
        self._hosts = 0
        self._sent = Report(0, b"")
        self._of_group: dict[int, Report] = {}
        self._tables = Tables()
        self._changes = 0
        self._combined_s = 0.0
        self._combined: dict[int, bytes] = {}
        self._digest_number = 0

    @property
    def group(self) -> int:
        """The group it belongs to."""
        return (self.number - 1) // GROUP

    def round(self) -> None:
        if not self.is_heard:
            self._join()
        if not self.meeting:
            return
        if self.report.sent_ns > self._sent.sent_ns:
            self._sent = self.report
            self.letters.put(f"{self.meeting}/n/{self.number}", self.report.packed())
            self.store.add(f"{self.meeting}/c/{self.group}", 1)
        self._tell_found()
        self._listen()
        if (self.number - 1) % GROUP == 0:
            self._speak()

    def _join(self) -> None:
        """Join the first node's meeting if it is a new one."""
        meeting = (self.letters.take("first") or b"").decode("ascii", "replace")
        if meeting != self.meeting and _NAME.fullmatch(meeting):
            self.meeting = meeting
            self._sent, self._news, self._found_told = Report(0, b""), -1, ""
            self.number = self.store.add(f"{meeting}/count", 1)

    def _listen(self) -> None:
        before = self._news
        if not self._has_news():
            return
        said = loaded(self.letters.take(f"{self.meeting}/say"))
        if said is None or len(said) != 4 or [*map(type, said)] != [int, str, int, bool]:
            self._news = before
            return
        told = Announcement(said[0], said[1][:MOST_TEXT], said[2], said[3])
        # The number was counted only in this attempt's meeting: nothing old counts this far.
        self.is_heard = told.count >= self.number
        if not self.is_heard:
            return
        self.inbox.told = told
        self._hear_found()
        if told.hosts != self._hosts:
            hosts = self.letters.take(f"{self.meeting}/hosts")
            if hosts is not None:
                self._hosts, self.inbox.hosts = told.hosts, hosts

    def _speak(self) -> None:
        """Combine the group's reports if any is new."""
        now_s = time.monotonic()
        if now_s - self._combined_s < COMBINE_AGAIN_S:
            return
        changes = self.store.add(f"{self.meeting}/c/{self.group}", 0)
        if changes == self._changes:
            return
        self._combined_s, self._changes = now_s, changes
        numbers = range(self.number + 1, self.number + GROUP)
        self._read_group(self.meeting, numbers, self._of_group)
        own = Heard(self.number, time.time_ns(), 0)
        rows = [own, *(h for n, h in sorted(self.inbox.heard.items()) if n in numbers)]
        reports = {self.number: self.report, **self._of_group}
        digests = {n: r.digest for n, r in reports.items() if r.digest}
        if digests != self._combined:
            self._combined = digests
            self._put_combined(digests)
        said = [changes, self._digest_number, [[r.number, r.sent_ns, r.ahead_ns] for r in rows]]
        self.letters.put(f"{self.meeting}/s/{self.group}", orjson.dumps(said))
        self.store.add(f"{self.meeting}/v/{self.group}", 1)

    def _put_combined(self, digests: dict[int, bytes]) -> None:
        if len(self._tables.stacks) > _MOST_TABLE:
            self._tables = Tables()
        found = []
        for number, raw in sorted(digests.items()):
            try:
                digest = decode(raw, self._tables)
                nodes = tuple(replace(node, number=number) for node in digest.nodes[:1])
                found.append(replace(digest, nodes=nodes))
            except ValueError as error:
                self.letters.refuse(f"{self.meeting}/n/{number}", str(error))
        if found:
            self._digest_number += 1
            content = encode(combined(found, self._tables))
            self.letters.put(f"{self.meeting}/g/{self.group}", content)
