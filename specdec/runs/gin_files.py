"""Reading gin configurations, strictly: what gin would ignore is an error here."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path

import gin
from gin import config_parser

_REQUIRED = "gin.REQUIRED"


def root() -> Path:
    """Folder that has ``configs/``: a checkout, or the installed package, which has a copy."""
    package = Path(__file__).resolve().parents[1]
    return package if (package / "configs").is_dir() else package.parent


def parse(files: Sequence[str], bindings: Sequence[str], root: Path) -> None:
    """Replaces gin's configuration by that of ``files`` and then ``bindings``, as "NAME=value".

    Included files are named from ``root``, and so are files that are not in the current directory.

    Raises:
      FileNotFoundError, OSError: a file, or one that it includes, is not there.
      ValueError: a syntax error, an import that fails, an unknown name, a macro that nothing uses
        or nobody set.
    """
    gin.clear_config()
    paths = []
    for file in files:
        path = Path(file) if Path(file).is_file() else root / file
        if not path.is_file():
            near = _similar(path.name, [p.name for p in path.parent.glob("*.gin")])
            raise FileNotFoundError(f"No config file at {file}.{near}")
        paths.append(str(path.absolute()))
    try:
        with contextlib.chdir(root):
            gin.parse_config_files_and_bindings(paths, [], finalize_config=False)
    except SyntaxError as error:
        raise ValueError(f"{error.filename}:{error.lineno}: {error.msg}") from None
    except ImportError as error:
        problem, _, where = str(error).partition("\n")
        raise ValueError(
            f"A config file imports what is not there: {problem}. Is it a configuration of another "
            f"system? Those of specdec are in configs/. {' '.join(where.split())}".rstrip()
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{_one_of(files)} is not UTF-8 ({error}).") from None
    except (RecursionError, MemoryError):  # Python's parser raises the latter.
        raise ValueError(f"{_one_of(files)} is nested too deep.") from None
    except TypeError as error:  # gin looks for a missing file in a package of its folder's name.
        where = str(error).partition("\n")[2]
        raise FileNotFoundError(f"An included config file is missing. {where}") from None
    for binding in bindings:
        try:
            gin.parse_config(binding)
        except SyntaxError:
            raise ValueError(
                f"--gin.{binding} is not NAME=value with a Python value; a text needs quotes, as "
                "in --gin.TARGET='\"checkpoints/target\"'."
            ) from None
    _check_macros()
    gin.finalize()


def _one_of(files: Sequence[str]) -> str:
    return f"{' or '.join(files)}, or a file that is included,"


def _check_macros() -> None:
    """Checks macros, because gin itself silently ignores a misspelt one."""
    found = _Macros()
    try:
        statements = list(config_parser.ConfigParser(gin.config_str(), found))
    except SyntaxError as error:  # 1e400 is read, but cannot be written.
        raise ValueError(
            f"A value is not one of gin's, such as an infinite number: {error.msg}"
        ) from None
    defined = {
        "/".join(filter(None, (statement.scope, statement.selector))): statement.value
        for statement in statements
        if isinstance(statement, config_parser.BindingStatement) and not statement.arg_name
    }
    used = found.used - {_REQUIRED}
    for name in sorted(defined.keys() - used):
        raise ValueError(f"Unknown macro {name}: nothing uses it.{_similar(name, used)}")
    for name in sorted(used - defined.keys()):
        raise ValueError(f"Macro {name} is used but nowhere set.{_similar(name, defined)}")
    missing = sorted(name for name, value in defined.items() if value == f"%{_REQUIRED}")
    if missing:
        advice = f"include a file that does, or give --gin.{missing[0]}=..."
        raise ValueError(f"{', '.join(missing)} must be set: {advice}")


class _Macros(config_parser.ParserDelegate):
    """Notes the macros that a configuration uses, and looks nothing up."""

    def __init__(self):
        self.used: set[str] = set()

    def macro(self, macro_name: str) -> str:
        self.used.add(macro_name)
        return f"%{macro_name}"

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> str:
        return f"@{scoped_configurable_name}{'()' * evaluate}"


def _similar(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, sorted(names), cutoff=0.6)
    return f" Did you mean {' or '.join(close)}?" if close else ""
