"""Boxes, arrows and words as SVG: for ``<img>`` in a page, on a light card that dark pages show, too."""

from __future__ import annotations

import html
from dataclasses import dataclass, field

FONT = "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
INK, PALE, EDGE, PAPER = "#1c1f24", "#5b6472", "#c3c9d3", "#ffffff"


@dataclass
class Canvas:
    """A picture of ``width`` x ``height`` pixels, made of the parts that are added."""

    width: int
    height: int
    title: str  # what the picture shows, for those who cannot see it
    parts: list[str] = field(default_factory=list)

    def box(
        self, x: float, y: float, width: float, height: float, *, fill: str = "none", edge: str = EDGE, round_: int = 6
    ) -> None:
        """Add a rectangle."""
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round_}"'
        self.parts.append(f'<rect {place} fill="{fill}" stroke="{edge}"/>')

    def text(
        self, x: float, y: float, words: str, *, size: int = 14, at: str = "start", ink: str = INK, bold: bool = False
    ) -> None:
        """Add a line of text; ``at`` is the part of it that stands at ``x``: start, middle, end."""
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{at}" fill="{ink}"{weight}>'
            f"{html.escape(words, quote=False)}</text>"
        )

    def arrow(self, *points: tuple[float, float], dashed: bool = False) -> None:
        """Add a line through ``points`` with a head at its end."""
        path = " ".join(f"{'L' if number else 'M'}{x:g} {y:g}" for number, (x, y) in enumerate(points))
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        line = f'fill="none" stroke="{PALE}" stroke-width="1.5"{dash}'
        self.parts.append(f'<path d="{path}" {line} marker-end="url(#head)"/>')

    def dump(self) -> str:
        """Return the file."""
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        head = (
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto">'
            f'<path d="M0 0L8 4L0 8z" fill="{PALE}"/></marker></defs>'
        )
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}" role="img">',
            f"<title>{html.escape(self.title, quote=False)}</title>",
            head,
            f'<rect width="{self.width}" height="{self.height}" rx="8" fill="{PAPER}"/>',
            *self.parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"
