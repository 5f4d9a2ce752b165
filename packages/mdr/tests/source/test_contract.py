"""Both sources keep the contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from git_builder import GitRepository, program

from mdr.settings import Settings
from mdr.source.locate import locate
from mdr.source.memory import MemorySource, step
from mdr.source.opening import current_head, open_source
from mdr.source.testing import CONTENTS, Sample, SourceContract
from mdr.source.types import Change

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class TestMemorySource(SourceContract):
    def sample(self) -> Sample:
        one, two, three = "1" * 40, "2" * 40, "3" * 40
        gone = "0" * 40
        steps = (
            step(
                "a" * 40,
                1,
                Change("a.md", "100644", one, added=True),
                Change("dir/b.md", "100644", two, added=True),
            ),
            step(
                "b" * 40,
                2,
                Change("a.md", "100644", three, added=False),
                Change("dir/b.md", "000000", gone, added=False),
                parents=("a" * 40,),
            ),
            step("c" * 40, 3, parents=("b" * 40,)),
            step("d" * 40, 4, Change("c.sh", "100755", one, added=True), parents=("c" * 40,)),
        )
        blobs = {one: CONTENTS["one"], two: CONTENTS["two"], three: CONTENTS["three"]}
        return Sample(source=MemorySource(steps=steps, blobs=blobs), absent="9" * 40)


@dataclass
class _Built:
    path: Path
    data: Path
    digits: int


class _GitContract(SourceContract):
    built: _Built

    @pytest.fixture(autouse=True)
    def _open(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[None]:
        form = "sha256" if "Sha256" in request.cls.__name__ else "sha1"
        repository = GitRepository(tmp_path / "r.git", object_format=form)
        repository.commit({"a.md": CONTENTS["one"], "dir/b.md": CONTENTS["two"]})
        repository.commit({"a.md": CONTENTS["three"], "dir/b.md": None})
        repository.commit({})
        repository.commit({"c.sh": program(CONTENTS["one"])})
        settings = Settings(data=tmp_path / "data")
        location = locate(str(repository.path))
        head = current_head(location, settings)
        with open_source(location, head, settings) as source:
            self._sample = Sample(source=source, absent="9" * len(head.commit))
            yield

    def sample(self) -> Sample:
        return self._sample


class TestGitSource(_GitContract):
    pass


class TestGitSha256Source(_GitContract):
    pass
