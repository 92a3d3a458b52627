"""Languages: their kernels, and how code sets environment variables in them."""

import json
import shlex
from dataclasses import dataclass
from typing import Callable, Mapping, Optional

Variables = Mapping[str, Optional[str]]


def _python(variables: Variables) -> str:
    text = json.dumps(dict(variables))
    return f"get_ipython().set_variables({text!r})"


def _bash(variables: Variables) -> str:
    lines = (f"unset {k}" if v is None else f"export {k}={shlex.quote(v)}" for k, v in variables.items())
    return "\n".join(lines)


def _deno(variables: Variables) -> str:
    lines = (
        f"Deno.env.delete({json.dumps(k)});" if v is None else f"Deno.env.set({json.dumps(k)}, {json.dumps(v)});"
        for k, v in variables.items()
    )
    return "\n".join(lines)


def _r(variables: Variables) -> str:
    lines = (
        f"Sys.unsetenv({json.dumps(k)})" if v is None else f"do.call(Sys.setenv, list({json.dumps(k)}={json.dumps(v)}))"
        for k, v in variables.items()
    )
    return "\n".join(lines)


@dataclass(frozen=True)
class Language:
    """A language by the name that clients use."""

    name: str
    kernel: str
    # Code that sets variables, or removes those without a value. None: the kernel has no way.
    set_variables: Optional[Callable[[Variables], str]]
    # How long a result may come after the kernel has said that it is idle, in seconds. Deno sends both side by side.
    late: float = 0


_KNOWN = [
    Language("python", "python3", _python),
    Language("javascript", "deno", _deno, late=0.05),
    Language("typescript", "deno", _deno, late=0.05),
    Language("bash", "bash", _bash),
    # Not in the template as it comes: whoever builds on it may install them.
    Language("r", "ir", _r),
    Language("java", "java", None),
]
_NAMES = {"py": "python", "python3": "python", "js": "javascript", "ts": "typescript", "sh": "bash"}


def find(name: Optional[str]) -> Language:
    """That of this name, whatever its case; the kernel of the name if it is none of these. Without a name: Python."""
    name = (name or "python").lower()
    name = _NAMES.get(name, name)
    return next((known for known in _KNOWN if known.name == name), Language(name, name, None))
