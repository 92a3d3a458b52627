#!/usr/bin/node
'use strict';
// Node.js under a fork: a worker with a message port and shared memory, timers, promises, streams, crypto, the thread
// pool, a server on a unix socket. Protocol as in probe.h: prints "ready", waits for --go, prints what it finds.

const crypto = require('node:crypto');
const fs = require('node:fs');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const { execFile } = require('node:child_process');
const { promisify, parseArgs } = require('node:util');
const { Worker, isMainThread, parentPort, workerData } = require('node:worker_threads');

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
let failures = 0;

function check(held, what) {
  process.stdout.write(`${what}: ${held ? 'ok' : 'FAILED'}\n`);
  failures += held ? 0 : 1;
}

function workerMain() {
  const ticks = new Int32Array(workerData);
  let sum = 0;
  setInterval(() => Atomics.add(ticks, 0, 1), 10);
  parentPort.on('message', (number) => {
    sum += number;
    parentPort.postMessage(sum);
  });
  parentPort.postMessage(0);
}

function askWorker(worker, number) {
  return new Promise((resolve) => {
    worker.once('message', resolve);
    worker.postMessage(number);
  });
}

function askServer(socketPath, text) {
  return new Promise((resolve, reject) => {
    const client = net.connect(socketPath, () => client.end(text));
    let answer = '';
    client.on('data', (data) => (answer += data));
    client.on('end', () => resolve(answer));
    client.on('error', reject);
  });
}

/** A function hot enough to be compiled, whose code is in use before and after. */
function collatz(number) {
  let steps = 0;
  for (let value = number; value !== 1; steps += 1) {
    value = value % 2 === 0 ? value / 2 : 3 * value + 1;
  }
  return steps;
}

async function setUp(dir) {
  const directory = fs.mkdtempSync(path.join(dir, 'probe-js-'));
  const shared = new Int32Array(new SharedArrayBuffer(4));
  const worker = new Worker(__filename, { workerData: shared.buffer });
  await new Promise((resolve) => worker.once('message', resolve));
  const state = {
    directory,
    shared,
    worker,
    ticks: 0,
    hash: crypto.createHash('sha256').update('first half, '),
    cipher: crypto.createCipheriv('aes-256-gcm', Buffer.alloc(32, 7), Buffer.alloc(12, 9)),
    map: new Map(Array.from({ length: 50000 }, (_, number) => [`key-${number}`, { number, text: `value ${number}` }])),
    generator: (function* squares() {
      for (let number = 0; ; number += 1) yield number * number;
    })(),
    socketPath: path.join(directory, 's'),
  };
  setInterval(() => (state.ticks += 1), 10);
  state.cipher.update('before');
  for (let count = 0; count < 10; count += 1) state.generator.next();
  await askWorker(worker, 5);
  let release;
  state.gate = new Promise((resolve) => (release = resolve));
  state.release = release;
  state.late = state.gate.then((value) => `promise ${value}`);
  state.server = net.createServer({ allowHalfOpen: true }, (socket) => {
    socket.on('data', (data) => socket.write(`echo ${data}`));
    socket.on('end', () => socket.end());
  });
  await new Promise((resolve) => state.server.listen(state.socketPath, resolve));
  for (let number = 1; number < 30000; number += 1) collatz(number);
  return state;
}

async function fromGoOn(state) {
  const before = [state.ticks, Atomics.load(state.shared, 0)];
  await sleep(200);
  check(state.ticks > before[0], 'timers go on');
  check(Atomics.load(state.shared, 0) > before[1], 'worker goes on');
  console.log('worker sum', await askWorker(state.worker, 37));
  state.release('released');
  console.log(await state.late);
  console.log('hash', state.hash.update('second half').digest('hex').slice(0, 16));
  state.cipher.update('after');
  state.cipher.final();
  console.log('cipher', state.cipher.getAuthTag().toString('hex'));
  console.log('map', state.map.size, state.map.get('key-49999').text);
  console.log('generator', state.generator.next().value, state.generator.next().value);
  console.log('collatz', collatz(27), collatz(97));
  console.log('server', await askServer(state.socketPath, 'hello'));
  const key = await promisify(crypto.pbkdf2)('password', 'salt', 1000, 16, 'sha256');
  console.log('thread pool', key.toString('hex'));
  await fs.promises.writeFile(path.join(state.directory, 'file'), 'written after');
  console.log('file', await fs.promises.readFile(path.join(state.directory, 'file'), 'utf8'));
  check(!crypto.randomBytes(16).equals(crypto.randomBytes(16)), 'crypto random');
  check(os.uptime() > 0 && process.hrtime.bigint() > 0n, 'clocks');
  const { stdout } = await promisify(execFile)('/bin/echo', ['from a child']);
  console.log('subprocess after the fork', stdout.trim());
  const another = new Worker(__filename, { workerData: state.shared.buffer });
  await new Promise((resolve) => another.once('message', resolve));
  console.log('a new worker', await askWorker(another, 3));
  await another.terminate();
}

async function main() {
  const { values } = parseArgs({
    options: {
      go: { type: 'string', default: '/tmp/go' },
      'ready-file': { type: 'string', default: process.env.READY_FILE },
      dir: { type: 'string', default: '/tmp' },
    },
  });
  const state = await setUp(values.dir);
  if (values['ready-file']) fs.writeFileSync(values['ready-file'], '');
  console.log('ready');
  while (!fs.existsSync(values.go)) await sleep(2);
  await fromGoOn(state);
  console.log(failures === 0 ? 'done' : 'done with failures');
  process.exit(failures === 0 ? 0 : 1);
}

if (isMainThread) main();
else workerMain();
