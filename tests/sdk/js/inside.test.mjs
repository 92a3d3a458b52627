// Commands, terminals, files, watches, git: what goes on in a sandbox.

import assert from 'node:assert/strict';
import { after, before } from 'node:test';
import { CommandExitError, NotFoundError, Sandbox } from 'e2b';
import { eventually, needServer, out, test, unique } from './support.mjs';

needServer();

/** All cases of this file share one sandbox. */
let box;
before(async () => {
  box = await Sandbox.create({ timeoutMs: 600_000 }).catch(
    (error) => (console.error(`no sandbox: ${error.message}`), undefined),
  );
});
after(() => box?.kill());

const directory = async () => {
  const path = `/home/user/${unique('js')}`;
  await box.files.makeDir(path);
  return path;
};

test('run', ['commands.run'], async () => {
  const seen = [];
  const result = await box.commands.run('echo out; echo err >&2', { onStdout: (text) => void seen.push(text) });
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\n', 'err\n', 0]);
  assert.equal(seen.join(''), 'out\n');
});

test('exit codes', ['commands.run'], () =>
  assert.rejects(box.commands.run('echo out; exit 7'), (error) => {
    assert.ok(error instanceof CommandExitError);
    assert.deepEqual([error.exitCode, error.stdout], [7, 'out\n']);
    return true;
  }),
);

test('a burst at exit', ['commands.run'], async () => {
  const { stdout } = await box.commands.run("head -c 1048576 /dev/zero | tr '\\0' a");
  assert.equal(stdout.length, 1048576);
});

test('background, list, connect, wait', ['commands.list', 'commands.connect', 'CommandHandle.wait'], async () => {
  const handle = await box.commands.run('sleep 1; echo late', { background: true });
  assert.ok((await box.commands.list()).some((process) => process.pid === handle.pid));
  const other = await box.commands.connect(handle.pid);
  assert.equal((await other.wait()).stdout, 'late\n');
  assert.equal((await handle.wait()).exitCode, 0);
});

test('kill and disconnect', ['commands.kill', 'CommandHandle.kill', 'CommandHandle.disconnect'], async () => {
  const handle = await box.commands.run('sleep 60', { background: true });
  await handle.disconnect();
  assert.equal(await box.commands.kill(handle.pid), true);
  await eventually(async () => !(await box.commands.kill(handle.pid)), 10_000, 'the end of the command');
  const other = await box.commands.run('sleep 60', { background: true });
  assert.equal(await other.kill(), true);
  await other.wait().catch(() => undefined);
});

test(
  'input',
  ['commands.send_stdin', 'commands.close_stdin', 'CommandHandle.send_stdin', 'CommandHandle.close_stdin'],
  async () => {
    const handle = await box.commands.run('cat', { background: true, stdin: true });
    await box.commands.sendStdin(handle.pid, 'one ');
    await handle.sendStdin('two');
    await handle.closeStdin();
    assert.equal((await handle.wait()).stdout, 'one two');
    const second = await box.commands.run('cat', { background: true, stdin: true });
    await box.commands.closeStdin(second.pid);
    assert.equal((await second.wait()).stdout, '');
  },
);

test('a terminal', ['pty.create', 'pty.send_stdin', 'pty.resize', 'pty.connect', 'pty.kill'], async () => {
  const shown = [];
  const show = (data) => void shown.push(Buffer.from(data).toString());
  const handle = await box.pty.create({ cols: 80, rows: 24, onData: show, timeoutMs: 0 });
  const type = (text) => box.pty.sendInput(handle.pid, Buffer.from(text));
  const expect = (text) => eventually(() => shown.join('').includes(text), 10_000, text);
  await box.pty.resize(handle.pid, { cols: 101, rows: 31 });
  await type('stty size\n');
  await expect('31 101');
  const other = await box.pty.connect(handle.pid, { onData: show, timeoutMs: 0 });
  await type("echo ag''ain\n");
  await expect('again');
  assert.equal(await box.pty.kill(handle.pid), true);
  await Promise.allSettled([handle.wait(), other.wait()]);
});

test(
  'files',
  ['files.write', 'files.read', 'files.write_files', 'files.exists', 'files.get_info', 'files.list'],
  async () => {
    const path = await directory();
    const info = await box.files.write(`${path}/a`, 'text');
    assert.equal(info.path, `${path}/a`);
    assert.equal(await box.files.read(`${path}/a`), 'text');
    const bytes = new Uint8Array(70_000).map((_, index) => index);
    await box.files.write(`${path}/b`, bytes.buffer);
    assert.deepEqual(await box.files.read(`${path}/b`, { format: 'bytes' }), bytes);
    await box.files.writeFiles([
      { path: `${path}/c`, data: '1' },
      { path: `${path}/d e`, data: '2' },
    ]);
    assert.equal(await out(box, `cat '${path}/d e'`), '2');
    assert.equal(await box.files.exists(`${path}/absent`), false);
    assert.equal((await box.files.getInfo(`${path}/a`)).size, 4);
    assert.equal((await box.files.list(path)).length, 4);
    await assert.rejects(box.files.read(`${path}/absent`), NotFoundError);
  },
);

test('directories', ['files.make_dir', 'files.rename', 'files.remove'], async () => {
  const path = await directory();
  assert.equal(await box.files.makeDir(`${path}/n`), true);
  assert.equal(await box.files.makeDir(`${path}/n`), false);
  await box.files.write(`${path}/n/f`, 'x');
  await box.files.rename(`${path}/n/f`, `${path}/m/f`);
  assert.equal(await box.files.read(`${path}/m/f`), 'x');
  await box.files.remove(`${path}/m`);
  assert.equal(await box.files.exists(`${path}/m`), false);
});

test('signed addresses', ['Sandbox.download_url', 'Sandbox.upload_url'], async () => {
  const path = await directory();
  const form = new FormData();
  form.append('file', new Blob(['by address']), 'u');
  // Without names, headers say which sandbox is meant.
  const headers = process.env.E2B_SANDBOX_URL && { 'E2b-Sandbox-Id': box.sandboxId, 'E2b-Sandbox-Port': '49983' };
  const uploaded = await fetch(await box.uploadUrl(`${path}/u +`), { method: 'POST', body: form, headers });
  assert.equal(uploaded.status, 200);
  assert.equal(await (await fetch(await box.downloadUrl(`${path}/u +`), { headers })).text(), 'by address');
});

test('watches', ['files.watch_dir', 'WatchHandle.stop'], async () => {
  const path = await directory();
  const events = [];
  const handle = await box.files.watchDir(path, (event) => void events.push(`${event.type} ${event.name}`), {
    recursive: true,
    timeoutMs: 0,
  });
  await box.files.write(`${path}/a`, '1');
  await eventually(() => events.includes('create a') && events.includes('write a'), 10_000, 'the events');
  await handle.stop();
});

const GIT = [
  'init',
  'configure_user',
  'add',
  'commit',
  'status',
  'branches',
  'create_branch',
  'checkout_branch',
  'delete_branch',
];
const REMOTE = ['clone', 'push', 'pull', 'remote_add', 'remote_get'];
const OTHER = ['reset', 'restore', 'set_config', 'get_config'];
test(
  'git',
  [...GIT, ...REMOTE, ...OTHER].map((name) => `git.${name}`),
  async () => {
    const path = await directory();
    const [repo, bare, clone] = [`${path}/repo`, `${path}/bare`, `${path}/clone`];
    await box.git.init(repo, { initialBranch: 'main' });
    await box.git.configureUser('Suite', 'suite@example.com', { scope: 'local', path: repo });
    await box.files.write(`${repo}/a`, '1');
    await box.git.add(repo);
    await box.git.commit(repo, 'first');
    assert.equal((await box.git.status(repo)).isClean, true);
    await box.git.createBranch(repo, 'topic');
    await box.git.checkoutBranch(repo, 'main');
    await box.git.deleteBranch(repo, 'topic', { force: true });
    assert.deepEqual((await box.git.branches(repo)).branches, ['main']);
    await box.git.init(bare, { bare: true, initialBranch: 'main' });
    await box.git.remoteAdd(repo, 'origin', bare);
    assert.equal(await box.git.remoteGet(repo, 'origin'), bare);
    await box.git.push(repo, { remote: 'origin', branch: 'main' });
    await box.git.clone(bare, { path: clone });
    await box.git.pull(clone, { remote: 'origin', branch: 'main' });
    assert.equal(await box.files.read(`${clone}/a`), '1');
    await box.files.write(`${repo}/a`, 'changed');
    await box.git.restore(repo, { paths: ['a'] });
    await box.git.reset(repo, { mode: 'hard' });
    await box.git.setConfig('suite.key', 'value', { scope: 'local', path: repo });
    assert.equal(await box.git.getConfig('suite.key', { scope: 'local', path: repo }), 'value');
  },
);

test('git credentials', ['git.dangerously_authenticate'], async () => {
  await box.git.dangerouslyAuthenticate({
    username: 'suite',
    password: 'token',
    host: 'git.invalid',
    protocol: 'https',
  });
  assert.match(await out(box, 'cat ~/.git-credentials; rm ~/.git-credentials'), /git\.invalid/);
});
