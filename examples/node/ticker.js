'use strict';
// The worker: counts in shared memory, and tells the main thread now and then over its message port.

const { parentPort, workerData } = require('node:worker_threads');

const ticks = new Int32Array(workerData.shared);

setInterval(() => Atomics.add(ticks, 0, 1), 50);
setInterval(() => parentPort.postMessage('tick'), 250);
parentPort.postMessage('ready');
