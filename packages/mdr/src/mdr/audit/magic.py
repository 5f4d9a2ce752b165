"""What a file is by its first bytes, and what its name promises.

Sources: the formats' own specifications (ELF, PE, Mach-O, ZIP APPNOTE, RFC 1952, PNG, ...).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Family(StrEnum):
    """What kind of content a file has."""

    TEXT = "text"
    EXECUTABLE = "executable"
    BYTECODE = "bytecode"
    ARCHIVE = "archive"
    IMAGE = "image"
    MEDIA = "media"
    DOCUMENT = "document"
    FONT = "font"
    DATA = "data"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Magic:
    """One signature."""

    offset: int
    prefix: bytes
    family: Family
    name: str


SIGNATURES: Final = (
    Magic(0, b"\x7fELF", Family.EXECUTABLE, "ELF program"),
    Magic(0, b"MZ", Family.EXECUTABLE, "Windows program"),
    Magic(0, b"\xfe\xed\xfa\xce", Family.EXECUTABLE, "Mach-O program"),
    Magic(0, b"\xfe\xed\xfa\xcf", Family.EXECUTABLE, "Mach-O program"),
    Magic(0, b"\xce\xfa\xed\xfe", Family.EXECUTABLE, "Mach-O program"),
    Magic(0, b"\xcf\xfa\xed\xfe", Family.EXECUTABLE, "Mach-O program"),
    Magic(0, b"\0asm", Family.EXECUTABLE, "WebAssembly module"),
    Magic(0, b"\xca\xfe\xba\xbe", Family.BYTECODE, "Java class or fat Mach-O program"),
    Magic(0, b"dex\n", Family.BYTECODE, "Android bytecode"),
    Magic(0, b"\x1bLua", Family.BYTECODE, "Lua bytecode"),
    Magic(2, b"\r\n\0\0\0\0", Family.BYTECODE, "Python bytecode"),
    Magic(2, b"\r\n\x01\0\0\0", Family.BYTECODE, "Python bytecode"),
    Magic(2, b"\r\n\x03\0\0\0", Family.BYTECODE, "Python bytecode"),
    Magic(0, b"PK\x03\x04", Family.ARCHIVE, "ZIP archive"),
    Magic(0, b"PK\x05\x06", Family.ARCHIVE, "empty ZIP archive"),
    Magic(0, b"\x1f\x8b", Family.ARCHIVE, "gzip"),
    Magic(0, b"BZh", Family.ARCHIVE, "bzip2"),
    Magic(0, b"\xfd7zXZ\0", Family.ARCHIVE, "xz"),
    Magic(0, b"\x28\xb5\x2f\xfd", Family.ARCHIVE, "zstandard"),
    Magic(0, b"7z\xbc\xaf\x27\x1c", Family.ARCHIVE, "7-Zip archive"),
    Magic(0, b"Rar!\x1a\x07", Family.ARCHIVE, "RAR archive"),
    Magic(257, b"ustar", Family.ARCHIVE, "tar archive"),
    Magic(0, b"!<arch>\n", Family.ARCHIVE, "ar archive"),
    Magic(0, b"MSCF", Family.ARCHIVE, "cabinet archive"),
    Magic(0, b"\x89PNG\r\n\x1a\n", Family.IMAGE, "PNG image"),
    Magic(0, b"\xff\xd8\xff", Family.IMAGE, "JPEG image"),
    Magic(0, b"GIF87a", Family.IMAGE, "GIF image"),
    Magic(0, b"GIF89a", Family.IMAGE, "GIF image"),
    Magic(8, b"WEBP", Family.IMAGE, "WebP image"),
    Magic(0, b"\0\0\x01\0", Family.IMAGE, "icon"),
    Magic(0, b"BM", Family.IMAGE, "bitmap"),
    Magic(8, b"WAVE", Family.MEDIA, "WAV audio"),
    Magic(4, b"ftyp", Family.MEDIA, "MP4 media"),
    Magic(0, b"ID3", Family.MEDIA, "MP3 audio"),
    Magic(0, b"OggS", Family.MEDIA, "Ogg media"),
    Magic(0, b"%PDF-", Family.DOCUMENT, "PDF document"),
    Magic(0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", Family.DOCUMENT, "old Office document"),
    Magic(0, b"wOFF", Family.FONT, "web font"),
    Magic(0, b"wOF2", Family.FONT, "web font"),
    Magic(0, b"\0\x01\0\0\0", Family.FONT, "TrueType font"),
    Magic(0, b"OTTO", Family.FONT, "OpenType font"),
    Magic(0, b"SQLite format 3\0", Family.DATA, "SQLite database"),
)
"""First match wins."""

PROMISES: Final = {
    Family.IMAGE: "png jpg jpeg gif webp ico bmp",
    Family.MEDIA: "mp3 mp4 wav ogg m4a mov",
    Family.DOCUMENT: "pdf doc xls ppt",
    Family.FONT: "woff woff2 ttf otf",
    Family.ARCHIVE: "zip gz tgz bz2 xz zst 7z rar tar docx xlsx pptx jar whl egg apk epub odt skill vsix",
    Family.BYTECODE: "pyc pyo class dex luac",
    Family.EXECUTABLE: "exe dll so dylib wasm sys scr node",
    Family.TEXT: (
        "md mdx mdc txt rst py pyi js mjs cjs ts tsx jsx sh bash zsh fish ps1 bat cmd rb pl php lua go rs c h cc cpp "
        "cu java kt swift r sql json jsonl yaml yml toml ini cfg conf xml html htm css svg csv tsv tex sig pem crt"
    ),
}
"""Family -> extensions that promise it."""
_PROMISED: Final = {
    extension: family for family, names in PROMISES.items() for extension in names.split()
}
SCRIPT_EXTENSIONS: Final = frozenset(
    [
        "py",
        "js",
        "mjs",
        "cjs",
        "ts",
        "sh",
        "bash",
        "zsh",
        "fish",
        "ps1",
        "bat",
        "cmd",
        "rb",
        "pl",
        "php",
        "lua",
        "r",
        "go",
        "rs",
        "swift",
        "vbs",
        "applescript",
    ]
)


def extension_of(path: str) -> str:
    """Return the extension in lower case, without the dot; ``""`` when there is none."""
    name = path.rpartition("/")[2]
    stem, dot, extension = name.rpartition(".")
    return extension.lower() if dot and stem else ""


def promised(path: str) -> Family | None:
    """Return what the name promises; ``None`` for a name that promises nothing known."""
    return _PROMISED.get(extension_of(path))


def signature(data: bytes) -> Magic | None:
    """Return the first signature that the bytes have."""
    for magic in SIGNATURES:
        if data[magic.offset : magic.offset + len(magic.prefix)] == magic.prefix:
            return magic
    return None


def is_text(data: bytes) -> bool:
    """Say whether bytes are UTF-8 without NUL."""
    if b"\0" in data:
        return False
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def trailing(data: bytes, magic: Magic) -> int:
    """Return how many bytes follow the end of an image; 0 when none or not known."""
    match magic.name:
        case "PNG image":
            end = data.rfind(b"IEND\xaeB`\x82")
            return len(data) - end - 8 if end >= 0 else 0
        case "JPEG image":
            end = data.rfind(b"\xff\xd9")
            return len(data) - end - 2 if end >= 0 else 0
        case "GIF image":
            end = data.rfind(b"\0;")
            return len(data) - end - 2 if end >= 0 else 0
        case _:
            return 0


ZIP_END: Final = b"PK\x05\x06"
ZIP_MEMBER: Final = b"PK\x01\x02"
ZIP_TAIL: Final = 65_557
"""A ZIP directory ends within this many bytes of the end of the file (22 bytes and a comment)."""


def ends_as_zip(data: bytes) -> bool:
    """Say whether a ZIP reader would open the file, whatever it begins with."""
    return data.find(ZIP_END, max(0, len(data) - ZIP_TAIL)) >= 0 and ZIP_MEMBER in data
