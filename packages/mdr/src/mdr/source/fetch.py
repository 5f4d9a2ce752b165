"""Bring a remote repository or a bundle into a bare mirror of ours, and nothing of its settings.

The mirror keeps every object it ever fetched (no garbage collection), so that commits which a
force-push removes stay readable. Only the tip of the default branch is fetched: no tags, no
submodules, no other branches. Blobs above the file limit stay on the server where it can filter.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mdr.errors import SourceError
from mdr.source import git
from mdr.source.addresses import Pins, check_public
from mdr.source.limited import traced
from mdr.source.locate import Location, Reach
from mdr.source.types import Head

if TYPE_CHECKING:
    from mdr.settings import Limits, Settings

REF: Final = "refs/mdr/head"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """How one fetch is made."""

    address: str
    env: dict[str, str]
    filters: bool
    """Whether large blobs are asked to stay on the server."""


def remote_head(location: Location, settings: Settings) -> Head:
    """Ask a remote or bundle where its default branch stands: one round trip, nothing fetched.

    Raises:
        mdr.errors.SourceError: source-empty, git-failed, git-timeout, host-rate-limited.
        mdr.errors.Refusal: private-address.
    """
    address, env = _call(location, settings)
    names = ["HEAD"] if location.reach is Reach.REMOTE else []
    arguments = ["ls-remote", "--symref", "--quiet", "--end-of-options", address, *names]
    timeout = min(120, settings.limits.fetch_timeout_seconds)
    with traced(location, settings.data) as trace:
        out = git.run(arguments, env={**env, **trace}, timeout=timeout)
    branch, refs = None, {}
    for line in out.decode("utf-8", "replace").splitlines():
        left, _, name = line.partition("\t")
        if not left.startswith("ref: "):
            refs[name] = left
        elif name == "HEAD":  # a branch may be called HEAD too
            branch = left.removeprefix("ref: ").removeprefix("refs/heads/")
    if "HEAD" in refs:
        return Head(commit=refs["HEAD"], branch=branch)
    return _without_head(refs, location)


def _without_head(refs: dict[str, str], location: Location) -> Head:
    """Pick the branch of a bundle that was made without HEAD: main, master, or the only one."""
    heads = {
        name.removeprefix("refs/heads/"): commit
        for name, commit in refs.items()
        if name.startswith("refs/heads/")
    }
    names = ["main", "master", *(heads if len(heads) == 1 else ())]
    for name in names:
        if location.reach is Reach.BUNDLE and name in heads:
            return Head(commit=heads[name], branch=name)
    raise empty(location.address)


def fetch(location: Location, mirror: Path, head: Head, settings: Settings) -> None:
    """Fetch ``head`` into ``mirror``, which is created when missing.

    Args:
        location: A remote or a bundle.
        mirror: Bare repository below the data folder.
        head: What :func:`remote_head` answered.
        settings: Limits and token.

    Raises:
        mdr.errors.SourceError: source-too-large, git-failed, git-timeout, host-rate-limited.
    """
    limits = settings.limits
    address, env = _call(location, settings)
    if not (mirror / "HEAD").exists():
        _create(mirror, len(head.commit), limits)
    name = f"refs/heads/{head.branch}" if head.branch else "HEAD"
    refspec = f"+{head.commit if location.reach is Reach.REMOTE else name}:{REF}"
    with traced(location, settings.data) as trace:
        call = _Call(address=address, env={**env, **trace}, filters=location.reach is Reach.REMOTE)
        try:
            _fetch(call, mirror, refspec, limits)
        except SourceError as error:
            # A server may not serve commits by name, or not filter; then its HEAD, unfiltered, is asked.
            words = str(error.data.get("stderr", ""))
            if error.code != "git-failed" or not any(
                cue in words for cue in ("not our ref", "filter", "unadvertised")
            ):
                raise
            _fetch(replace(call, filters=False), mirror, f"+HEAD:{REF}", limits)
    _check_count(mirror, limits)


def mirror_folder(location: Location, data: Path) -> Path:
    """Return where the mirror of a location is kept."""
    name = location.host.replace(":", "+").strip("[]")
    return data / "mirrors" / name / (location.repository.lower() + ".git")


def empty(address: str) -> SourceError:
    """Describe a repository without a commit on its default branch."""
    return SourceError(
        "source-empty",
        f"{address} has no commit on its default branch",
        hint="push a first commit, or set the repository's HEAD to a branch that exists",
    )


def _create(mirror: Path, digits: int, limits: Limits) -> None:
    mirror.mkdir(parents=True, exist_ok=True)
    form = "sha256" if digits == 64 else "sha1"
    arguments = ["init", "--quiet", "--bare", "--template=", f"--object-format={form}"]
    git.run(
        [*arguments, "--end-of-options", str(mirror)],
        env=git.environment(),
        timeout=limits.fetch_timeout_seconds,
    )


def _fetch(call: _Call, mirror: Path, refspec: str, limits: Limits) -> None:
    partial = [f"--filter=blob:limit={limits.max_file_bytes + 1}"] if call.filters else []
    arguments = [
        *(f"--git-dir={mirror}", "fetch", "--quiet", "--no-tags", "--no-recurse-submodules"),
        *("--no-auto-gc", "--no-write-fetch-head", "--update-head-ok", *partial),
        *("--end-of-options", call.address, refspec),
    ]
    git.run(
        arguments,
        env=call.env,
        timeout=limits.fetch_timeout_seconds,
        max_file_bytes=limits.max_pack_bytes,
    )


def _call(location: Location, settings: Settings) -> tuple[str, dict[str, str]]:
    """Return the address to hand to git, and its environment: pinned, with a token for GitHub alone."""
    if location.reach is Reach.BUNDLE:
        return location.address, git.environment(protocols=["file"])
    pins = Pins(address=location.address) if settings.allow_private else check_public(location)
    config = dict(pins.config)
    if settings.github_token and location.is_github and location.server == location.host:
        import base64

        secret = base64.b64encode(f"x-access-token:{settings.github_token}".encode()).decode(
            "ascii"
        )
        config[f"http.https://{location.server}/.extraHeader"] = f"Authorization: Basic {secret}"
    return pins.address, git.environment(
        protocols=[location.scheme],
        config=config,
        ssh_options=pins.ssh_options,
        variables=pins.variables,
    )


def _check_count(mirror: Path, limits: Limits) -> None:
    out = git.run(
        [f"--git-dir={mirror}", "count-objects", "-v"],
        env=git.environment(),
        timeout=limits.fetch_timeout_seconds,
    )
    numbers = {"count": 0, "in-pack": 0}
    for line in out.decode("ascii", "replace").splitlines():
        key, _, value = line.partition(": ")
        if key in numbers:
            with suppress(ValueError):
                numbers[key] = int(value)
    total = sum(numbers.values())
    if total > limits.max_objects:
        raise SourceError(
            "source-too-large",
            f"the repository has {total:,} objects, more than the limit of {limits.max_objects:,}",
            hint="raise the limit, or index a smaller mirror of it",
            data={"objects": total, "limit": limits.max_objects},
        )
