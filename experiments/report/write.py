"""A report as files: a page, Markdown, tables in three formats, figures, and the numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from experiments.report.formats import comma_separated, latex, markdown
from experiments.report.section import Section, as_json
from server_app.files import replace_file

TITLE = "Federated recommenders compared"
PAGE, TEXT, NUMBERS = "report.html", "report.md", "report.json"


def write_report(out: Path, sections: Sequence[Section], notes: Sequence[str], about: str) -> None:
    """Write all files under ``out``, and remove those that an earlier report alone had."""
    files = files_of(sections, notes, about)
    before = _listed(out / NUMBERS)
    for name, data in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data)
    for name in before - files.keys():
        (out / name).unlink(missing_ok=True)


def files_of(sections: Sequence[Section], notes: Sequence[str], about: str) -> dict[str, bytes]:
    """Every file of a report by its path under the report's folder."""
    texts = {PAGE: page(sections, notes, about), TEXT: text(sections, notes, about)}
    images = dict[str, bytes]()
    for section in sections:
        for table in section.tables:
            texts[f"tables/{table.slug}.md"] = markdown(table)
            texts[f"tables/{table.slug}.csv"] = comma_separated(table)
            texts[f"tables/{table.slug}.tex"] = latex(table)
        for figure in section.figures:
            images |= {f"figures/{figure.slug}.{kind}": d for kind, d in figure.files.items()}
    values = {
        "about": about,
        "splits": [as_json(section) for section in sections],
        "notes": list(notes),
        "files": sorted([*texts, *images, NUMBERS]),
    }
    texts[NUMBERS] = json.dumps(values, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    return {name: content.encode() for name, content in texts.items()} | images


def page(sections: Sequence[Section], notes: Sequence[str], about: str) -> str:
    """One HTML file that needs no other."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = [
        {
            "id": section.id,
            "title": section.title,
            "choices": section.choices,
            "tables": section.tables,
            "figures": section.figures,
            "missing": section.missing,
            "parts": _parts(section),
        }
        for section in sections
    ]
    template = environment.get_template("page.html")
    return template.render(title=TITLE, about=about, sections=shown, notes=notes)


def text(sections: Sequence[Section], notes: Sequence[str], about: str) -> str:
    """The tables in Markdown, with the figures as files beside it."""
    parts = [f"# {TITLE}", about]
    for section in sections:
        parts += [f"## {section.title}", *section.choices]
        parts += [markdown(table).rstrip("\n") for table in section.tables]
        parts += [f"![{f.caption}](figures/{f.slug}.svg)" for f in section.figures]
        parts += section.missing
    if notes:
        parts += ["## Runs left out, and remarks", "\n".join(f"* {note}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def _parts(section: Section) -> list[Mapping[str, str]]:
    parts = [{"id": table.slug, "title": table.title} for table in section.tables]
    figures = {"id": f"{section.id}-figures", "title": f"Figures: {section.title}"}
    return [*parts, figures] if section.figures or section.missing else [*parts]


def _listed(path: Path) -> set[str]:
    """The files of the report that was here before, of those that can only be a report's."""
    try:
        files = json.loads(path.read_text("utf-8"))["files"]
        names = {PurePosixPath(name) for name in files}
    except (OSError, ValueError, TypeError, KeyError):
        return set()
    inside = {name for name in names if len(name.parts) == 2 and ".." not in name.parts}
    return {str(name) for name in inside if name.parts[0] in {"tables", "figures"}}
