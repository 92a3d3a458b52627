"""Five attempts from one warmed state, of which the best is kept.

    eval "$(pando env)" && python sdk/examples/five_attempts.py

An agent has prepared a sandbox: data in memory, a score function defined. Five forks of it try one idea each, at once.
Each has the memory of the first, and none disturbs another. The winner becomes a checkpoint, from which work goes on.
"""

from concurrent.futures import ThreadPoolExecutor

from code_interpreter import Interpreter

from pando import Sandbox

PREPARE = """
import random
random.seed(7)
points = [(x, 3 * x * x - 2 * x + 1 + random.gauss(0, 5)) for x in range(-10, 11)]

def score(model):
    return sum((model(x) - y) ** 2 for x, y in points) / len(points)
"""

IDEAS = {
    "constant": "lambda x: 100",
    "line": "lambda x: 100 - 2 * x",
    "parabola": "lambda x: 3 * x * x - 2 * x + 1",
    "wrong parabola": "lambda x: 2 * x * x + 10",
    "broken": "lambda x: x / 0",
}


def attempt(sandbox: Sandbox, name: str, model: str) -> float:
    """Tries one idea in a fork. What fails is as bad as can be."""
    answer = Interpreter(sandbox).run(f"name, model = {name!r}, {model}\nscore(model)")
    return float(answer.text) if answer.ok else float("inf")


def main(checkpoint: str = "best-attempt") -> str:
    """Returns the name of the winner."""
    source = Interpreter()
    source.run(PREPARE)
    forks = source.sandbox.fork_all(len(IDEAS), timeout=120)
    try:
        with ThreadPoolExecutor() as pool:
            scores = list(pool.map(attempt, forks, IDEAS.keys(), IDEAS.values()))
        for name, score in zip(IDEAS, scores, strict=True):
            print(f"{name:15} {score:12.2f}")
        best = forks[scores.index(min(scores))]
        best.checkpoint(checkpoint)
    finally:
        for sandbox in (source.sandbox, *forks):
            sandbox.kill()
    winner = Interpreter(Sandbox.from_checkpoint(checkpoint, timeout=120))
    name = winner.run("print(name)").text
    winner.close()
    print(f"the best is {name}; the checkpoint {checkpoint} goes on from it")
    return name


if __name__ == "__main__":
    main()
