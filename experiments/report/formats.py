"""A table in Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from experiments.report.table import Cell, Line, Table

LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "†": r"$^{\dagger}$", "‡": r"$^{\ddagger}$", "–": "--", "−": "$-$",
    "ρ": r"$\rho$", "≥": r"$\geq$", "≤": r"$\leq$", "<": r"\textless{}", ">": r"\textgreater{}",
    "*": r"$^{*}$", "×": r"$\times$",
}  # fmt: skip


def markdown(table: Table) -> str:
    """A heading, the caption and the table."""
    lines = [f"### {table.title}", "", " ".join(table.caption), ""]
    lines += [_pipes(table.headings), "|---|" + "---:|" * (len(table.headings) - 1)]
    lines += [_pipes([_marked_down(cell) for cell in _all(line)]) for line in table.lines]
    return "\n".join(lines) + "\n"


def comma_separated(table: Table) -> str:
    """The numbers in full; an empty field where there is none."""
    file = io.StringIO()
    names = list(dict.fromkeys(name for row in table.numbers for name in row))
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: value if isinstance(value, str | int) else _full(value) for name, value in r.items()}
        for r in table.numbers
    )
    return file.getvalue()


def latex(table: Table) -> str:
    """A table for booktabs; the label is the table's slug."""
    columns = "l" + "r" * (len(table.headings) - 1)
    caption = escaped(" ".join([f"{table.title}.", *table.caption]))
    body = list[str]()
    for place, line in enumerate(table.lines):
        if place and table.lines[place - 1].is_federated and not line.is_federated:
            body.append(r"\midrule")
        body.append(_row([_set(cell) for cell in _all(line)]))
    return "\n".join([
        r"\begin{table}", r"\centering", rf"\caption{{{caption}}}",
        rf"\label{{tab:{table.slug}}}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule",
        _row([escaped(heading) for heading in table.headings]), r"\midrule", *body,
        r"\bottomrule", r"\end{tabular}", r"\end{table}", "",
    ])  # fmt: skip


def escaped(text: str) -> str:
    """Text as LaTeX sets it, whatever characters it has."""
    return "".join(LATEX.get(character, character) for character in text)


def _all(line: Line) -> list[Cell]:
    return [line.label, *line.cells]


def _full(value: float | None) -> str:
    return "" if value is None else repr(float(value))


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _marked_down(cell: Cell) -> str:
    text = cell.text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*")
    mark = cell.mark.replace("*", "\\*")
    return f"**{text}**{mark}" if cell.bold else f"{text}{mark}"


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _set(cell: Cell) -> str:
    text = escaped(cell.text)
    return (rf"\textbf{{{text}}}" if cell.bold else text) + escaped(cell.mark)
