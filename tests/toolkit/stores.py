"""A key-value store in this process that counts requests: as the torch stores, without sockets."""

from __future__ import annotations

import threading
from collections import Counter


class CountingStore:
    """What `toolkit.barriers.meeting` uses of a store, with every request counted by kind."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()
        self.lock = threading.Lock()

    def _count(self, kind: str) -> None:
        self.requests[kind] += 1

    def has_extended_api(self) -> bool:
        return True

    def set(self, key: str, value: str) -> None:
        with self.lock:
            self._count("set")
            self.data[key] = value.encode()

    def get(self, key: str) -> bytes:
        with self.lock:
            self._count("get")
            return self.data[key]

    def add(self, key: str, amount: int) -> int:
        with self.lock:
            self._count("add")
            value = int(self.data.get(key, b"0")) + amount
            self.data[key] = str(value).encode()
            return value

    def append(self, key: str, value: str) -> None:
        with self.lock:
            self._count("append")
            self.data[key] = self.data.get(key, b"") + value.encode()

    def check(self, keys: list[str]) -> bool:
        with self.lock:
            self._count("check")
            return all(key in self.data for key in keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        with self.lock:
            self._count("compare_set")
            if self.data.get(key, b"") == expected.encode():
                self.data[key] = desired.encode()
            return self.data[key]

    def delete_key(self, key: str) -> bool:
        with self.lock:
            self._count("delete_key")
            return self.data.pop(key, None) is not None
