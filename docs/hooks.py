"""Hooks of mkdocs. Notebooks, and files outside docs/ that a page links to, become pages, so that the site is complete
without a network. The links in the sources are those that work on GitHub.

mkdocs-jupyter is not used: its pages load scripts from other hosts.
"""

import base64
import posixpath
import re
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(?=[#)])")
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"

origins: dict[str, Path] = {}
"""The file that each page was made from."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for file in files.documentation_pages():
        origins[file.src_uri] = DOCS / file.src_uri
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(file)
        for uri, content in notebook_files(DOCS / file.src_uri).items():
            files.append(File.generated(config, uri, content=content))
        origins[page_uri(DOCS / file.src_uri)] = DOCS / file.src_uri
    waiting = [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
    waiting += [target for origin in list(origins.values()) for target in targets(origin)]
    while waiting:
        path = waiting.pop()
        uri = page_uri(path)
        if uri not in origins and not (path.is_relative_to(DOCS) and path.is_file()):
            origins[uri] = path / "index.md" if path.is_dir() else path
            files.append(File.generated(config, uri, content=page_content(path)))
            waiting += targets(path)
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Links between files as links between the pages that were made from them."""
    origin, folder = origins[page.file.src_uri], posixpath.dirname(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        target = resolve(origin, match[1])
        return posixpath.relpath(page_uri(target), folder or ".") if target else match[1]

    return LINK.sub(link, markdown)


def page_uri(path: Path) -> str:
    """Where a file of the repository is in the site, as the path of a source in docs/."""
    if path.is_relative_to(DOCS):
        uri = path.relative_to(DOCS).as_posix()
        if path.is_dir():
            return f"{uri}/index.md"
        return uri.removesuffix(".ipynb") + ".md" if path.suffix == ".ipynb" else uri
    uri = path.relative_to(ROOT).as_posix()
    return f"source/{uri}" if path.suffix == ".md" else f"source/{uri}.md"


def resolve(origin: Path, target: str) -> Path | None:
    """The file that a link means; None if there is no such file. A folder means its README, as on GitHub."""
    path = (origin.parent / target).resolve()
    if not path.exists() or not path.is_relative_to(ROOT):
        return None
    return path / "README.md" if (path / "README.md").exists() else path


def targets(origin: Path) -> list[Path]:
    """The files that a Markdown file or a notebook links to."""
    if origin.suffix not in (".md", ".ipynb"):
        return []
    found = (resolve(origin, target) for target in LINK.findall(origin.read_text(encoding="utf-8")))
    return [path for path in found if path]


def page_content(path: Path) -> str:
    """The page of a file outside docs/, or of a folder."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        return (
            UNSEARCHED + f"# {name}\n\n" + "".join(f"- [{each.name}]({each.name})\n" for each in sorted(path.iterdir()))
        )
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    language = {".py": "python", ".toml": "toml"}.get(path.suffix, "text")
    return f"{UNSEARCHED}# {name}\n\n~~~~~ {language}\n{path.read_text(encoding='utf-8')}\n~~~~~\n"


def notebook_files(path: Path) -> dict[str, str | bytes]:
    """A notebook with its stored outputs as a Markdown page and its pictures."""
    parts, pictures = [], dict[str, str | bytes]()
    for number, cell in enumerate(nbformat.read(path, as_version=4).cells):
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{path.stem}-{number}.png"
                pictures[f"{path.parent.relative_to(DOCS).as_posix()}/{picture}"] = base64.b64decode(data["image/png"])
                parts.append(f"![Output of the cell above]({picture})")
            elif "text/html" in data:
                # Python-Markdown ends an HTML block at an empty line.
                html = re.sub(r"\n\s*\n", "\n", data["text/html"])
                parts.append(f'<div class="output">\n{html}\n</div>')
            elif text := output.get("text") or data.get("text/plain"):
                parts.append(f"```text\n{text.rstrip()}\n```")
    return {page_uri(path): "\n\n".join(parts), **pictures}
