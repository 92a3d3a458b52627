"""The code interpreter's SDK, unchanged, with the template of images/code-interpreter.

scripts/sdk.sh builds it, which needs PyPI."""

import threading
import time
from collections.abc import Iterator

import pytest
from conftest import IS_NEW

pytestmark = pytest.mark.skipif(not IS_NEW, reason="the newest SDK will do")

if IS_NEW:
    from e2b import NotFoundException, SandboxException, TimeoutException
    from e2b_code_interpreter import Sandbox
    from e2b_code_interpreter.charts import BarChart, LineChart, PieChart, SuperChart


@pytest.fixture(scope="module")
def box(server: None) -> Iterator["Sandbox"]:
    box = Sandbox.create(timeout=600)
    yield box
    box.kill()


@pytest.fixture(scope="module", autouse=True)
def template(server: None) -> None:
    try:
        Sandbox.create(timeout=60).kill()
    except NotFoundException:
        pytest.skip("the server has no template code-interpreter-v1: scripts/sdk.sh could not build it")


def test_the_first_answer() -> None:
    box = Sandbox.create("code-interpreter", timeout=60)
    began = time.monotonic()
    execution = box.run_code("1+1")
    took = time.monotonic() - began
    assert execution.text == "2" and execution.execution_count == 1
    print(f"the first answer took {took * 1000:.0f} ms")
    box.kill()


def test_variables_stay(box: "Sandbox") -> None:
    box.run_code("x = 20")
    assert box.run_code("x + 1").text == "21"
    assert box.run_code("'a text'").text == "a text"


def test_output_comes_as_it_is_written(box: "Sandbox") -> None:
    seen = []
    code = "import sys, time\nprint('one', flush=True); time.sleep(1); print('two', file=sys.stderr)"
    began = time.monotonic()
    execution = box.run_code(
        code,
        on_stdout=lambda message: seen.append((message.line, time.monotonic() - began)),
        on_stderr=lambda message: seen.append((message.line, time.monotonic() - began)),
    )
    assert [line for line, _ in seen] == ["one\n", "two\n"] and seen[1][1] - seen[0][1] > 0.8
    assert execution.logs.stdout == ["one\n"] and execution.logs.stderr == ["two\n"]


def test_errors(box: "Sandbox") -> None:
    execution = box.run_code("def f():\n    return 1 / 0\nf()")
    assert execution.error.name == "ZeroDivisionError" and execution.error.value == "division by zero"
    assert "f()" in execution.error.traceback
    assert box.run_code("1").text == "1"


def test_pictures_and_charts(box: "Sandbox") -> None:
    code = """
import matplotlib.pyplot as plt
plt.bar(["a", "b"], [3, 4]); plt.title("bars"); plt.xlabel("x"); plt.show()
plt.plot([1, 2, 3], [1, 4, 9], label="squares"); plt.title("lines"); plt.show()
plt.pie([1, 2], labels=["one", "two"]); plt.show()
figure, both = plt.subplots(1, 2); both[0].plot([1, 2]); both[1].bar(["a"], [1]); plt.show()
"""
    results = box.run_code(code).results
    assert [type(result.chart) for result in results] == [BarChart, LineChart, PieChart, SuperChart]
    assert all(result.png for result in results)
    bars = results[0].chart
    assert bars.title == "bars" and [(bar.label, float(bar.value)) for bar in bars.elements] == [("a", 3), ("b", 4)]
    assert [list(map(float, point)) for point in results[1].chart.elements[0].points] == [[1, 1], [2, 4], [3, 9]]


def test_data_frames(box: "Sandbox") -> None:
    code = "import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', None]})"
    result = box.run_code(code).results[0]
    assert result.is_main_result and result.data == {"a": [1, 2], "b": ["x", None]}
    assert "<table" in result.html and result.text


def test_other_results(box: "Sandbox") -> None:
    code = """
from IPython.display import HTML, JSON, Latex, Markdown, SVG, Javascript, display
display(HTML("<b>x</b>"), Markdown("*x*"), Latex("$x$"), JSON({"x": 1}), Javascript("x"))
display({"application/x-own": "own"}, raw=True)
"""
    results = box.run_code(code).results
    assert [result.html for result in results][0] == "<b>x</b>" and results[1].markdown == "*x*"
    assert results[2].latex == "$x$" and results[3].json == {"x": 1} and results[4].javascript == "x"
    assert results[5].extra == {"application/x-own": "own"} and not any(result.is_main_result for result in results)


def test_languages(box: "Sandbox") -> None:
    assert box.run_code("const x: number = 6; x * 7", language="typescript").text == "42"
    assert "5" in box.run_code("console.log(2 + 3)", language="javascript").logs.stdout[0]
    assert box.run_code("X=5; echo $((X * 2))", language="bash").logs.stdout == ["10\n"]
    with pytest.raises(SandboxException, match="no kernel of the language cobol"):
        box.run_code("x", language="cobol")


def test_contexts(box: "Sandbox") -> None:
    context = box.create_code_context(cwd="/tmp/own", language="python")
    assert (context.language, context.cwd) == ("python", "/tmp/own")
    assert box.run_code("import os; y = 1; os.getcwd()", context=context).text == "/tmp/own"
    assert box.run_code("y").error.name == "NameError"
    assert {"python", "javascript"} <= {found.language for found in box.list_code_contexts()}
    box.restart_code_context(context)
    assert box.run_code("y", context=context).error.name == "NameError"
    box.remove_code_context(context)
    assert context.id not in [found.id for found in box.list_code_contexts()]
    with pytest.raises(NotFoundException):
        box.run_code("1", context=context)


def test_variables_of_the_environment() -> None:
    box = Sandbox.create(timeout=120, envs={"GIVEN": "at first"})
    read = "import os; os.getenv('GIVEN', 'none') + os.getenv('FOO', 'none')"
    assert box.run_code(read).text == "at firstnone"
    assert box.run_code(read, envs={"GIVEN": "mine", "FOO": "it's"}).text == '"mineit\'s"'
    assert box.run_code(read).text == "at firstnone"
    assert box.run_code("echo $GIVEN", language="bash").logs.stdout == ["at first\n"]
    assert box.run_code("Deno.env.get('GIVEN')", language="javascript").text == '"at first"'
    box.kill()


def test_a_client_that_leaves_interrupts_its_code(box: "Sandbox") -> None:
    with pytest.raises(TimeoutException):
        box.run_code("import time; time.sleep(60)", timeout=2)
    began = time.monotonic()
    assert box.run_code("1 + 1", timeout=30).text == "2" and time.monotonic() - began < 10


def test_a_kernel_that_ends(box: "Sandbox") -> None:
    context = box.create_code_context()
    assert box.run_code("import os; os._exit(3)", context=context).error.name == "KernelDied"
    assert box.run_code("1 + 1", context=context).text == "2"
    box.remove_code_context(context)


def test_code_that_runs_while_its_context_is_restarted_or_removed(box: "Sandbox") -> None:
    def run(context: object) -> list:
        found: list = []
        code = "print('begun', flush=True); import time; time.sleep(60)"
        began = threading.Event()
        runner = threading.Thread(
            target=lambda: found.append(box.run_code(code, context=context, on_stdout=lambda _: began.set()))
        )
        runner.start()
        assert began.wait(20)
        return [runner, found]

    context = box.create_code_context()
    runner, found = run(context)
    box.restart_code_context(context)
    runner.join(10)
    assert found[0].error.name == "KernelRestarted"
    assert box.run_code("1 + 1", context=context).text == "2"
    runner, found = run(context)
    box.remove_code_context(context)
    runner.join(10)
    assert found[0].error.name == "KernelRestarted"


def test_much_output(box: "Sandbox") -> None:
    execution = box.run_code("for n in range(100_000): print(n)\n'end'", timeout=120)
    assert "".join(execution.logs.stdout).split() == [str(n) for n in range(100_000)]
    assert execution.text == "end"
    execution = box.run_code("from IPython.display import display\nfor n in range(5_000): display(n)\n'end'", timeout=120)
    assert execution.text == "end"


def test_sandboxes_draw_numbers_of_their_own(box: "Sandbox") -> None:
    others = [Sandbox.create(timeout=120) for _ in range(2)]
    code = "import random, numpy; f'{random.random()} {numpy.random.rand()}'"
    numbers = " ".join(other.run_code(code).text.strip("'") for other in others).split()
    assert len(set(numbers)) == 4, numbers
    for other in others:
        other.kill()


def test_packages(box: "Sandbox") -> None:
    code = "import numpy, pandas, scipy, sklearn, seaborn, sympy, plotly, PIL, requests, bs4, openpyxl; 'all'"
    assert box.run_code(code).text == "all"


def test_forks_and_pauses_keep_kernels() -> None:
    """The variables of all languages are in a fork, and after a pause."""
    box = Sandbox.create(timeout=300)
    box.run_code("z = [1]")
    box.run_code("let z = 2", language="javascript")
    box.run_code("Z=3", language="bash")
    box.pause()
    box = box.connect(timeout=300)
    box.run_code("z.append(2)")
    assert box.run_code("z").text == "[1, 2]"
    assert box.run_code("z", language="javascript").text == "2"
    assert box.run_code("echo $Z", language="bash").logs.stdout == ["3\n"]
    for fork in box.fork(2):
        assert fork.run_code("z.append(3); z").text == "[1, 2, 3]"
        assert fork.run_code("z += 1", language="javascript").text == "3"
        fork.kill()
    assert box.run_code("z").text == "[1, 2]"
    box.kill()
