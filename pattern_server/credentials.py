"""What proves who a caller is: passwords as Argon2id hashes, signed access tokens, and identity tokens of others. Both
libraries are used here alone, and loaded with the first password or token.

Sources: RFC 9106 (Argon2), section 4 for the default cost; RFC 7519 (JWT); RFC 8725 for what is checked; OpenID Connect
Core 1.0, section 3.1.3.7, for identity tokens. Access tokens are signed with HS256 because only the server that makes
them reads them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from pattern_core.errors import InvalidInput, Overloaded
from pattern_db.tables.sign_ins import SigningKeyRow
from pattern_server.sections import PasswordsConfig

if TYPE_CHECKING:
    from argon2 import PasswordHasher

T = TypeVar("T")

ALGORITHM = "HS256"
ISSUER, AUDIENCE = "pattern", "pattern-api"
ACCESS = "access"  # the `token_type` of access tokens
ACCESS_S = 900
LEEWAY_S = 30  # for clocks that differ
KEY_BYTES_MIN = 32
PASSWORD_CHARS_MIN, PASSWORD_CHARS_MAX = 8, 1_000
HASHES_AT_ONCE, HASHES_WAITING_MAX = 2, 50  # each uses a processor and the configured memory

# The last character of 32 bytes in base64 has two unused bits: only one of its four spellings is accepted.
_ACCESS_TOKEN = re.compile(r"[\w-]{1,400}\.[\w-]{1,1200}\.[\w-]{42}[AEIMQUYcgkosw048]", re.ASCII)
# Of identity tokens: no `none`, and no HS256, with which a public key could pass for a secret.
_IDENTITY_ALGORITHMS = [f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512)] + ["EdDSA"]
# The times are compared with the server's own clock, not by the library.
_NO_TIMES = {"verify_exp": False, "verify_nbf": False, "verify_iat": False}
_TIMES = ("exp", "nbf", "iat")
_TEXTS = ("sub", "sid", "jti")


@dataclass(frozen=True, slots=True)
class AccessClaims:
    """What an access token says: the user, the sign-in, and when it expires (unix milliseconds, without leeway)."""

    user_id: str
    sign_in_id: str
    expires_ms: int


def sign_access(key: SigningKeyRow, access: AccessClaims, *, jti: str, now_ms: int) -> str:
    """Return a signed access token that is valid from now on."""
    import jwt

    claims = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": access.user_id,
        "sid": access.sign_in_id,
        "jti": jti,
        "iat": now_ms // 1_000,
        "nbf": now_ms // 1_000,
        "exp": access.expires_ms // 1_000,
        "token_type": ACCESS,
    }
    return jwt.encode(claims, key.secret, ALGORITHM, headers={"kid": key.id})


def read_access(token: str, keys: Iterable[SigningKeyRow], *, now_ms: int) -> AccessClaims | None:
    """Return what an access token says, or None if it is not one that a valid key signed. It may have expired."""
    if not _ACCESS_TOKEN.fullmatch(token):
        return None
    import jwt

    try:
        kid = jwt.get_unverified_header(token).get("kid")
        key = next(key for key in keys if key.id == kid and len(key.secret) >= KEY_BYTES_MIN)
        options: Any = {"require": ["iss", "aud", *_TIMES, *_TEXTS], **_NO_TIMES}
        claims = jwt.decode(token, key.secret, [ALGORITHM], options, audience=AUDIENCE, issuer=ISSUER)
    except (jwt.PyJWTError, StopIteration):
        return None
    is_sound = (
        claims.get("token_type") == ACCESS
        and all(type(claims[name]) is int for name in _TIMES)
        and all(isinstance(claims[name], str) for name in _TEXTS)
    )
    if not is_sound or claims["nbf"] > now_ms // 1_000 + LEEWAY_S:
        return None
    return AccessClaims(user_id=claims["sub"], sign_in_id=claims["sid"], expires_ms=claims["exp"] * 1_000)


def read_identity(
    token: str, keys: Mapping[str, Any], *, issuer: str, audience: str, nonce: str, now_ms: int
) -> str | None:
    """Return the subject of an identity token, or None if it is not one that this issuer signed for this audience and
    nonce, or has expired. `keys` is the issuer's set of public keys (RFC 7517).
    """
    import jwt

    try:
        kid = jwt.get_unverified_header(token).get("kid")
        usable = [key for key in jwt.PyJWKSet.from_dict(dict(keys)).keys if key.public_key_use in (None, "sig")]
        (key,) = [key for key in usable if kid is None or key.key_id == kid]
        options: Any = {"require": ["iss", "aud", "sub", "exp", "iat", "nonce"], **_NO_TIMES}
        claims = jwt.decode(token, key, _IDENTITY_ALGORITHMS, options, audience=audience, issuer=issuer)
        starts, ends = (float(claims[name]) for name in ("iat", "exp"))
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    parties = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
    is_ours = claims.get("azp", audience if len(parties) == 1 else None) == audience and claims["nonce"] == nonce
    is_valid_now = starts - LEEWAY_S <= now_ms / 1_000 < ends + LEEWAY_S
    subject = claims["sub"]
    return subject if is_ours and is_valid_now and isinstance(subject, str) and subject else None


class Passwords:
    """Hashes and checks passwords in threads, a few at once, at the configured cost."""

    def __init__(self, cost: PasswordsConfig) -> None:
        self._cost = cost
        self._limiter = trio.CapacityLimiter(HASHES_AT_ONCE)
        # What is compared where there is no hash, so that the answer comes after the same time.
        costs = f"m={cost.memory_kib},t={cost.passes},p={cost.lanes}"
        self._placeholder = f"$argon2id$v=19${costs}${'A' * 22}${'A' * 43}"

    async def hash(self, password: str) -> str:
        """Return the hash of a new password.

        Raises:
            InvalidInput: it is too short or too long.
            Overloaded: too many passwords wait.
        """
        if not PASSWORD_CHARS_MIN <= len(password) <= PASSWORD_CHARS_MAX:
            raise InvalidInput(f"a password has {PASSWORD_CHARS_MIN} to {PASSWORD_CHARS_MAX} characters")
        return await self._run(partial(self._hasher().hash, _typed(password)))

    async def matches(self, password: str, hashed: str | None) -> bool:
        """Return whether the password is the one of this hash; without a hash False, after the same time.

        Raises:
            Overloaded: too many passwords wait.
        """
        from argon2.exceptions import InvalidHashError, VerificationError

        try:
            await self._run(partial(self._hasher().verify, hashed or self._placeholder, _typed(password)))
        except (VerificationError, InvalidHashError):
            return False
        return hashed is not None

    def _hasher(self) -> PasswordHasher:
        from argon2 import PasswordHasher

        return PasswordHasher(self._cost.passes, self._cost.memory_kib, self._cost.lanes)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._limiter.statistics().tasks_waiting >= HASHES_WAITING_MAX:
            raise Overloaded("too many people sign in at once; try again soon", retry_after_s=2)
        return await trio.to_thread.run_sync(work, limiter=self._limiter)


def _typed(password: str) -> str:
    """Return the password in one spelling: keyboards send a letter with an accent as one character, or as two."""
    return unicodedata.normalize("NFKC", password)
