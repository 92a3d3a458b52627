// Create, connect, timeouts, lists, pause, fork, snapshots, network.

import assert from 'node:assert/strict';
import { AuthenticationError, NotFoundError, Sandbox } from 'e2b';
import { eventually, needServer, out, test, unique, withSandbox } from './support.mjs';

needServer();

const collect = async (paginator) => {
  const found = [];
  while (paginator.hasNext) found.push(...(await paginator.nextItems()));
  return found;
};
const secondsLeft = async (sandbox) => ((await sandbox.getInfo()).endAt - Date.now()) / 1000;

test(
  'create, info, kill',
  ['Sandbox.create', 'Sandbox.get_info', 'Sandbox.getFullInfo', 'Sandbox.is_running', 'Sandbox.kill'],
  () =>
    withSandbox(
      async (sandbox) => {
        assert.equal(await sandbox.isRunning(), true);
        const info = await sandbox.getInfo();
        assert.equal(info.sandboxId, sandbox.sandboxId);
        assert.equal(info.state, 'running');
        assert.equal(info.metadata.purpose, 'js');
        assert.equal((await Sandbox.getFullInfo(sandbox.sandboxId)).sandboxId, sandbox.sandboxId);
        assert.equal(await out(sandbox, 'echo $GREETING'), 'good day');
        assert.equal(await sandbox.kill(), true);
        assert.equal(await Sandbox.kill(sandbox.sandboxId), false);
        assert.equal(await sandbox.isRunning(), false);
      },
      { metadata: { purpose: 'js' }, envs: { GREETING: 'good day' } },
    ),
);

test('default timeout is 300 s', ['Sandbox.create'], async () => {
  const sandbox = await Sandbox.create();
  try {
    const left = await secondsLeft(sandbox);
    assert.ok(left > 280 && left <= 300, `${left} s`);
  } finally {
    await sandbox.kill();
  }
});

test('connect extends, setTimeout sets', ['Sandbox.connect', 'Sandbox.set_timeout'], () =>
  withSandbox(async (sandbox) => {
    await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 10_000 });
    assert.ok((await secondsLeft(sandbox)) > 60);
    await sandbox.connect({ timeoutMs: 400_000 });
    assert.ok((await secondsLeft(sandbox)) > 350);
    await sandbox.setTimeout(30_000);
    assert.ok((await secondsLeft(sandbox)) <= 30);
    await assert.rejects(Sandbox.connect('absent0000000000'), NotFoundError);
  }),
);

test('a timeout kills', ['Sandbox.set_timeout', 'Sandbox.kill'], () =>
  withSandbox(async (sandbox) => {
    await sandbox.setTimeout(1_000);
    await eventually(async () => !(await sandbox.isRunning()), 15_000, 'the end');
  }),
);

test('list: odd metadata, pages', ['Sandbox.list', 'SandboxPaginator.next_items'], () => {
  const metadata = { group: unique('js'), odd: 'a=b&c d+日本%25' };
  return withSandbox(
    async (sandbox, adopt) => {
      adopt(await Sandbox.create('base', { metadata, timeoutMs: 60_000 }));
      const found = await collect(Sandbox.list({ query: { metadata }, limit: 1 }));
      assert.equal(found.length, 2);
      assert.ok(found.some((info) => info.sandboxId === sandbox.sandboxId));
    },
    { metadata },
  );
});

test('a wrong key', ['Sandbox.create'], () =>
  assert.rejects(Sandbox.create({ apiKey: `e2b_${'0'.repeat(40)}` }), AuthenticationError),
);

test('pause and connect', ['Sandbox.pause', 'Sandbox.beta_pause', 'Sandbox.connect'], () =>
  withSandbox(async (sandbox) => {
    await sandbox.files.write('/home/user/kept', 'yes');
    assert.equal(await sandbox.pause(), true);
    assert.equal((await sandbox.getInfo()).state, 'paused');
    assert.equal(await sandbox.betaPause(), false);
    await sandbox.connect();
    assert.equal(await sandbox.files.read('/home/user/kept'), 'yes');
  }),
);

test('pause of files only changes the boot id', ['Sandbox.pause'], () =>
  withSandbox(async (sandbox) => {
    const question = 'cat /proc/sys/kernel/random/boot_id';
    const before = await out(sandbox, question);
    assert.equal(await sandbox.pause({ keepMemory: false }), true);
    await sandbox.connect();
    assert.notEqual(await out(sandbox, question), before);
  }),
);

test('fork', ['Sandbox.fork'], () =>
  withSandbox(async (sandbox, adopt) => {
    await sandbox.files.write('/home/user/common', '1');
    const children = await sandbox.fork({ count: 2 });
    for (const child of children) {
      adopt(child);
      assert.equal(await child.files.read('/home/user/common'), '1');
      await child.files.write('/home/user/common', '2');
    }
    assert.equal(await sandbox.files.read('/home/user/common'), '1');
  }),
);

test(
  'snapshots',
  ['Sandbox.create_snapshot', 'Sandbox.list_snapshots', 'Sandbox.delete_snapshot', 'SnapshotPaginator.next_items'],
  () =>
    withSandbox(async (sandbox, adopt) => {
      await sandbox.files.write('/home/user/kept', 'yes');
      const { snapshotId } = await sandbox.createSnapshot();
      try {
        const child = adopt(await Sandbox.create(snapshotId, { timeoutMs: 60_000 }));
        assert.equal(await child.files.read('/home/user/kept'), 'yes');
        const found = await collect(sandbox.listSnapshots());
        assert.deepEqual(
          found.map((info) => info.snapshotId),
          [snapshotId],
        );
      } finally {
        assert.equal(await Sandbox.deleteSnapshot(snapshotId), true);
      }
    }),
);

test('metrics', ['Sandbox.get_metrics'], () =>
  withSandbox(async (sandbox) => {
    const metrics = await eventually(async () => (await sandbox.getMetrics()).at(-1), 30_000, 'the first metrics');
    assert.ok(metrics.cpuCount > 0 && metrics.memTotal > 0);
  }),
);

test('network update', ['Sandbox.update_network'], () =>
  withSandbox(async (sandbox) => {
    await sandbox.updateNetwork({ denyOut: ['203.0.113.0/24'] });
    assert.deepEqual((await sandbox.getInfo()).network.denyOut, ['203.0.113.0/24']);
  }),
);

test('a port', ['Sandbox.get_host'], () =>
  withSandbox(async (sandbox) => {
    await sandbox.commands.run('python3 -m http.server 8000 --bind 127.0.0.1', { background: true, timeoutMs: 0 });
    const plain = process.env.E2B_SANDBOX_URL;
    const url = plain ?? `https://${sandbox.getHost(8000)}`;
    const headers = plain ? { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '8000' } : {};
    await eventually(async () => (await fetch(url, { headers })).status === 200, 10_000, 'an answer');
  }),
);

test('MCP addresses', ['Sandbox.get_mcp_url', 'Sandbox.get_mcp_token'], () =>
  withSandbox(async (sandbox) => {
    assert.match(sandbox.getMcpUrl(), /\/mcp$/);
    await sandbox.getMcpToken().catch(() => undefined);
  }),
);
