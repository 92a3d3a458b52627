/**
 * Compares the files of two sandboxes: one command in each lists and hashes them, and the lists are compared here.
 *
 * Names of files may have any bytes but NUL, so fields end with NUL. Output of commands is text, so the lists travel in
 * base64.
 */

import { gunzipSync } from 'node:zlib'
import type { Sandbox } from 'e2b'

/** How the files below a directory differ between two sandboxes. Paths are relative to it, and sorted. */
export interface FileDiff {
  /** Only the second sandbox has them. */
  added: string[]
  /** Only the first sandbox has them. */
  removed: string[]
  /** Both have them. Kind, mode, owner, content or the target of a link differs. */
  modified: string[]
}

/** The variable that has the directory, so that no shell reads its name. */
const DIRECTORY = 'PANDO_DIFF_PATH'
const FIELDS = 5
const HASH_CHARACTERS = 64

/** Lists path, kind, mode, owner and link of each entry, then the hash of each file. */
const SCRIPT = String.raw`
set -euo pipefail
pack() { gzip -1 | base64 -w 0; echo; }
cd -- "$${DIRECTORY}"
find . -mindepth 1 -printf '%P\0%y\0%m\0%U:%G\0%l\0' | pack
find . -type f -print0 | xargs -0r sha256sum -z -- | pack
`

/**
 * Compares the files below `path` in two running sandboxes, such as two forks of one.
 *
 * A command in each sandbox lists and hashes them, as the user `user`. All bytes of all files are read. Times of files
 * are not compared. Programs that write meanwhile make the result uncertain: fork first, and compare the forks.
 *
 * @param path a directory, relative to the home of `user`
 * @param timeoutMs for each command; 0 is without end
 * @throws CommandExitError if the directory does not exist, or a file cannot be read
 */
export async function diff(first: Sandbox, second: Sandbox, path = '.', timeoutMs = 0): Promise<FileDiff> {
  const [left, right] = await Promise.all([first, second].map((sandbox) => entries(sandbox, path, timeoutMs)))
  return compare(left!, right!)
}

async function entries(sandbox: Sandbox, path: string, timeoutMs: number): Promise<Map<string, string>> {
  const { stdout } = await sandbox.commands.run(SCRIPT, { envs: { [DIRECTORY]: path }, timeoutMs })
  return parse(stdout)
}

/** What is compared of each path. Text is Latin-1 here: one character for each byte. */
function parse(output: string): Map<string, string> {
  // A profile of the login shell may have printed something before.
  const [listed = [], hashed = []] = output.trim().split(/\s+/).slice(-2).map(unpack)
  const path = HASH_CHARACTERS + '  ./'.length
  const digests = new Map(hashed.map((line) => [line.slice(path), line.slice(0, HASH_CHARACTERS)]))
  const found = new Map<string, string>()
  for (let start = 0; start < listed.length; start += FIELDS) {
    const [name, ...rest] = listed.slice(start, start + FIELDS)
    found.set(name!, [...rest, digests.get(name!)].join('\0'))
  }
  return found
}

function unpack(line: string): string[] {
  return gunzipSync(Buffer.from(line, 'base64')).toString('latin1').split('\0').slice(0, -1)
}

function compare(first: Map<string, string>, second: Map<string, string>): FileDiff {
  const paths = (from: Map<string, string>, wanted: (path: string) => boolean) =>
    [...from.keys()].filter(wanted).map((path) => Buffer.from(path, 'latin1').toString()).sort()
  return {
    added: paths(second, (path) => !first.has(path)),
    removed: paths(first, (path) => !second.has(path)),
    modified: paths(first, (path) => second.has(path) && first.get(path) !== second.get(path)),
  }
}
