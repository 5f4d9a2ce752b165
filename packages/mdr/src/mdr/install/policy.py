"""``mdr-policy.toml``: what a team accepts. The command line can be stricter, never looser.

::

    minimum_grade = "B"                      # A B C D F
    allowed_owners = ["nvidia", "gitlab.com/group"]
    required_license = ["Apache-2.0", "MIT"] # as the host states it, else the frontmatter; unknown is refused
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mdr.errors import PolicyError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

POLICY_NAME: Final = "mdr-policy.toml"
GRADES: Final = "ABCDF"
"""Best first."""
DEFAULT_MINIMUM: Final = "D"
"""Without a policy file only F is refused."""
MAX_POLICY_BYTES: Final = 1 << 20
_KEYS: Final = frozenset({"minimum_grade", "allowed_owners", "required_license"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What may be installed."""

    minimum_grade: str | None = None
    """``None`` where the file says nothing; then :data:`DEFAULT_MINIMUM` holds."""
    allowed_owners: tuple[str, ...] | None = None
    """Lower case, ``host/owner`` for other hosts than GitHub; ``None`` allows all."""
    required_license: tuple[str, ...] | None = None
    """Lower case; ``None`` asks for none."""

    def minimum(self, asked: str | None) -> str:
        """Return the worst grade that passes.

        Args:
            asked: ``--min-grade``, which may loosen the default and tighten the file.
        """
        if self.minimum_grade is None:
            return asked or DEFAULT_MINIMUM
        return min(self.minimum_grade, asked or self.minimum_grade)


def read_policy(folder: Path) -> Policy:
    """Read the policy beside ``mdr.lock``; without a file everything but grade F is allowed.

    Raises:
        mdr.errors.UsageError: policy-unreadable.
    """
    path = folder / POLICY_NAME
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_POLICY_BYTES + 1)
    except FileNotFoundError:
        return Policy()
    except OSError as error:
        raise _unreadable(error.strerror or "not a file") from error
    if len(data) > MAX_POLICY_BYTES:
        raise _unreadable(f"larger than {MAX_POLICY_BYTES} bytes")
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise _unreadable(str(error)) from error
    return _policy(document)


def check_grade(policy: Policy, grade: str, ref: str, asked: str | None = None) -> None:
    """Refuse a grade below the bar.

    Raises:
        mdr.errors.PolicyError: grade-refused.
    """
    minimum = policy.minimum(asked)
    if grade > minimum:
        hint = (
            f"{POLICY_NAME} asks for {policy.minimum_grade}"
            if policy.minimum_grade
            else f"read the findings with `mdr audit {ref}`; --min-grade {grade} installs it anyway"
        )
        raise PolicyError(
            "grade-refused",
            f"{ref} has grade {grade}, {minimum} is the lowest that passes",
            hint=hint,
            data={"ref": ref, "grade": grade, "minimum": minimum},
        )


def check_owner(policy: Policy, host: str, repository: str, ref: str) -> None:
    """Refuse an owner that the policy does not name.

    Raises:
        mdr.errors.PolicyError: owner-refused.
    """
    if policy.allowed_owners is None:
        return
    owner = repository.partition("/")[0].lower()
    names = {f"{host}/{owner}"} | ({owner} if host == "github.com" else set())
    if names.isdisjoint(policy.allowed_owners):
        raise PolicyError(
            "owner-refused",
            f"{ref}: {POLICY_NAME} does not allow the owner {owner}",
            hint=f"allowed: {', '.join(policy.allowed_owners) or 'nobody'}",
            data={"ref": ref, "owner": owner, "host": host},
        )


def check_license(policy: Policy, license_id: str | None, ref: str) -> None:
    """Refuse a license that the policy does not name, and an unknown one.

    Raises:
        mdr.errors.PolicyError: license-refused.
    """
    if policy.required_license is None:
        return
    if (license_id or "").lower() not in policy.required_license:
        raise PolicyError(
            "license-refused",
            f"{ref}: license {license_id or 'not known'}, {POLICY_NAME} does not accept it",
            hint=f"accepted: {', '.join(policy.required_license) or 'none'}",
            data={"ref": ref, "license": license_id},
        )


def _policy(document: dict[str, Any]) -> Policy:
    unknown = sorted(set(document) - _KEYS)
    if unknown:
        raise _unreadable(f"unknown key {unknown[0]!r}; keys are {', '.join(sorted(_KEYS))}")
    grade = document.get("minimum_grade")
    if grade is not None and grade not in set(GRADES):
        raise _unreadable(f"minimum_grade = {grade!r} is not one of A B C D F")
    return Policy(
        minimum_grade=grade,
        allowed_owners=_names(document, "allowed_owners"),
        required_license=_names(document, "required_license"),
    )


def _names(document: dict[str, Any], key: str) -> tuple[str, ...] | None:
    value = document.get(key)
    if value is None:
        return None
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise _unreadable(f"{key} is not a list of texts")
    return tuple(item.lower().removeprefix("github.com/") for item in items)


def _unreadable(reason: str) -> UsageError:
    return UsageError(
        "policy-unreadable",
        f"cannot read {POLICY_NAME}: {reason}",
        hint="correct it; a policy that cannot be read allows nothing",
    )
