// docs/e2b-compat.md has a row for each public method of the SDK, by the names that its declarations have.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import * as e2b from 'e2b';
import { rows } from './support.mjs';

const DECLARATIONS = new URL('./node_modules/e2b/dist/index.d.ts', import.meta.url);
/** As in the table: the classes and interfaces that make one up. */
const OWNERS = {
  Sandbox: ['SandboxApi', 'Sandbox'],
  SandboxPaginator: ['SandboxPaginator'],
  SnapshotPaginator: ['SnapshotPaginator'],
  commands: ['Commands'],
  CommandHandle: ['CommandHandle'],
  pty: ['Pty'],
  files: ['Filesystem'],
  WatchHandle: ['WatchHandle'],
  git: ['Git'],
  Template: ['TemplateFromImage', 'TemplateBase'],
  TemplateBuilder: ['TemplateBuilder'],
  Volume: ['Volume'],
  Secret: ['Secret'],
  SecretPaginator: ['SecretPaginator'],
  ReadyCmd: ['ReadyCmd'],
};
const FUNCTIONS = [
  'waitForFile',
  'waitForPort',
  'waitForProcess',
  'waitForTimeout',
  'waitForURL',
  'getSignature',
  'defaultBuildLogger',
];
/** Names that are not the Python name in camel case. */
const RENAMED = {
  fromAWSRegistry: 'from_aws_registry',
  fromGCPRegistry: 'from_gcp_registry',
  waitForURL: 'wait_for_url',
  toJSON: 'to_json',
};
const ALSO = { 'pty.sendInput': 'pty.send_stdin', 'Sandbox.getFullInfo': 'Sandbox.getFullInfo' };
/** Exported classes whose methods no server sees. */
const NO_SERVER = ['ApiClient', 'ConnectionConfig', 'E2B', 'LogEntry', 'LogEntryEnd', 'LogEntryStart'];

const snake = (name) => RENAMED[name] ?? name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

/** Public methods that a class or an interface declares. */
function methods(owner, text) {
  const block = text.match(new RegExp(`^(?:declare (?:abstract )?class|interface) ${owner}\\b[\\s\\S]*?^\\}`, 'm'));
  assert.ok(block, `the SDK declares no ${owner}`);
  const names = block[0].matchAll(/^ {2}(?:static |async |abstract )*([a-zA-Z]\w*)\s*[(<]/gm);
  return new Set([...names].map((match) => match[1]).filter((name) => name !== 'constructor'));
}

test('each method has a row', () => {
  const text = readFileSync(DECLARATIONS, 'utf8').replace(/^ {4}/gm, '  ');
  const known = new Set(rows().map((row) => row.name));
  const missing = [];
  for (const [name, owners] of Object.entries(OWNERS)) {
    for (const method of owners.flatMap((owner) => [...methods(owner, text)])) {
      // The class of templates has the steps of the builder, too.
      if (name === 'Template' && known.has(`TemplateBuilder.${snake(method)}`)) continue;
      const row = ALSO[`${name}.${method}`] ?? `${name}.${snake(method)}`;
      if (!known.has(row)) missing.push(`${name}.${method}`);
    }
  }
  missing.push(...FUNCTIONS.filter((name) => !known.has(snake(name))));
  assert.deepEqual(missing, []);
});

test('nothing else is exported that has methods', () => {
  const known = new Set([
    ...Object.keys(OWNERS),
    ...Object.values(OWNERS).flat(),
    ...FUNCTIONS,
    ...NO_SERVER,
    'default',
  ]);
  const unknown = Object.entries(e2b).filter(([name, value]) => {
    const isError = value?.prototype instanceof Error;
    return typeof value === 'function' && !known.has(name) && !isError;
  });
  assert.deepEqual(
    unknown.map(([name]) => name),
    [],
  );
});
