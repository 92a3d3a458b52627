// Templates, volumes, secrets: what outlives a sandbox.

import assert from 'node:assert/strict';
import {
  Sandbox,
  Secret,
  Template,
  Volume,
  waitForFile,
  waitForPort,
  waitForProcess,
  waitForTimeout,
  waitForURL,
} from 'e2b';
import { eventually, needServer, out, test, unique, withSandbox } from './support.mjs';

needServer();

const remove = (name) => {
  const api = process.env.E2B_API_URL ?? `https://api.${process.env.E2B_DOMAIN}`;
  return fetch(`${api}/templates/${name}`, { method: 'DELETE', headers: { 'X-API-KEY': process.env.E2B_API_KEY } });
};

async function withTemplate(body) {
  const name = unique('js');
  try {
    await body(name);
  } finally {
    await remove(name);
  }
}

test(
  'a build',
  ['Template.build', 'Template.from_template', 'TemplateBuilder.run_cmd', 'TemplateBuilder.set_envs'],
  () =>
    withTemplate(async (name) => {
      const template = Template()
        .fromTemplate('base')
        .setEnvs({ MARK: 'built' })
        .runCmd('echo $MARK > /home/user/mark');
      const info = await Template.build(template, name);
      assert.ok(info.templateId && info.buildId);
      await withSandbox(async (sandbox) => assert.equal(await out(sandbox, 'cat mark'), 'built'), { template: name });
    }),
);

test('a build that fails', ['Template.build', 'TemplateBuilder.run_cmd'], () =>
  withTemplate((name) => assert.rejects(Template.build(Template().fromTemplate('base').runCmd('exit 3'), name))),
);

test('builds in the background', ['Template.build_in_background', 'Template.get_build_status'], () =>
  withTemplate(async (name) => {
    const info = await Template.buildInBackground(Template().fromTemplate('base'), name);
    await eventually(async () => (await Template.getBuildStatus(info)).status === 'ready', 60_000, 'the build');
  }),
);

test(
  'names and tags',
  ['exists', 'alias_exists', 'assign_tags', 'remove_tags', 'get_tags'].map((name) => `Template.${name}`),
  () =>
    withTemplate((name) =>
      withSandbox(async (sandbox) => {
        await sandbox.createSnapshot({ name });
        assert.equal(await Template.exists(name), true);
        assert.equal(await Template.aliasExists(unique('absent')), false);
        await Template.assignTags(name, ['one', 'two']);
        await Template.removeTags(name, 'one');
        const tags = (await Template.getTags(name)).map((tag) => tag.tag);
        assert.ok(tags.includes('two') && !tags.includes('one'));
      }),
    ),
);

test(
  'ready commands and forms',
  ['wait_for_port', 'wait_for_url', 'wait_for_file', 'wait_for_process', 'wait_for_timeout', 'Template.to_json'],
  async () => {
    const commands = [
      waitForPort(1),
      waitForURL('http://127.0.0.1'),
      waitForFile('/a'),
      waitForProcess('a'),
      waitForTimeout(1000),
    ];
    assert.ok(commands.every((command) => command.getCmd()));
    assert.match(await Template.toJSON(Template().fromTemplate('base').runCmd('echo 1')), /echo 1/);
  },
);

test(
  'volumes',
  ['create', 'connect', 'get_info', 'list', 'destroy'].map((name) => `Volume.${name}`),
  async () => {
    const volume = await Volume.create(unique('js'));
    try {
      assert.equal((await Volume.getInfo(volume.volumeId)).name, volume.name);
      assert.ok((await Volume.list()).some((info) => info.volumeId === volume.volumeId));
      assert.equal((await Volume.connect(volume.volumeId)).volumeId, volume.volumeId);
    } finally {
      assert.equal(await Volume.destroy(volume.volumeId), true);
    }
  },
);

const CONTENT = ['write_file', 'read_file', 'make_dir', 'exists', 'update_metadata', 'remove'];
test(
  'content of volumes',
  CONTENT.map((name) => `Volume.${name}`),
  async () => {
    const volume = await Volume.create(unique('js'));
    try {
      await volume.makeDir('/d');
      await volume.writeFile('/d/f', 'text');
      assert.equal(await volume.readFile('/d/f'), 'text');
      assert.equal((await volume.list('/d')).length, 1);
      assert.equal((await volume.updateMetadata('/d/f', { mode: 0o600 })).mode & 0o777, 0o600);
      assert.equal((await volume.getInfo('/d/f')).size, 4);
      await volume.remove('/d');
      assert.equal(await volume.exists('/d'), false);
    } finally {
      await Volume.destroy(volume.volumeId);
    }
  },
);

test('a mounted volume', ['Volume.create', 'Sandbox.create'], async () => {
  const volume = await Volume.create(unique('js'));
  try {
    const sandbox = await Sandbox.create({ volumeMounts: { '/mnt/data': volume.name }, timeoutMs: 60_000 });
    await out(sandbox, 'echo shared > /mnt/data/f').finally(() => sandbox.kill());
    assert.equal(await volume.readFile('/f'), 'shared\n');
  } finally {
    await Volume.destroy(volume.volumeId);
  }
});

test(
  'secrets',
  ['create', 'get_info', 'update', 'list', 'exists', 'destroy'].map((name) => `Secret.${name}`),
  async () => {
    const name = unique('js');
    await Secret.create(name, 'value');
    try {
      assert.equal((await Secret.getInfo(name)).name, name);
      assert.ok((await Secret.update(name, 'other')).version > 1);
      assert.ok((await Secret.list().nextItems()).length > 0);
      assert.equal(await Secret.exists(name), true);
    } finally {
      assert.equal(await Secret.destroy(name), true);
    }
  },
);

test('placeholders', ['Secret.fill', 'Secret.iam_token'], () => {
  assert.match(Secret.fill('name'), /name/);
  assert.ok(Secret.iamToken({ audience: 'audience', tokenType: 'JWT-SVID' }));
});
