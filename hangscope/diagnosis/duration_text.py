"""Durations as text: short in tables, rounded in sentences."""

from __future__ import annotations


def duration(seconds: float | None) -> str:
    """``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 05 min``, ``4 d 03 h``; empty for None."""
    if seconds is None or seconds != seconds:
        return ""
    if seconds < 0:
        return "0 s"
    if seconds < 0.0005:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.0995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = int(seconds + 0.5) if seconds < 1e15 else int(1e15)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s".replace(" 00 s", "")
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min".replace(" 00 min", "")
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h".replace(" 00 h", "")


def lasting(seconds: float) -> str:
    """The same in whole seconds: ``4 s``, ``3 min 20 s``; below one second ``0.3 s`` or ``12
    ms``."""
    return f"{seconds:.0f} s" if 1 <= seconds < 59.5 else duration(seconds)
