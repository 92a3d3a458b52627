#!/usr/bin/python3
"""A warm Python interpreter: runs the code that comes in over HTTP, and keeps its variables between requests.

    interpreter.py [--port N] [MODULE...]      imports the modules, then listens on 127.0.0.1:N (49999)

`POST /` with the code as its body answers with all that the code printed. As at a prompt, the value of a last
expression is printed, too. The status is 200, or 422 if the code failed: the traceback then ends the answer.
"""

import argparse
import ast
import contextlib
import gc
import importlib
import io
import traceback
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

NAME = "<code>"
VARIABLES: dict[str, Any] = {"__name__": "__main__"}


def run(source: str) -> None:
    """Runs all statements; a last expression is run as at a prompt, which prints its value."""
    tree = ast.parse(source, NAME)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, NAME, "exec"), VARIABLES)
    if last is not None:
        exec(compile(ast.Interactive([last]), NAME, "single"), VARIABLES)


def answer(source: str) -> tuple[int, str]:
    """The status and what was printed. `exit()` ends the code, not the interpreter."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            run(source)
        except BaseException:  # also SystemExit of the code
            traceback.print_exc()
            return 422, printed.getvalue()
    return 200, printed.getvalue()


class Handler(BaseHTTPRequestHandler):
    """One request at a time, as at a prompt."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, printed = answer(body.decode("utf-8", "replace"))
        self.reply(status, printed.encode("utf-8", "replace"))

    def do_GET(self) -> None:
        self.reply(200, b"ready\n")

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the output of the program is the sandbox's log."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=49999)
    parser.add_argument("module", nargs="*")
    options = parser.parse_args()
    for module in options.module:
        VARIABLES[module.partition(".")[0]] = importlib.import_module(module.partition(".")[0])
        importlib.import_module(module)
    # Compiles and prints once, so that a copy finds all of it in its memory.
    answer("1 + 1")
    # The collector then leaves alone what is here, and copies go on sharing its memory.
    gc.collect()
    gc.freeze()
    HTTPServer(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
