// What all cases share: sandboxes that are removed, names, waiting, and the states of docs/e2b-compat.md.

import { randomBytes } from 'node:crypto';
import { appendFileSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { test as run } from 'node:test';
import { Sandbox } from 'e2b';

export { sleep };
const STATES = ['works', 'in part', 'not yet', 'not ours'];
const RUN = randomBytes(6).toString('hex');

/** Rows of the tables: name, state, tests. */
export function rows() {
  const found = [];
  for (const line of readFileSync(process.env.PANDO_COMPAT, 'utf8').split('\n')) {
    const cells = line
      .split('|')
      .slice(1, -1)
      .map((cell) => cell.trim());
    if (cells.length !== 4 || !STATES.includes(cells[1])) continue;
    found.push({ name: cells[0].replaceAll('`', ''), state: cells[1], tests: cells[2].split(', ') });
  }
  return found;
}

/** The worst state of the rows of these methods. */
function stateOf(methods) {
  const known = new Map(rows().map((row) => [row.name, row.state]));
  const states = methods.map((name) => STATES.indexOf(known.get(name)));
  if (states.includes(-1)) throw new Error(`no row for one of ${methods}`);
  return STATES[Math.max(...states)];
}

/** A test of these methods. If one does not work yet, a failure is only reported. */
export function test(name, methods, body) {
  const state = stateOf(methods);
  const options = state === 'works' ? {} : { todo: `docs/e2b-compat.md: ${state}` };
  return run(name, { timeout: 120_000, ...options }, async (context) => {
    try {
      return await body(context);
    } catch (error) {
      // scripts/sdk.sh collects what fails.
      if (process.env.PANDO_SDK_RESULTS)
        appendFileSync(`${process.env.PANDO_SDK_RESULTS}/js.failed`, `${methods.join('\n')}\n`);
      throw error;
    }
  });
}

export function needServer() {
  // A key alone names none: it may be one of E2B's own service.
  if (process.env.E2B_API_KEY && (process.env.E2B_DOMAIN || process.env.E2B_API_URL)) return;
  console.error('no server: set E2B_API_KEY, and E2B_DOMAIN or E2B_API_URL; `make sdk-test` starts one');
  process.exit(2);
}

export const unique = (prefix) => `${prefix}-${randomBytes(5).toString('hex')}`;

/** Runs `body` with a sandbox of its own, and kills that and all that `adopt` was given. */
export async function withSandbox(body, options = {}) {
  const { template = 'base', ...rest } = options;
  const made = [];
  const adopt = (sandbox) => (made.push(sandbox), sandbox);
  try {
    const sandbox = adopt(
      await Sandbox.create(template, { timeoutMs: 120_000, ...rest, metadata: { run: RUN, ...rest.metadata } }),
    );
    await body(sandbox, adopt);
  } finally {
    for (const sandbox of made) await Sandbox.kill(sandbox.sandboxId).catch(() => {});
  }
}

export async function eventually(condition, milliseconds = 10_000, what = 'the condition') {
  const end = Date.now() + milliseconds;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (Date.now() > end) throw new Error(`${what} did not become true within ${milliseconds} ms`);
    await sleep(100);
  }
}

export const out = async (sandbox, command, options) => (await sandbox.commands.run(command, options)).stdout.trimEnd();
