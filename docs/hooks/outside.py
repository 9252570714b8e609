"""MkDocs hook: pages link to files of the repository as they lie, and the same links work in the built site.

On a code host `../benchmarks/NOTES.md` of a page in docs/ is a file beside docs/. Here every such file
becomes part of the site under its path from the repository's root (Markdown as a page, the rest as it is), a
folder by its README.md, and the links are rewritten. A link to what isn't there stays as it is, so that
`mkdocs build --strict` stops at it.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File, Files

LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
ROOT = Path(__file__).parents[2]


def _text(markdown: str) -> str:
    return FENCE.sub("", markdown)


def _target(page: str, link: str) -> str | None:
    """The file that a link of the file `page` leads to, both as paths from the repository's root; None: a web
    address, or nothing that is there."""
    if "://" in link or link.startswith(("/", "mailto:")):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    if (ROOT / path).is_dir():
        path = posixpath.join(path, "README.md")
    return path if (ROOT / path).is_file() and not path.startswith("..") else None


def _in_site(path: str) -> str:
    """Where a file of the repository lies in the site: docs/ is its root."""
    return path.removeprefix("docs/")


def on_files(files: Files, config) -> Files:
    """Take up what the pages link to, and what those pages link to."""
    pages = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    seen = set(pages)
    while pages:
        page = pages.pop()
        for _, link, _ in LINK.findall(_text((ROOT / page).read_text())):
            target = _target(page, link)
            if target is None or target in seen or target.startswith("docs/"):
                continue
            seen.add(target)
            files.append(File.generated(config, target, abs_src_path=str(ROOT / target)))
            if target.endswith(".md"):
                pages.append(target)
    return files


def on_page_markdown(markdown: str, page, config, files: Files) -> str:
    """Rewrite a page's links to where their files lie in the site."""
    uri = page.file.src_uri
    source = uri if page.file.generated_by else f"docs/{uri}"

    def moved(match: re.Match) -> str:
        target = _target(source, match[2])
        if target is None:
            return match[0]
        return match[1] + posixpath.relpath(_in_site(target), posixpath.dirname(uri) or ".") + match[3]

    parts, at = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(moved, markdown[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, LINK.sub(moved, markdown[at:])])
