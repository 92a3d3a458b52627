"""A code interpreter: cells share their variables, errors come back, and files come out.

    eval "$(pando env)" && python sdk/examples/code_interpreter.py chart.svg

The template `python` is a Python that is warm: it has loaded its modules and waits on port 49999 inside the sandbox.
"""

import sys
from dataclasses import dataclass

from pando import Sandbox

SEND = "curl -sS --data-binary @- -o - -w '\\n%{http_code}' http://127.0.0.1:49999/"


@dataclass(frozen=True)
class Answer:
    """What a cell printed, with the value of its last expression."""

    ok: bool
    text: str


class Interpreter:
    """The warm Python of a sandbox: of the given one, or of a new one."""

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self.sandbox = sandbox or Sandbox.create("python", timeout=300)

    def run(self, code: str) -> Answer:
        """Runs one cell. A failure is an answer with a traceback, and the interpreter goes on."""
        command = self.sandbox.commands.run(SEND, background=True, stdin=True)
        command.send_stdin(code)
        command.close_stdin()
        printed, _, status = command.wait().stdout.rpartition("\n")
        return Answer(status == "200", printed.rstrip("\n"))

    def close(self) -> None:
        """Ends the sandbox."""
        self.sandbox.kill()


CELLS = (
    "import math\nwave = [math.sin(x / 10) for x in range(100)]",
    "print('the mean is', round(sum(wave) / len(wave), 3))\nmax(wave)",
    "wave / 2",
    """
points = " ".join(f"{x * 4},{100 - 80 * y:.1f}" for x, y in enumerate(wave))
with open("/home/user/chart.svg", "w") as file:
    file.write('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 200">'
               f'<polyline fill="none" stroke="teal" points="{points}"/></svg>')
""",
)


def main(target: str) -> None:
    interpreter = Interpreter()
    try:
        for number, code in enumerate(CELLS, start=1):
            answer = interpreter.run(code)
            print(f"[{number}] {'ok' if answer.ok else 'failed'}: {answer.text}")
        chart = interpreter.sandbox.files.read("chart.svg")
    finally:
        interpreter.close()
    with open(target, "w", encoding="utf-8") as file:
        file.write(chart)
    print(f"the chart is in {target}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "chart.svg")
