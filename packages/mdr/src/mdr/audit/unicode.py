# ruff: noqa: RUF001 - look-alike characters are the data of this module
"""Character ranges and the folding table, the same on every Python.

Python 3.11, 3.12 and 3.13 carry different Unicode versions. Nothing here asks the running version:
compatibility forms come from :data:`unicodedata.ucd_3_2_0`, a database frozen in the standard
library, and everything younger is written out below. A test runs the vectors on several Pythons.
"""

from __future__ import annotations

from functools import cache
from typing import Final
from unicodedata import ucd_3_2_0

INVISIBLE: Final = (
    (0x00, 0x08), (0x0B, 0x0C), (0x0E, 0x1F), (0x7F, 0x9F), (0xAD, 0xAD), (0x34F, 0x34F),
    (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x200B, 0x200F),
    (0x2028, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0), (0xFFF0, 0xFFFB), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)  # fmt: skip
"""Controls, and characters that Unicode lists as default-ignorable or that draw nothing."""

EMOJI: Final = (
    (0xA9, 0xA9), (0xAE, 0xAE), (0x203C, 0x203C), (0x2049, 0x2049), (0x2122, 0x2122),
    (0x2139, 0x2139), (0x2190, 0x2BFF), (0x3030, 0x3030), (0x303D, 0x303D), (0x3297, 0x3297),
    (0x3299, 0x3299), (0x1F000, 0x1FAFF),
)  # fmt: skip
"""Symbols that take an emoji variation selector or a zero-width joiner; key caps are apart."""

CONTROLS: Final = bytes(code for code in (*range(0x20), 0x7F) if code not in b"\t\n\r")
"""ASCII controls but the white space of text."""

KEYCAP: Final = "0123456789#*"
TONES: Final = (0x1F3FB, 0x1F3FF)
JOINING: Final = (
    (0x600, 0x8FF), (0x900, 0xDFF), (0xF00, 0xFFF), (0x1000, 0x109F), (0x1780, 0x17B3),
    (0x17B6, 0x17FF), (0x1800, 0x180A), (0x1810, 0x18AF), (0xFB50, 0xFDFF), (0xFE70, 0xFEFC),
)  # fmt: skip
"""Arabic, Syriac, Indic, Tibetan, Myanmar, Khmer, Mongolian: joiners are spelling there."""

MARKS: Final = (
    (0x300, 0x36F),
    (0x1AB0, 0x1AFF),
    (0x1DC0, 0x1DFF),
    (0x20D0, 0x20FF),
    (0xFE20, 0xFE2F),
)
"""Combining marks that can be stacked on a Latin letter to break up a word."""

COMPATIBLE: Final = (
    (0xA0, 0x24F), (0x2B0, 0x2FF), (0x37E, 0x37E), (0x1E00, 0x1EFF), (0x2000, 0x218F),
    (0x2460, 0x24FF), (0x3000, 0x3000), (0x3200, 0x33FF), (0xFB00, 0xFB06), (0xFE10, 0xFE6F),
    (0xFF01, 0xFFEE), (0x1D400, 0x1D7FF),
)  # fmt: skip
"""Where Unicode 3.2 keeps characters whose compatibility form is ASCII."""

PAIRS: Final = (
    # Cyrillic, Greek, Armenian
    ("аеорсухіјѕһԁԛԝӏкмтнвгьѵѡ", "aeopcyxijshdqwlkmthbrbvw"),
    ("АВЕЅІЈКМНОРСТУХҮԌԚԜ", "ABESIJKMHOPCTYXYGQW"),
    ("αονικρτυχγεηωσϲϳ", "aovikptuxyenwocj"),
    ("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹͿ", "ABEZHIKMNOPTYXCJ"),
    ("օոսհցզԁյաո", "onuhgqdjwn"),
    # Latin letters with strokes, small capitals, phonetic letters
    ("ıȷøłđħŧɑɡɩɪʟɴʀʙɢʜʏʋɯ", "ijoldhtagiilnrbghyvw"),
    ("ᴀᴄᴅᴇᴊᴋᴍᴏᴘᴛᴜᴠᴡᴢꜰꜱ", "acdejkmoptuvwzfs"),
    ("ᴬᴮᴰᴱᴳᴴᴵᴶᴷᴸᴹᴺᴼᴾᴿᵀᵁᵂ", "ABDEGHIJKLMNOPRTUW"),
    ("ᵃᵇᵈᵉᵍᵏᵐᵒᵖᵗᵘᵛᵢᵣᵤᵥⱼᶜᶠᶻ", "abdegkmoptuviruvjcfz"),
    ("ₐₑₒₓₕₖₗₘₙₚₛₜ", "aeoxhklmnpst"),
    # Cherokee, Lisu, Coptic capitals
    ("ᎠᎡᎢᎥᎪᎫᎬᎳᎷᎻᏀᏃᏎᏒᏔᏙᏚᏞᏟᏢᏦᏴ", "DRTiAJEWMHGZ4RWVSLCPKB"),
    ("ꓐꓑꓓꓔꓖꓗꓙꓚꓝꓠꓡꓢꓣꓤꓦꓧꓪꓫꓬꓮꓰꓲꓳꓴ", "BPDTGKJCFNLSRUVHWXYAEIOU"),
    # Punctuation that an agent or a shell reads as ASCII
    ("‘’‚‛′“”„‟″", "'''''" + '"""""'),
    ("‐‑‒–—―−⁃", "--------"),
    ("⁄∕⧸。｡․ꓸ∶꞉ː؉", "///....:::%"),
    ("‹›〈〉⟨⟩˂˃", "<><><><>"),
)
"""Look-alikes without a compatibility form: (characters, ASCII for each)."""

RUNS: Final = (
    (0x1F130, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    (0x1F150, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    (0x1F170, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    (0x1F1E6, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    (0x1CCD6, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    (0x1CCF0, "0123456789"),
    (0x1FBF0, "0123456789"),
)
"""Squared, circled, flag and outlined letters and segmented digits: (first character, ASCII)."""


def within(code: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    """Say whether a code point lies in one of the ranges."""
    return any(low <= code <= high for low, high in ranges)


def char_class(*tables: tuple[tuple[int, int], ...], also: str = "") -> str:
    """Return the inside of an RE2 character class of the ranges."""
    spans = "".join(
        rf"\x{{{low:x}}}-\x{{{high:x}}}" for ranges in tables for low, high in ranges if high > 0
    )
    return spans + "".join(rf"\x{{{ord(char):x}}}" for char in also)


@cache
def folding_table() -> dict[int, str]:
    """Return code point -> ASCII for everything that is removed, compatible or confusable."""
    table = dict(_compatible())
    for characters, plain in PAIRS:
        table.update(
            {ord(char): ascii_char for char, ascii_char in zip(characters, plain, strict=True)}
        )
    for first, plain in RUNS:
        table.update({first + index: char for index, char in enumerate(plain)})
    for low, high in (*INVISIBLE, *MARKS):
        table.update(dict.fromkeys(range(max(low, 0x80), high + 1), ""))
    table.update(dict.fromkeys(CONTROLS, ""))
    return table


def _compatible() -> dict[int, str]:
    looks = {
        ord(char): plain for chars, row in PAIRS for char, plain in zip(chars, row, strict=True)
    }
    table = {}
    for low, high in COMPATIBLE:
        for code in range(low, high + 1):
            form = ucd_3_2_0.normalize("NFKD", chr(code))
            bare = "".join(char for char in form if not within(ord(char), MARKS)).translate(looks)
            if bare.isascii() and bare != chr(code):
                table[code] = bare
    return table
