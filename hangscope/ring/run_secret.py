"""A secret that a run's processes inherit: what they write can be told from what others wrote.

`hangscope run` makes one for its command, and a user may set `VARIABLE` to the same value on all
nodes of a job. The files hold no secret, only seals made with it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

VARIABLE = "HANGSCOPE_SECRET"
LAUNCH_VARIABLE = "HANGSCOPE_INTERNAL_LAUNCH"
"""The secret of one `hangscope run`; other nodes do not know it."""
SEAL_CHARACTERS = 32


@dataclass(frozen=True, slots=True)
class RunSecret:
    """A run's secret, as far as this process knows one."""

    text: str = field(default="", repr=False)
    """Empty if there is none."""
    is_shared: bool = False
    """Whether the other nodes of the job know it, too."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> RunSecret:
        """The secret in an environment."""
        shared = environ.get(VARIABLE, "")
        return cls(shared or environ.get(LAUNCH_VARIABLE, ""), bool(shared))

    def seal(self, *claims: str | int) -> str:
        """The seal under these claims; empty without a secret."""
        if not self.text:
            return ""
        message = "\0".join(map(str, claims)).encode("utf-8", "surrogateescape")
        key = self.text.encode("utf-8", "surrogateescape")
        return hmac.new(key, message, hashlib.sha256).hexdigest()[:SEAL_CHARACTERS]

    def is_sealed(self, seal: str, *claims: str | int) -> bool:
        """Whether this is the seal under these claims; False without a secret."""
        return bool(self.text) and hmac.compare_digest(
            seal.encode("utf-8", "replace"), self.seal(*claims).encode()
        )


def new_secret() -> str:
    """A secret that nobody can guess."""
    return secrets.token_hex(16)
