"""What is done to pages and docstrings before mkdocs builds the site.

A link such as ``../src/safeset/layers.py`` works where the repository is read; on the site it leads to the repository.
"""

import html
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from griffe import Extension, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent
# Files outside of docs/ that the site holds too, under these names.
INCLUDED = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "results/analyses/digits.png": "assets/digits.png",
}
CODE = re.compile(r"(^ *```.*?^ *```|``[^`\n]*``|`[^`\n]*`)", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
SUBSCRIPT = re.compile(r"(?<=[^\w\s])_(?=\S)")  # after a letter it is none to Markdown either
DOCTEST = re.compile(r"^>>> .*?(?=\n\n|\Z)", flags=re.MULTILINE | re.DOTALL)
COMMANDS = "<!-- commands -->"
TABLE = re.compile(r"<table>.*?</table>", flags=re.DOTALL)
HEADING = re.compile(r"<th(?: [^>]*)?>(.*?)</th>", flags=re.DOTALL)
ROW = re.compile(r"<tr>.*?</tr>", flags=re.DOTALL)
TAG = re.compile(r"<[^>]+>")
SENTENCES = 20  # characters in a cell, on average: a table of numbers has fewer


def readable(docstring: str) -> str:
    r"""A docstring as Markdown: its examples are code, and a subscript after a bracket begins no emphasis.

    >>> print(readable("softmax(f)_y of `g(x)_y`, class_names"))
    softmax(f)\_y of `g(x)_y`, class_names
    """
    fenced = DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", docstring)
    parts = CODE.split(fenced)
    parts[::2] = [SUBSCRIPT.sub(r"\\_", part) for part in parts[::2]]
    return "".join(parts)


class Docstrings(Extension):
    """Makes docstrings readable on the site."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring:
            obj.docstring.value = readable(obj.docstring.value)


def site_link(target: str, source: str, place: str, repository: str) -> str:
    """Where a link leads on the site.

    Args:
        target: the link as it is written.
        source: the page's file in the repository.
        place: the page's file on the site.
        repository: its address.

    >>> site_link("../src/safeset/evaluation.py", "docs/layers.md", "layers.md", "https://github.com/o/r")
    'https://github.com/o/r/blob/main/src/safeset/evaluation.py'
    >>> site_link("docs/paper.md", "CHANGELOG.md", "changelog.md", "https://github.com/o/r")
    'paper.md'
    >>> site_link("../CHANGELOG.md", "docs/index.md", "index.md", "https://github.com/o/r")
    'changelog.md'
    """
    path = normpath((PurePosixPath(source).parent / target).as_posix())
    if not (ROOT / path).exists():
        raise PluginError(f"{source} links to {target}, which does not exist.")
    if path in INCLUDED or path.startswith("docs/"):
        return relpath(INCLUDED.get(path, path.removeprefix("docs/")), PurePosixPath(place).parent.as_posix())
    return f"{repository}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}"


def command_reference() -> str:
    """The help of every command as Markdown, by typer itself, without its list of shortened summaries."""
    command = [sys.executable, "-m", "typer", "safeset.cli.app", "utils", "docs", "--name", "safeset"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT / "src")
    return html.unescape("## " + done.stdout.partition("\n## ")[2])


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that lie outside of docs/."""
    for path, name in INCLUDED.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write links as the site has them, and put in what is generated."""
    place = page.file.src_uri
    source = next((path for path, name in INCLUDED.items() if name == place), f"docs/{place}")
    repository = config.extra["repository"]
    parts = CODE.split(markdown)
    for index in range(0, len(parts), 2):  # between pieces of code
        parts[index] = LINK.sub(
            lambda found: f"]({site_link(found[1], source, place, repository)}{found[2] or ''})", parts[index]
        )
    text = "".join(parts)
    return text.replace(COMMANDS, command_reference()) if COMMANDS in text else text


def stack(table: str) -> str:
    """A table of sentences, marked so that a phone shows each row as a block, and each cell below its heading.

    A table of numbers stays as it is: its columns are compared, and scroll.

    >>> stack("<table><tr><th>layer</th></tr><tr><td>ReLU</td></tr></table>")
    '<table><tr><th>layer</th></tr><tr><td>ReLU</td></tr></table>'
    >>> stack(f"<table><tr><th>layer</th></tr><tr><td>{'long ' * 20}</td></tr></table>")[:69]
    '<table data-stacked><tr><th>layer</th></tr><tr><td data-label="layer"'
    """
    cells = re.findall(r"<td[^>]*>(.*?)</td>", table, flags=re.DOTALL)
    if sum(len(TAG.sub("", cell)) for cell in cells) < SENTENCES * len(cells):
        return table
    headings = [TAG.sub("", heading).replace('"', "&quot;") for heading in HEADING.findall(table)]

    def label(row: re.Match[str]) -> str:
        names = iter(headings)
        return re.sub("<td", lambda _: f'<td data-label="{next(names, "")}"', row[0])

    return ROW.sub(label, table).replace("<table>", "<table data-stacked>", 1)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mark tables of sentences."""
    return TABLE.sub(lambda found: stack(found[0]), content)
