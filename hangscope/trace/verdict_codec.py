"""Encodes what a monitor concluded while the job ran as an event of its journal, and decodes it."""

from __future__ import annotations

from typing import Any, Final

from hangscope.trace import clean
from hangscope.trace.model import Claim, ClaimDetails

OWN_VERDICT: Final = "own_verdict"
"""The kind of a claim with a verdict that the monitor gave while the job ran."""
MOST_VERDICTS = 16
_MOST_NAMED = 100_000
_MOST_HOSTS = 64


def encode_verdict(claim: Claim) -> dict[str, Any]:
    """A claim of kind `OWN_VERDICT` as builtins that JSON can hold."""
    return {
        "at_ns": claim.at_ns,
        "verdict": claim.details.verdict,
        "culprits": list(claim.details.culprits),
        "summary": claim.text,
        "confidence": claim.details.confidence,
        **({"hosts": list(claim.details.hosts)} if claim.details.hosts else {}),
    }


def decode_verdict(said: dict[str, Any]) -> Claim:
    """The claim of an event; what is missing or malformed in it stays empty."""
    named, summary, hosts = said.get("culprits"), said.get("summary"), said.get("hosts")
    ranks = named[:_MOST_NAMED] if isinstance(named, list) else ()
    return Claim(
        OWN_VERDICT,
        text=clean.prose(summary) if isinstance(summary, str) else "",
        at_ns=clean.as_int(said.get("at_ns"), 0, low=0),
        certain=False,
        details=ClaimDetails(
            verdict=clean.as_name(said.get("verdict")),
            confidence=clean.as_name(said.get("confidence")),
            culprits=tuple(r for r in ranks if clean.as_rank(r) is not None),
            hosts=tuple(map(clean.as_name, hosts[:_MOST_HOSTS])) if isinstance(hosts, list) else (),
        ),
    )
