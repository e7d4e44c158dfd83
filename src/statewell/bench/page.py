"""The frame of a self-contained page: escaping, tables, the style sheet. No script, no outside request.

Knows nothing about models; report.py fills it. Every text from outside goes through `plain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from statewell.bench.style import STYLE

# control characters are shown as their pictures (U+2400...); HTML forbids them and a terminal bell says
# nothing on a page
CONTROLS = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {0x7F: 0x2421}
# marks that would reorder the page's own text, and halves of surrogate pairs, which cannot be written as
# UTF-8
UNPRINTABLE = dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)


def plain(text: str) -> str:
    """Any text as HTML that shows exactly that text: markup escaped, controls made visible."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return escape(whole.translate(CONTROLS | UNPRINTABLE))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain table in its own scrolling box; the first column names the row, the rest are figures. Escapes
    its cells.
    """
    head = "".join(f'<th scope="col">{plain(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{plain(row[0])}</th>' + "".join(f"<td>{plain(cell)}</td>" for cell in row[1:]) + "</tr>\n"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>'
    )


def document(heading: str, body: str) -> str:
    """The whole page around `body` (HTML)."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{plain(heading)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )
