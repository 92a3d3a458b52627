#!/usr/bin/node
'use strict';
// The Node.js service of `make demo`: hotel search over large parsed JSON, with an initialisation worth skipping.
// A worker thread and timers run beside the HTTP server, so a fork that loses a thread, a timer or an epoll
// registration shows in GET /state. The API is that of examples/geo.py (see examples/README.md). No dependencies,
// one process, no files written.

const { readFileSync } = require('node:fs');
const http = require('node:http');
const os = require('node:os');
const path = require('node:path');
const { parseArgs } = require('node:util');
const { Worker } = require('node:worker_threads');
const { buildIndexes, digestOf, generatorFrom } = require('./catalogue.js');

const PAGE_BYTES = 4096;
const MIB = 1 << 20;
const VALUES_MAX = 1024;
const VALUE_CHARS_MAX = 256;
const NEIGHBOURS_MAX = 50;

const DEFAULTS = { port: 8080, nidx: 6, hotels: 22000, mb: 0, seed: 1, 'reparse-ms': 0, warm: 300 };

class BadRequest extends Error {}

function parseOptions() {
  const options = Object.fromEntries(Object.keys(DEFAULTS).map((name) => [name, { type: 'string' }]));
  const { values } = parseArgs({ options });
  return Object.fromEntries(
    Object.entries(DEFAULTS).map(([name, byDefault]) => {
      const value = values[name] === undefined ? byDefault : Number(values[name]);
      if (!Number.isInteger(value) || value < (name === 'nidx' || name === 'hotels' ? 1 : 0)) {
        throw new Error(`--${name}: not a number in range: ${values[name]}`);
      }
      return [name, value];
    }),
  );
}

/** Touched memory outside V8's heap; each page starts with its own number, so no two are equal. */
function allocateBallast(mib, seed) {
  const uniform = generatorFrom(seed + 1);
  const block = Buffer.from(Uint8Array.from({ length: MIB }, () => uniform(0, 256)));
  const ballast = Buffer.alloc(mib * MIB);
  for (let start = 0; start < ballast.length; start += MIB) {
    block.copy(ballast, start);
  }
  for (let page = 0; page < ballast.length; page += PAGE_BYTES) {
    ballast.writeUInt32LE(page / PAGE_BYTES, page);
  }
  return ballast;
}

function numberOf(query, name, least, most, byDefault) {
  const text = query.get(name);
  if (text === null && byDefault !== undefined) {
    return byDefault;
  }
  const value = Number.parseFloat(text);
  if (!(least <= value && value <= most)) {
    throw new BadRequest(`${name}: a number from ${least} to ${most}`);
  }
  return value;
}

/** The kernel's count, not Node's: a thread that a fork lost is missing here. */
function threadCount() {
  return Number(/^Threads:\s+(\d+)$/m.exec(readFileSync('/proc/self/status', 'latin1'))[1]);
}

/** Everything that a fork must carry over. */
class Service {
  constructor(options) {
    this.options = options;
    this.started = process.hrtime.bigint();
    this.indexes = buildIndexes(options.seed, options.nidx, options.hotels);
    this.ballast = allocateBallast(options.mb, options.seed);
    this.reparse();
    this.digest = this.computeDigest();
    this.shared = new Int32Array(new SharedArrayBuffer(4));
    this.localTicks = 0;
    this.requests = 0;
    this.writes = 0;
    this.values = new Map();
    this.routes = {
      '/nearby': ['GET', (query) => this.nearby(query)],
      '/state': ['GET', () => this.state()],
      '/verify': ['GET', () => this.verify()],
      '/health': ['GET', () => ({ ok: true })],
      '/write': ['POST', (query) => this.write(query)],
    };
  }

  reparse() {
    for (const index of this.indexes) {
      index.parse();
    }
  }

  computeDigest() {
    return digestOf(this.indexes, this.ballast);
  }

  uptimeMs() {
    return Number((process.hrtime.bigint() - this.started) / 1000000n);
  }

  /** Starts the worker and the timers; resolves once the worker runs. */
  startTicking() {
    setInterval(() => (this.localTicks += 1), 100);
    if (this.options['reparse-ms'] > 0) {
      setInterval(() => this.reparse(), this.options['reparse-ms']);
    }
    const worker = new Worker(path.join(__dirname, 'ticker.js'), { workerData: { shared: this.shared.buffer } });
    return new Promise((resolve, reject) => {
      worker.on('error', reject);
      worker.on('message', (message) => (message === 'ready' ? resolve() : (this.localTicks += 1)));
    });
  }

  nearby(query) {
    const lat = numberOf(query, 'lat', -90, 90);
    const lon = numberOf(query, 'lon', -180, 180);
    const index = Math.floor(numberOf(query, 'index', 0, this.indexes.length - 1, 0));
    const count = Math.floor(numberOf(query, 'count', 1, NEIGHBOURS_MAX, 5));
    return { index, hotels: this.indexes[index].nearest(lat, lon, count) };
  }

  write(query) {
    const key = query.get('key') ?? '';
    const value = query.get('value') ?? '';
    if (key === '' || key.length > VALUE_CHARS_MAX || value.length > VALUE_CHARS_MAX) {
      throw new BadRequest(`key and value: 1 to ${VALUE_CHARS_MAX} characters`);
    }
    if (!this.values.has(key) && this.values.size >= VALUES_MAX) {
      throw new BadRequest(`more than ${VALUES_MAX} keys`);
    }
    this.values.set(key, value);
    this.writes += 1;
    return { writes: this.writes, key, value };
  }

  state() {
    return {
      service: 'geo-node',
      pid: process.pid,
      threads: threadCount(),
      ticks: this.localTicks + Atomics.load(this.shared, 0),
      requests: this.requests,
      writes: this.writes,
      values: Object.fromEntries(this.values),
      hostname: os.hostname(),
      uptime_ms: this.uptimeMs(),
      init_ms: this.initMs,
      seed: this.options.seed,
      digest: this.digest,
    };
  }

  verify() {
    const digest = this.computeDigest();
    return { intact: digest === this.digest, digest };
  }

  /** The answer to one request as [status, value]. */
  respond(method, target) {
    const url = new URL(target, 'http://localhost');
    const route = Object.hasOwn(this.routes, url.pathname) ? this.routes[url.pathname] : undefined;
    if (route === undefined) {
      return [404, { error: 'no such path' }];
    }
    if (method !== route[0]) {
      return [405, { error: `use ${route[0]}` }];
    }
    return [200, route[1](url.searchParams)];
  }

  handle(request, response) {
    this.requests += 1;
    let status;
    let value;
    try {
      [status, value] = this.respond(request.method, request.url);
    } catch (error) {
      const mistake = error instanceof BadRequest || error.code === 'ERR_INVALID_URL';
      [status, value] = [mistake ? 400 : 500, { error: error.message }];
    }
    const body = JSON.stringify(value);
    response.writeHead(status, { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body) });
    response.end(body);
    request.resume();
  }
}

function listen(server, address) {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen({ ...address, backlog: 512 }, resolve);
  });
}

function request(socketPath, target, agent) {
  return new Promise((resolve, reject) => {
    const sent = http.get({ socketPath, path: target, agent }, (response) => {
      response.resume();
      response.on('end', resolve);
    });
    sent.on('error', reject);
  });
}

/**
 * Sends requests to itself, so that the code is compiled and linked in by the first real one. Over an abstract unix
 * socket: nobody can mistake that for readiness, no file is left and no connection.
 */
async function warmUp(service) {
  const server = http.createServer((incoming, response) => service.handle(incoming, response));
  const socketPath = `\0geo-node-${process.pid}`;
  await listen(server, { path: socketPath });
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  const targets = ['/health', '/state', '/nearby?lat=48.1&lon=11.6'];
  for (let count = 0; count < service.options.warm; count += 1) {
    // Every tenth on a connection of its own: accepting is worth warming, too.
    await request(socketPath, targets[count % targets.length], count % 10 === 0 ? false : agent);
  }
  agent.destroy();
  await new Promise((resolve) => server.close(resolve));
  service.requests = 0;
}

async function main() {
  const options = parseOptions();
  const service = new Service(options);
  await service.startTicking();
  await warmUp(service);
  service.initMs = service.uptimeMs();
  const server = http.createServer((incoming, response) => service.handle(incoming, response));
  await listen(server, { host: '127.0.0.1', port: options.port });
  for (const name of ['SIGTERM', 'SIGINT']) {
    process.on(name, () => process.exit(0));
  }
  process.stdout.write(`geo-node: ready on 127.0.0.1:${options.port} after ${service.initMs} ms, pid ${process.pid}\n`);
}

main().catch((error) => {
  process.stderr.write(`geo-node: ${error.message}\n`);
  process.exit(1);
});
