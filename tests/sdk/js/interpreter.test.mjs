// The code interpreter's SDK, unchanged. tests/sdk/python/test_interpreter.py has more.

import assert from 'node:assert/strict';
import { Sandbox } from '@e2b/code-interpreter';
import { NotFoundError } from 'e2b';
import { needServer, test } from './support.mjs';

needServer();

async function withInterpreter(context, body) {
  let box;
  try {
    box = await Sandbox.create({ timeoutMs: 120_000, envs: { GIVEN: 'at first' } });
  } catch (error) {
    if (!(error instanceof NotFoundError)) throw error;
    return context.skip('the server has no template code-interpreter-v1: scripts/sdk.sh could not build it');
  }
  try {
    await body(box);
  } finally {
    await box.kill();
  }
}

test('code in kernels', ['(code interpreter)'], (context) =>
  withInterpreter(context, async (box) => {
    const printed = [];
    await box.runCode('x = 41; print("here")', { onStdout: (message) => printed.push(message.line) });
    assert.deepEqual(printed, ['here\n']);
    assert.equal((await box.runCode('x + 1')).text, '42');
    assert.equal((await box.runCode('1 / 0')).error.name, 'ZeroDivisionError');
    assert.equal((await box.runCode('import os; os.environ["GIVEN"]')).text, 'at first');
    assert.equal((await box.runCode('[1, 2].map((n: number) => n * 2)[1]', { language: 'ts' })).text, '4');
    const code = 'import matplotlib.pyplot as plt; plt.bar(["a"], [3]); plt.title("bars"); plt.show()';
    const [{ chart, png }] = (await box.runCode(code)).results;
    assert.equal(chart.type, 'bar');
    assert.equal(chart.title, 'bars');
    assert.ok(png);
  }),
);

test('contexts', ['(code interpreter)'], (context) =>
  withInterpreter(context, async (box) => {
    const own = await box.createCodeContext({ cwd: '/tmp/own', language: 'python' });
    assert.equal((await box.runCode('import os; y = 1; os.getcwd()', { context: own })).text, '/tmp/own');
    await box.restartCodeContext(own);
    assert.equal((await box.runCode('y', { context: own })).error.name, 'NameError');
    await box.removeCodeContext(own);
    assert.ok(!(await box.listCodeContexts()).some((found) => found.id === own.id));
  }),
);
