"""What MkDocs does not do alone: pages of commands, links that leave docs/, lists, llms.txt."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File
from typer.main import get_command

from capture.cli import examples as capture_examples
from capture.cli.app import make_app as make_capture_app
from natty.cli import examples as natty_examples
from natty.cli.app import make_app as make_natty_app
from natty.cli.help import CONNECTION, examples, placeholder

APPS = {"natty": make_natty_app, "capture": make_capture_app}
EXAMPLES = {"natty": natty_examples.EXAMPLES, "capture": capture_examples.EXAMPLES}
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
ITEM = re.compile(r"(?:[-*]|\d+\.) ")


def on_files(files: Any, config: Any) -> Any:
    """Add a page of each program's commands."""
    for name, make_app in APPS.items():
        page = "\n".join(_commands_page(name, get_command(make_app())))
        files.append(File.generated(config, f"reference/{name}-commands.md", content=page))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Write lists as Python-Markdown reads them, and links to files of the repository as the site can follow them."""
    folder = posixpath.dirname(page.file.src_uri)
    return "\n".join(_as_python_markdown(LINK.sub(lambda found: _link(found, folder, config.repo_url), markdown)))


def on_post_build(config: Any) -> None:
    """Write llms.txt: each page with its address and its first sentence."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for section in config.nav:
        ((title, pages),) = section.items()
        lines += ["", f"## {title}", *(_line(config, *one) for one in _pages(title, pages))]
    (Path(config.site_dir) / "llms.txt").write_text("\n".join(lines) + "\n")


def _pages(title: str, pages: Any) -> Iterator[tuple[str, str]]:
    if isinstance(pages, str):
        yield title, pages
        return
    for entry in pages:
        for name, value in entry.items():
            yield from _pages(name, value)


def _line(config: Any, title: str, source: str) -> str:
    address = source.removesuffix(".md") + ".html"
    path = Path(config.docs_dir) / source
    text = path.read_text() if path.exists() else f"{title}, with their options and examples."
    plain = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    plain = re.sub(r"^#.*$", "\n", plain, flags=re.MULTILINE)
    parts = (part.strip() for part in plain.split("\n\n"))
    first = next((part for part in parts if part[:1].isalnum() or part[:1] == "*"), "")
    sentence = LINK.sub(r"\1", " ".join(first.split())).split(". ")[0].rstrip(".:")
    return f"- [{title}]({address})" + (f": {sentence}." if sentence else "")


def _link(found: re.Match[str], folder: str, repository: str | None) -> str:
    text, target = found.groups()
    place, _, heading = target.partition("#")
    path = posixpath.normpath(posixpath.join("docs", folder, place))
    if "://" in target or not place or path.startswith("docs/"):
        return found[0]
    if path == "README.md":
        return f"[{text}]({posixpath.relpath('index.md', folder or '.')})"
    return f"[{text}]({repository.rstrip('/')}/blob/main/{path}{heading and '#'}{heading})" if repository else text


def _as_python_markdown(markdown: str) -> Iterator[str]:
    """A list or a table may follow a paragraph, and two spaces continue an item: Python-Markdown needs more."""
    fence = before = ""
    in_list = False
    for line in markdown.split("\n"):
        bare = line.lstrip(" ")
        indent = len(line) - len(bare)
        mark = next((one for one in ("```", "~~~") if bare.startswith(one)), "")
        if not fence:
            if not indent and ITEM.match(bare):
                if before and not in_list:
                    yield ""
                in_list = True
            elif bare and not indent and (not before or mark or bare.startswith(("#", "|"))):
                in_list = False
            if bare.startswith("|") and before and not before.lstrip(" ").startswith("|"):
                yield ""
        extra = 4 * ((indent + 1) // 2) - indent if in_list and indent and not fence else 0
        if fence and in_list:
            extra = 2 if indent >= 2 else 0
        yield " " * extra + line if bare else line
        fence = ("" if mark == fence else fence) if fence else mark
        before = line


def _commands_page(program: str, command: Any) -> Iterator[str]:
    yield f"# Commands of {program}"
    yield ""
    yield f"{' '.join((command.help or '').split())} This page is made of the program's own `--help` texts."
    yield ""
    yield "Options of the connection (`--server`, `--context`, `--creds`, …) [are the same everywhere](../cli.md)."
    yield from _described(command, program)


def _described(command: Any, path: str) -> Iterator[str]:
    children = getattr(command, "commands", {})
    for name, child in children.items():
        if not child.hidden:
            yield from _described(child, f"{path} {name}")
    if children:
        return
    yield from ("", f"## {path}", "", _paragraphs(command.help or ""), "")
    if lines := examples(EXAMPLES[path.split()[0]], path):
        yield from ("```sh", *lines, "```", "")
    shown = [
        one
        for one in command.params
        if not getattr(one, "hidden", False)
        and getattr(one, "rich_help_panel", None) != CONNECTION
        and one.name != "help"
    ]
    if shown:
        yield from ("| argument or option | |", "|---|---|")
    for one in shown:
        is_option = one.param_type_name == "option"
        names = ", ".join([*one.opts, *one.secondary_opts]) if is_option else placeholder(one)
        yield f"| `{names}` | {_cell(one, is_option)} |"


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text.replace("\b", "")))


def _cell(one: Any, is_option: bool) -> str:
    text = " ".join((getattr(one, "help", "") or "").split())
    if one.required:
        text += " Required."
    default = one.default
    if is_option and isinstance(default, (str, int, float)) and not isinstance(default, bool) and default != "":
        text += f" Default: `{default}`."
    return text.replace("|", "\\|").replace("<", "&lt;")
