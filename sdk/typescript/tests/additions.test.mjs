/** The additions, with the built package, against a real server: scripts/additions.sh starts one. */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { test } from 'node:test'

import { Sandbox as Official, VolumeNotFoundError } from 'e2b'
import { diff, Sandbox, Volume } from '../dist/index.js'

const timeoutMs = 120_000

/** Runs a case with a sandbox, and kills that and all that it adopted. */
function caseOf(name, body) {
  test(name, { timeout: 60_000 }, async () => {
    const made = []
    const adopt = (...sandboxes) => (made.push(...sandboxes), sandboxes)
    try {
      const [source] = adopt(await Sandbox.create({ timeoutMs }))
      await body(source, adopt)
    } finally {
      await Promise.all(made.map((sandbox) => sandbox.kill()))
    }
  })
}

caseOf('children have the files of the source', async (source, adopt) => {
  await source.files.write('common', '1')
  const children = adopt(...(await source.forkAll(2, { timeoutMs })))
  assert.equal(new Set(children.map((child) => child.sandboxId)).size, 2)
  for (const child of children) {
    assert.ok(child instanceof Sandbox)
    assert.equal(await child.files.read('common'), '1')
  }
})

caseOf('a paused sandbox is forked and stays paused', async (source, adopt) => {
  await source.files.write('kept', 'yes')
  await source.pause()
  const [child] = adopt(...(await source.forkAll(1, { timeoutMs })))
  assert.equal(await child.files.read('kept'), 'yes')
  assert.equal((await source.getInfo()).state, 'paused')
})

caseOf('one failed child ends the others', async (source) => {
  const forked = await source.fork({ count: 2, timeoutMs })
  source.fork = async () => [...forked, new Error('no memory')]
  await assert.rejects(source.forkAll(3), /no memory/)
  assert.deepEqual(await Promise.all(forked.map((child) => child.isRunning())), [false, false])
})

caseOf('a name starts the state that was kept', async (source, adopt) => {
  const name = `test-${randomUUID().slice(0, 10)}`
  await source.files.write('state', 'kept')
  const kept = await source.checkpoint(name)
  try {
    await source.files.write('state', 'later')
    assert.deepEqual((await Sandbox.checkpoints(name)).map((one) => one.checkpointId), [kept.checkpointId])
    for (const way of [name, kept]) {
      const [started] = adopt(await Sandbox.fromCheckpoint(way, { timeoutMs }))
      assert.equal(await started.files.read('state'), 'kept')
    }
  } finally {
    assert.equal(await Sandbox.deleteCheckpoint(name), true)
  }
  assert.equal(await Sandbox.deleteCheckpoint(name), false)
})

caseOf('each kind of change is found', async (source, adopt) => {
  for (const name of ['content', 'mode', 'gone', 'kind', 'same']) await source.files.write(`tree/${name}`, '12')
  const [child] = adopt(...(await source.forkAll(1, { timeoutMs })))
  assert.deepEqual(await source.diff(child, 'tree'), { added: [], removed: [], modified: [] })
  await child.commands.run('cd tree; printf 21 > content; chmod 600 mode; rm gone kind; mkdir kind; touch ü new')
  const plain = await Official.connect(child.sandboxId)
  assert.deepEqual(await diff(source, plain, 'tree'), {
    added: ['new', 'ü'],
    removed: ['gone'],
    modified: ['content', 'kind', 'mode'],
  })
  await assert.rejects(source.diff(child, '/home/user/absent'), { name: 'CommandExitError', exitCode: 1 })
})

test('a volume has snapshots, forks and restores', { timeout: 60_000 }, async () => {
  const name = `test-${randomUUID().slice(0, 10)}`
  const volume = await Volume.create(name)
  try {
    await volume.writeFile('/state', 'first')
    const taken = await volume.snapshot('before')
    assert.ok(taken.createdAt instanceof Date && !Number.isNaN(taken.createdAt.getTime()))
    await volume.writeFile('/state', 'second', { force: true })
    assert.deepEqual((await volume.snapshots()).map((kept) => kept.name), ['before'])
    assert.deepEqual((await volume.changes('before')).filter((one) => one.path === '/state').map((one) => one.change), [
      'modified',
    ])
    const fork = await volume.fork(`${name}-fork`, 'before')
    assert.equal(await fork.readFile('/state'), 'first')
    await Volume.destroy(fork.volumeId)
    assert.equal(typeof (await volume.restore('before')), 'string')
    assert.equal(await volume.readFile('/state'), 'first')
    await assert.rejects(volume.restore('absent'), VolumeNotFoundError)
    assert.deepEqual([await volume.deleteSnapshot('before'), await volume.deleteSnapshot('before')], [true, false])
  } finally {
    await Volume.destroy(volume.volumeId)
  }
})
