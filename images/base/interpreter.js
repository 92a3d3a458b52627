#!/usr/bin/node
'use strict';
// A warm JavaScript interpreter: runs the code that comes in over HTTP, and keeps its variables between requests.
//
//     interpreter.js [--port N] [MODULE...]      loads the modules, then listens on 127.0.0.1:N (49999)
//
// `POST /` with the code as its body answers with all that the code printed. As at a prompt, the value of the last
// statement is printed, too. A promise is awaited. The status is 200, or 422 if the code failed: the error then ends
// the answer.

const { Console } = require('node:console');
const http = require('node:http');
const { createRequire } = require('node:module');
const path = require('node:path');
const { Writable } = require('node:stream');
const { inspect, parseArgs } = require('node:util');
const vm = require('node:vm');

const { values, positionals } = parseArgs({
  options: { port: { type: 'string', default: '49999' } },
  allowPositionals: true,
});

// Modules are found as in a file of the working directory.
globalThis.require = createRequire(path.resolve('code.js'));

/** Runs the code; what it prints goes to `print`. */
async function run(source, print) {
  const stream = new Writable({
    write(chunk, _encoding, done) {
      print(chunk.toString());
      done();
    },
  });
  globalThis.console = new Console(stream, stream);
  const value = await vm.runInThisContext(source, { filename: '<code>' });
  if (value !== undefined) print(`${inspect(value)}\n`);
}

async function answer(source) {
  const printed = [];
  const print = (text) => printed.push(text);
  let status = 200;
  try {
    await run(source, print);
  } catch (error) {
    status = 422;
    print(`${(error && error.stack) || inspect(error)}\n`);
  }
  return { status, text: printed.join('') };
}

// One request at a time, as at a prompt.
let turn = Promise.resolve();

const server = http.createServer((request, response) => {
  const reply = (status, text) => {
    response.writeHead(status, { 'Content-Type': 'text/plain; charset=utf-8' });
    response.end(text);
  };
  if (request.method !== 'POST') return reply(200, 'ready\n');
  const chunks = [];
  request.on('data', (chunk) => chunks.push(chunk));
  request.on('end', () => {
    const source = Buffer.concat(chunks).toString();
    turn = turn.then(() => answer(source)).then(({ status, text }) => reply(status, text));
  });
});

async function main() {
  for (const name of positionals) globalThis[name] = globalThis.require(name);
  // Compiles and prints once, so that a copy finds all of it in its memory.
  await answer('1 + 1');
  server.listen(Number(values.port), '127.0.0.1');
}

main();
