"""Removes from recordings what tells whose they are, keeping what a diagnosis needs.

Within one `Redactor` the same text always becomes the same substitute, so that ranks which ran the
same file still do. Numbers and the names of functions and groups stay, because the diagnosis needs
them. Of all other text only known words stay (`hangscope.replay.vocabulary`), wherever it stands;
what patterns find before only gets more telling substitutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

from hangscope.replay.vocabulary import ADDRESS, WRITTEN_WORD, is_known, public_words, words_of
from hangscope.trace.model import Trace

ROOT = "/redacted"
_LIBRARY = re.compile(
    r"/((?:(?:site|dist)-packages|lib(?:64)?/python\d[\d.]*)/.*"
    r"|torch/(?:nn|distributed|utils|optim|autograd|csrc|_dynamo|_inductor|fx|lib)/.*"
    r"|torch/(?:_ops|_tensor)\.py"
    r"|gloo/(?:transport|rendezvous|common)/.*"
    r"|c10/.*"
    r"|hangscope/(?:recording/.*|autoload\.py))$"
)
"""The public part of a path, which tells a library from the user's code."""
_PATH = re.compile(r"(?<![\w./~-])(?:~|/[\w.@+=~-]+)(?:/[\w.@+=~-]+)+/?")
_URL = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*)://[^\s'\"<>\])]+")
_ADDRESS = re.compile(r"(?<![\w.])(\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})(?![\w.]*\d)")
_ADDRESS_6 = re.compile(
    r"(?<![\w:])(?:fe80|f[cd][0-9a-f]{2}|[23][0-9a-f]{3}):[0-9a-f:]{2,38}[0-9a-f:](?!\w)", re.I
)
"""Link-local, private and public addresses; `c10::add` is none."""
_KEY = re.compile(
    r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abp]-|AKIA)[A-Za-z0-9_-]{16,}"
    r"|(?<=Bearer )[\w.~+/=-]{8,}"
)
_SECRET = re.compile(
    r"""(?i)\b(\w*(?:password|passwd|secret|token|api[_-]?key|access[_-]?key)['"]?\s*[=:]\s*['"]?)"""
    r"""(?![\d.]+\b)([^\s'",;)}\]]{6,})"""
)
"""A count of tokens is no secret."""
_HOME = re.compile(r"/(?:home|Users|users|scratch)/([\w.-]{3,})")
_NOT_SECRET = ("127.", "0.", "255.")
_PUBLIC = re.compile(r"^/(?:dev|proc|sys)(?:/|$)")
_WORD_OR_ADDRESS = re.compile(f"({ADDRESS.pattern})|{WRITTEN_WORD.pattern}")
_MOST_KEPT = 200
"""Only shorter texts are likely to come again."""
_HOST_MUST_HAVE = 3
"""Minimum length for replacing a host name in free text; shorter ones could be part of anything."""


class Redactor:
    """Replaces texts consistently.

    Parameters
    ----------
    hosts:
        Host names that are known to occur.
    """

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        self._folders: dict[str, str] = {}
        self._hosts: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        self._users: dict[str, str] = {}
        self._files: dict[str, str] = {}
        self._words: dict[str, str] = {}
        self._prose: dict[str, str] = {}
        self._known = public_words()
        self._host_pattern: re.Pattern[str] | None = None
        for host in sorted(set(hosts)):
            self.host(host)

    def host(self, name: str) -> str:
        """A host's substitute: ``host1``, ``host2``, ..."""
        if not name or name in self._hosts.values() or name == "localhost":
            return name
        if name not in self._hosts:
            self._hosts[name] = f"host{len(self._hosts) + 1}"
            known = [h for h in self._hosts if len(h) >= _HOST_MUST_HAVE]
            # Longer names first, because a short host name is a prefix of its full name.
            words = "|".join(re.escape(h) for h in sorted(known, key=len, reverse=True))
            self._host_pattern = re.compile(rf"(?<![\w.-])(?:{words})(?![\w-])") if words else None
        return self._hosts[name]

    def path(self, path: str) -> str:
        """An absolute path's substitute: its file name below a numbered directory."""
        self.note_users(path)
        if _PUBLIC.match(path):
            return self._known_words(path)
        library = _LIBRARY.search(path)
        if library:
            return f"{ROOT}/{self._public_part(library[1])}"
        if path.startswith(ROOT) or not path.startswith(("/", "~")):
            return "/".join(map(self._file, path.split("/")))
        folder, _, name = path.rstrip("/").rpartition("/")
        number = self._folders.setdefault(folder, str(len(self._folders) + 1))
        return f"{ROOT}/{number}/{self._file(name)}"

    def learn(self, trace: Trace) -> None:
        """Note the files of a job, and the names of its functions and groups, which may stay."""
        frames = {frame for stack in trace.stacks for frame in stack}
        for facts in trace.ranks.values():
            errors = [e for e in (facts.exception, facts.handled) if e is not None]
            frames.update(facts.main_stack)
            frames.update(frame for thread in facts.threads for frame in thread.stack)
            frames.update(frame for error in errors for frame in error.stack)
            self._keep(error.type_name for error in errors)
        self._keep(frame.name for frame in frames)
        self._keep(f"{group.name} {group.desc}" for group in trace.groups)
        for filename in sorted({frame.filename for frame in frames}):
            self.path(filename)

    def prose(self, text: str) -> str:
        """Text of which only known words and numbers are left."""
        if len(text) > _MOST_KEPT:
            return self._known_words(self.text(text))
        if text not in self._prose:  # dumps say the same a hundred thousand times
            self._prose[text] = self._known_words(self.text(text))
        return self._prose[text]

    def foreign_word(self, text: str) -> str:
        """A word of a finished text that is neither known nor a substitute; empty if none is."""
        said = WRITTEN_WORD.findall(ADDRESS.sub("", text))
        words = (word for word in said if not is_known(word, self._known))
        return next(words, "")

    def _known_words(self, text: str) -> str:
        return _WORD_OR_ADDRESS.sub(lambda m: m[0] if m[1] else self._word(m[0]), text)

    def _public_part(self, path: str) -> str:
        """A path inside a library; what is below the folder of packages may be private."""
        _, found, inside = path.partition("-packages/")
        package = inside.partition("/")[0]
        if found and not self._is_kept(package.removesuffix(".py")):
            return self._known_words(path)
        self._keep([path])
        return path

    def _is_kept(self, text: str) -> bool:
        return all(is_known(word, self._known) for word in WRITTEN_WORD.findall(text))

    def _keep(self, names: Iterable[str]) -> None:
        self._known = self._known.union(*map(words_of, names))

    def _word(self, word: str) -> str:
        if is_known(word, self._known):
            return word
        return self._words.setdefault(word.lower(), f"word{len(self._words) + 1}")

    def _file(self, name: str) -> str:
        """A file's name if it says nothing, else a neutral one of the same kind."""
        if self._is_kept(name):
            return name
        suffix = PurePath(name).suffix
        suffix = suffix if self._is_kept(suffix) else ""
        return self._files.setdefault(name, f"file{len(self._files) + 1}{suffix}")

    def text(self, text: str) -> str:
        """Text with every URL, absolute path, known host, user, file and address replaced."""
        self.note_users(text)
        text = _SECRET.sub(r"\1redacted", _KEY.sub("redacted", text))
        text = _URL.sub(r"\1://redacted", text)
        text = _PATH.sub(lambda m: self.path(m[0]), text)
        if self._host_pattern is not None:
            text = self._host_pattern.sub(lambda m: self._hosts[m[0]], text)
        for name, substitute in (*self._users.items(), *self._files.items()):
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", substitute, text)
        text = _ADDRESS_6.sub(lambda m: self._address_6(m[0]), text)
        return _ADDRESS.sub(lambda m: self._address(m[1]), text)

    def note_users(self, text: str) -> None:
        """Learn the names of users from the paths of their home directories."""
        for user in _HOME.findall(text):
            self._users.setdefault(user, f"user{len(self._users) + 1}")

    def left_in(self, content: bytes) -> str:
        """A host, user or address of the original that content still names; empty if none."""
        text = content.decode("latin-1")
        known = self._hosts | self._users | self._files | self._addresses
        words = known.keys() - known.values()  # it may have been redacted before
        for word in sorted(word for word in words if len(word) >= _HOST_MUST_HAVE):
            if re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", text):
                return word
        return ""

    def value(self, value: Any, key: str = "") -> Any:
        """Builtin objects (of a pickle or JSON) with all texts replaced, recursively."""
        if isinstance(value, str):
            if key in ("host", "hostname", "node"):
                return self.host(value)
            if key in ("filename", "cwd") or _is_path(value):
                return self.path(value)
            return self.prose(value)
        if isinstance(value, (bytes, bytearray)):
            return self.prose(value.decode("utf-8", "replace")).encode()
        if isinstance(value, dict):
            return {
                (self.value(k) if isinstance(k, (str, bytes, tuple)) else k): self.value(
                    v, k if isinstance(k, str) else ""
                )
                for k, v in value.items()
            }
        if isinstance(value, (set, frozenset)):
            return type(value)(self.value(item, key) for item in value)
        if isinstance(value, list):
            return [self.value(item, key) for item in value]
        if isinstance(value, tuple):
            return tuple(self.value(item, key) for item in value)
        return value

    def _address_6(self, address: str) -> str:
        if ("::" not in address and address.count(":") < 5) or address.startswith("2001:db8:"):
            return address
        # 2001:db8::/32 is reserved for documentation.
        number = len(self._addresses) + 1
        return self._addresses.setdefault(address, f"2001:db8::{number:x}")

    def _address(self, address: str) -> str:
        if address.startswith(_NOT_SECRET) or address.startswith("192.0.2."):
            return address
        number = len(self._addresses) + 1
        # 192.0.2.0/24 is reserved for documentation.
        return self._addresses.setdefault(address, f"192.0.2.{number % 254 + 1}")


def _is_path(text: str) -> bool:
    return text.startswith("/") and "\n" not in text and len(text) < 4096 and " " not in text
